"""How calls change what is known of a run. Pure state: no lock, no clock, no OpenTelemetry.

A ledger owns one :class:`RunState` a run and calls it under its own lock; the words are explained in
:mod:`otel_loopwatch.history`. Every operation is O(1) amortised, and the state is bounded however long the run: 64
settled calls, 1,024 fingerprints, 256 tools, 256 call ids, the least recently used going first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_loopwatch.calls import Settled, ToolCall, Trip, Used
from otel_loopwatch.history import QUIET, Entry, History, Item, Streak, Streaks

__all__ = ["RunState"]

MAX_WINDOW = 64
MAX_FINGERPRINTS = 1024
MAX_TOOLS = 256
MAX_IDS = 256
MAX_ROUND = 8

NEW = Entry()
NO_STREAK = Streak()
NO_HINTS: Mapping[str, int] = {}

# A NamedTuple's own constructor is a Python function around this one and takes twice the time.
_new = tuple.__new__


class _Record:
    """The lasting counts of one fingerprint; see :class:`Entry`.

    Kept under the 64-bit hash of the fingerprint, and the outcome as one too: strings would take a run of 1,024
    fingerprints past 300 kB, and a collision among them has a probability below 2**-44.
    """

    __slots__ = ("calls", "epoch", "error_class", "kept", "outcome", "same", "succeeded")

    def __init__(self) -> None:
        self.calls = 1
        self.same = self.kept = self.epoch = 0
        self.outcome: int | None = None
        self.error_class: str | None = None
        self.succeeded = False


class _Infra:
    """Errors of the infrastructure of one fingerprint: in all, and in a row."""

    __slots__ = ("calls", "row")

    def __init__(self) -> None:
        self.calls = self.row = 0


class _Tool:
    """The counts of one tool; see :class:`History`."""

    __slots__ = ("answer", "answers", "calls", "error_kinds", "errors", "hinted_at", "infra", "refused")

    def __init__(self) -> None:
        self.calls = self.answers = self.refused = self.hinted_at = 0
        self.answer: int | None = None
        self.errors = self.error_kinds = self.infra = NO_STREAK


class _Round:
    """A call and the identical ones made beside it, while they are in flight or their turn lasts."""

    __slots__ = ("base", "counted", "in_flight", "key", "size", "step")

    def __init__(self, key: int, step: int, base: Entry, size: int) -> None:
        # The very object under which the record is kept: another of the same value would stay in the window.
        self.key = key
        self.step = step
        self.base = base
        self.size = size
        self.in_flight = 1
        self.counted = False


class RunState:
    """Everything that one run has done, as far as a detector needs it. Not safe for threads: its ledger locks."""

    __slots__ = (
        "_beside_tail",
        "_epoch",
        "_flight",
        "_hint_epochs",
        "_hinted_steps",
        "_hints",
        "_ids",
        "_infra",
        "_latest_tool",
        "_records",
        "_round_step",
        "_rounds",
        "_row",
        "_run_errors",
        "_serial",
        "_silent",
        "_tail",
        "_tools",
        "_window",
    )

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._tools: dict[str, _Tool] = {}
        self._latest_tool: str | None = None
        self._ids: dict[int, None] = {}
        self._flight: dict[str, _Round] = {}
        self._rounds: dict[int, _Round] = {}
        self._round_step = 0
        self._window: list[Item] = []
        self._run_errors = NO_STREAK
        # The rare cases have tables of their own, so that the many records stay small.
        self._infra: dict[int, _Infra] = {}
        self._hint_epochs: dict[int, int] = {}
        self._hints: dict[str, int] = {}
        self._hinted_steps: dict[str, int] = {}
        self._epoch = 0
        self._serial = 0
        self._tail: int | None = None
        self._row = 0
        self._beside_tail: int | None = None
        self._silent: set[int] = set()

    # --- before the body ------------------------------------------------------------------------------------------

    def knows(self, call_id: str) -> bool:
        """True where this id has been reserved in this run (and is among the last 256, or still in flight)."""
        return call_id in self._flight or hash(call_id) in self._ids

    def reserve(self, call: ToolCall, used: tuple[Used, ...] = (), tripped: Trip | None = None) -> History:
        """Count *call* as made, and return what was known before it.

        Args:
            call: The call; an id that :meth:`knows` is for :meth:`look`.
            used: Usage of the run and its ancestors, put into the answer.
            tripped: The trip that holds, put into the answer.
        """
        key = hash(call.fingerprint)
        step = call.step
        if step != self._round_step:
            self._round_step = step
            if self._rounds:
                self._rounds = {name: kept for name, kept in self._rounds.items() if kept.in_flight}
        records = self._records
        record = records.pop(key, None)
        if record is None:
            record = _Record()
            if len(records) >= MAX_FINGERPRINTS:
                self._forget(next(iter(records)))
            entry = NEW
            self._flight[call.id] = self._rounds[key] = _Round(key, step, NEW, 1)
        else:
            entry = self._join_round(call, record, key)
        records[key] = record
        name = call.tool
        tools = self._tools
        tool = tools.get(name)
        if tool is None:
            if len(tools) >= MAX_TOOLS:
                del tools[next(iter(tools))]
            tool = tools[name] = _Tool()
        elif name != self._latest_tool:
            tools[name] = tools.pop(name)
        self._latest_tool = name
        tool.calls += 1
        ids = self._ids
        if len(ids) >= MAX_IDS:
            del ids[next(iter(ids))]
        ids[hash(call.id)] = None
        hints = self._hints
        return _new(
            History,
            (
                used,
                entry,
                tool.calls,
                dict(hints) if hints else NO_HINTS,
                tripped,
                False,
                self._sequence() if entry.calls > 1 else (),
                self._streaks(tool),
                key,
            ),
        )

    def look(self, call: ToolCall, used: tuple[Used, ...] = (), tripped: Trip | None = None) -> History:
        """What :meth:`reserve` would say of a call whose id is known: it is the same call, and changes nothing."""
        key = hash(call.fingerprint)
        joined = self._flight.get(call.id)
        record = self._records.get(key)
        entry = joined.base if joined is not None else NEW if record is None else self._entry(record, key)
        tool = self._tools.get(call.tool) or _Tool()
        return History(
            used,
            entry,
            tool.calls,
            dict(self._hints),
            tripped,
            duplicate=True,
            window=self._sequence() if entry.calls > 1 else (),
            streaks=self._streaks(tool),
            key=key,
        )

    def _streaks(self, tool: _Tool) -> Streaks:
        if tool.answers < 2 and tool.errors is NO_STREAK and self._run_errors is NO_STREAK and tool.infra is NO_STREAK:
            return QUIET
        answers = Streak(tool.answers, (tool.answer,), 0, tool.refused, tool.hinted_at)
        return Streaks(tool.errors, tool.error_kinds, self._run_errors, answers, tool.infra)

    def _sequence(self) -> tuple[Item, ...]:
        silent = self._silent
        return tuple(item for item in self._window if item.call not in silent) if silent else tuple(self._window)

    def _join_round(self, call: ToolCall, record: _Record, key: int) -> Entry:
        """Put *call* into the round it belongs to; returns what was known before that round."""
        rounds = self._rounds
        beside = rounds.get(key)
        if beside is not None and beside.size < MAX_ROUND:
            beside.size += 1
            beside.in_flight += 1
            self._flight[call.id] = beside
            return beside.base
        if beside is not None and beside.in_flight and not beside.counted:
            # The round before has no outcome yet: it counts as one more of the same until it shows another.
            before = beside.base
            base = before._replace(
                calls=before.calls + 1,
                counted=before.counted + 1,
                same=before.same + 1,
                kept=before.kept + 1,
                row=before.row + 1,
            )
        else:
            base = self._entry(record, key)
        record.calls += 1
        self._flight[call.id] = rounds[key] = _Round(key, call.step, base, 1 if beside is None else MAX_ROUND)
        return base

    def _entry(self, record: _Record, key: int) -> Entry:
        epoch = self._epoch
        infra = self._infra.get(key)
        return _new(
            Entry,
            (
                record.calls,
                record.calls - infra.calls if infra is not None else record.calls,
                record.same if record.epoch == epoch else 0,
                record.kept,
                self._row if self._tail == key else int(self._beside_tail == key),
                infra.row if infra is not None else 0,
                record.error_class is not None,
                record.error_class,
                self._hint_epochs.get(key, epoch) != epoch,
            ),
        )

    # --- instead of the body --------------------------------------------------------------------------------------

    def release(self, call: ToolCall, hinted: str | None = None) -> bool:
        """Take back a reservation whose body is not run.

        Args:
            call: The reserved call.
            hinted: The subject of the finding, where the call was answered with a hint. Such a call goes on counting as
                one more with the same outcome, and keeps its place in the sequence. Without it the call was never made.

        Returns:
            False where the call is not in flight, so that nothing changed.
        """
        joined = self._leave_round(call)
        if joined is None:
            return False
        key = joined.key
        record = self._record(key)
        tool = self._tool(call.tool)
        # A made-up tool never runs: what counts there is the demand.
        if hinted is None or call.known:
            tool.calls -= 1
        if hinted is None:
            if not joined.in_flight and not joined.counted:
                record.calls -= 1
                self._rounds.pop(key, None)
            # It may be asked for again (an approval that was given): under its id, as the same call.
            self._ids.pop(hash(call.id), None)
            return True
        if not (call.step and self._hinted_steps.get(hinted) == call.step):
            self._hints[hinted] = self._hints.get(hinted, 0) + 1
            self._hinted_steps[hinted] = call.step
            tool.errors = _refused(tool.errors)
            tool.error_kinds = _refused(tool.error_kinds)
            tool.infra = _refused(tool.infra)
            self._run_errors = _refused(self._run_errors)
            tool.refused += 1
            tool.hinted_at = tool.answers
        if not joined.counted:
            joined.counted = True
            self._hint_epochs[key] = self._epoch
            if record.outcome is not None:
                record.same = record.same + 1 if record.epoch == self._epoch else 1
                record.kept += 1
                record.epoch = self._epoch
            self._append(call, key, record.outcome, silent=False)
        return True

    # --- after the body -------------------------------------------------------------------------------------------

    def settle(self, call: ToolCall, settled: Settled) -> bool:
        """Record how *call* ended.

        Returns:
            False where the call is not in flight, so that nothing changed.
        """
        joined = self._leave_round(call)
        if joined is None:
            return False
        if call.exempt:
            return True
        key = joined.key
        record = self._records.get(key) or self._record(key)
        tool = self._tools.get(call.tool) or self._tool(call.tool)
        first = not joined.counted
        joined.counted = True
        if settled.infra:
            if first:
                self._count_infra(settled, key, tool)
            return True
        if self._infra and key in self._infra:
            self._infra[key].row = 0
        tool.infra = NO_STREAK
        error = settled.error
        silent = settled.trivial and error is None and not call.writes and record.outcome is None
        outcome = self._compare(record, settled, counts=first)
        if first:
            self._count_streaks(call, settled, tool, outcome)
            self._append(call, key, outcome, silent=silent)
        self._hint_epochs.pop(key, None)
        if error is not None:
            record.error_class = settled.error_class or "error"
        else:
            record.error_class = None
            if call.writes and not record.succeeded:
                self._open_epoch()
                record.epoch = self._epoch
            record.succeeded = True
        return True

    def progress(self) -> None:
        """Something new happened that no call shows: a new epoch for every fingerprint, and the end of every streak."""
        self._open_epoch()
        self._window.clear()
        self._silent.clear()
        self._tail = self._beside_tail = None
        self._row = 0
        for tool in self._tools.values():
            tool.infra = NO_STREAK
            tool.answer = None
            tool.answers = tool.refused = tool.hinted_at = 0
        for record in self._records.values():
            record.kept = 0
        for infra in self._infra.values():
            infra.row = 0

    def _open_epoch(self) -> None:
        self._epoch += 1
        self._run_errors = NO_STREAK
        for tool in self._tools.values():
            tool.errors = tool.error_kinds = NO_STREAK

    def _count_infra(self, settled: Settled, key: int, tool: _Tool) -> None:
        infra = self._infra.setdefault(key, _Infra())
        infra.calls += 1
        infra.row += 1
        tool.infra = _grown(tool.infra, settled.error, settled.error_class)

    def _count_streaks(self, call: ToolCall, settled: Settled, tool: _Tool, outcome: int | None) -> None:
        error = settled.error
        if error is not None:
            tool.errors = _grown(tool.errors, outcome, settled.error_class)
            tool.error_kinds = _grown(tool.error_kinds, error, settled.error_class)
            self._run_errors = _grown(self._run_errors, (call.tool, outcome), settled.error_class)
            return
        tool.errors = tool.error_kinds = self._run_errors = NO_STREAK
        if outcome is None or settled.trivial or call.writes:
            return
        if outcome == tool.answer:
            tool.answers += 1
        else:
            tool.answer = outcome
            tool.answers = 1
            tool.refused = tool.hinted_at = 0

    def _compare(self, record: _Record, settled: Settled, *, counts: bool) -> int | None:
        """Set this outcome against the one before, and return it."""
        text = settled.digest if settled.digest is not None else settled.error
        outcome = None if text is None else hash(text)
        if outcome is None:
            record.same = record.kept = 0
        elif outcome != record.outcome:
            record.same = record.kept = 1
        elif counts:
            record.same = record.same + 1 if record.epoch == self._epoch else 1
            record.kept += 1
        record.outcome = outcome
        record.epoch = self._epoch
        return outcome

    def _append(self, call: ToolCall, key: int, outcome: int | None, *, silent: bool) -> None:
        """Put a call into the sequence, those of one turn in the order of their hashes, and count the row."""
        if silent:
            self._silent.add(key)
            self._beside_tail = key
        else:
            self._silent.discard(key)
            if self._tail == key:
                self._row += 1
            else:
                self._row = 2 if self._beside_tail == key else 1
                self._tail = key
            self._beside_tail = None
        step = call.step
        if outcome is None:
            self._serial += 1
        item = _new(Item, (key, f"?{self._serial}" if outcome is None else outcome, step, call.tool))
        window = self._window
        at = len(window)
        if step:
            while at and window[at - 1].step == step and window[at - 1].call > key:
                at -= 1
        window.insert(at, item)
        if len(window) > MAX_WINDOW:
            self._silent.discard(window.pop(0).call)

    def _leave_round(self, call: ToolCall) -> _Round | None:
        joined = self._flight.pop(call.id, None)
        if joined is None:
            return None
        joined.in_flight -= 1
        # A round lasts as long as its turn or its last call in flight, whichever is longer.
        is_over = joined.step == 0 or joined.step != self._round_step
        if is_over and not joined.in_flight and self._rounds.get(joined.key) is joined:
            del self._rounds[joined.key]
        return joined

    def _record(self, key: int) -> _Record:
        """A record that was pushed out while its call was in flight."""
        record = self._records[key] = self._records.get(key) or _Record()
        return record

    def _tool(self, name: str) -> _Tool:
        """A tool that was pushed out while its call was in flight."""
        tool = self._tools[name] = self._tools.get(name) or _Tool()
        return tool

    def _forget(self, key: int) -> None:
        del self._records[key]
        self._infra.pop(key, None)
        self._hint_epochs.pop(key, None)


def _grown(streak: Streak, signature: Any, error_class: str | None) -> Streak:
    """*streak* with one error more. A third signature cuts it down to the last run of the second one."""
    known = streak.signatures
    if not known:
        return Streak(1, (signature,), 1, error_class=error_class)
    latest = known[-1]
    tail = streak.tail + 1 if signature == latest else 1
    if len(known) == 1 or signature in known:
        signatures = (*(name for name in known if name != signature), signature)
        return Streak(streak.length + 1, signatures, tail, streak.refused, streak.hinted_at, error_class)
    return Streak(streak.tail + 1, (latest, signature), 1, error_class=error_class)


def _refused(streak: Streak) -> Streak:
    """*streak* with one call more that was answered with a hint."""
    return streak._replace(refused=streak.refused + 1, hinted_at=streak.length) if streak.length else streak
