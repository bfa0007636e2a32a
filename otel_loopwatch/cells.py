"""The numbers behind our metrics: one cell a series, in this process, under one lock. No OpenTelemetry.

Labels are few and capped, so that no model that makes up tool names can fill the memory of a metrics backend: what does
not fit goes into ``__other__`` and is counted in ``loopwatch.series.folded``.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, get_args

from otel_loopwatch import semconv
from otel_loopwatch.amounts import EXACT
from otel_loopwatch.budgets import shares
from otel_loopwatch.calls import Action, LoopKind, StopReason, Used
from otel_loopwatch.clock import Clock
from otel_loopwatch.errors import report_fault
from otel_loopwatch.policy import Budgets
from otel_loopwatch.semconv import MAX_SERIES, METRICS, OTHER, OUTCOMES, SIGNALS, UNKNOWN_AGENT, Metric
from otel_loopwatch.version import __version__

__all__ = ["GUARD_STAGES", "TOKEN_TYPES", "Distribution", "Exemplar", "Labels", "OpenRun", "Registry", "Table", "Value"]

TOKEN_TYPES: Final = ("input", "output", "cached_input")
"""Values of ``type``. ``cached_input`` is a part of ``input``: add up ``input`` and ``output`` only."""

MAX_LABEL: Final = 200
"""Characters of a label."""

GUARD_STAGES: Final = (
    "fingerprint",
    "flush",
    "hint",
    "infra_error",
    "launch",
    "loop_key",
    "metrics",
    "metrics.collect",
    "metrics.instrument",
    "on_verdict",
    "price",
    "processor",
    "telemetry",
)
"""Where a fault of ours may be counted. Their series begin at 0, so that the first fault is an increase."""

MAX_AGENTS: Final = 30
MAX_MODELS: Final = 60
MAX_TOOLS_PER_AGENT: Final = 100
MAX_PAIRS: Final = 150
"""(agent, tool) pairs with a name of their own. Each has 7 series of ``loops.detected``; with the ``__other__`` of each
agent that stays below :data:`~otel_loopwatch.semconv.MAX_SERIES` and leaves room for a second action."""

MAX_FOLDED: Final = 4096
"""Folded label sets remembered in order to count each once; the memory is emptied when it is full."""

_CAPS: Final = {"agent": MAX_AGENTS, "model": MAX_MODELS, "source": 20, "stage": 40}
_OPEN: Final = frozenset({*_CAPS, "tool"})
_CLOSED: Final = {
    "action": len(get_args(Action)),
    "kind": len(get_args(LoopKind)),
    "outcome": len(OUTCOMES),
    "stop_reason": len(StopReason),
    "type": len(TOKEN_TYPES),
}

Labels: TypeAlias = tuple[str, ...]
Cells: TypeAlias = dict[Labels, int | Decimal]


class Distribution(NamedTuple):
    """The value of a histogram.

    Attributes:
        counts: Observations in each bucket, the one above the last bound included; not cumulative.
        total: Sum of the observations.
    """

    counts: tuple[int, ...]
    total: float


class Exemplar(NamedTuple):
    """One observation of a histogram, by which its trace is found. It names the trace and nothing of what was in it.

    Attributes:
        trace_id: 32 hex characters.
        span_id: 16 hex characters.
        value: What was observed.
        at: When, in Unix seconds.
    """

    trace_id: str
    span_id: str
    value: float
    at: float


Value: TypeAlias = int | float | Distribution
Table: TypeAlias = dict[str, dict[Labels, Value]]
"""Metric name -> label values -> value."""


class OpenRun(Protocol):
    """What the gauges over open runs read of a run."""

    agent: str
    budgets: Budgets
    clock: Clock
    started_at: float
    last_active_at: float

    def used(self) -> Used:
        """What the run has used so far."""


class _Peak:
    """The largest figures of the open runs that share agent, limits and clock."""

    __slots__ = ("active_at", "agent", "budgets", "calls", "clock", "runs", "spend", "started_at", "steps", "tokens")

    def __init__(self, run: OpenRun) -> None:
        self.agent = run.agent
        self.budgets = run.budgets
        self.clock = run.clock
        self.started_at = run.started_at
        self.active_at = run.last_active_at
        self.runs = self.steps = self.calls = self.tokens = 0
        self.spend = Decimal(0)

    def include(self, run: OpenRun, used: Used) -> None:
        steps, calls, tokens, spend, _ = used
        self.runs += 1
        # Comparisons and no max(): this runs 10,000 times in a collection, and the six calls would be half of its time.
        if calls > self.calls:  # noqa: PLR1730
            self.calls = calls
        if steps > self.steps:  # noqa: PLR1730
            self.steps = steps
        if tokens > self.tokens:  # noqa: PLR1730
            self.tokens = tokens
        if spend > self.spend:  # noqa: PLR1730
            self.spend = spend
        if run.started_at < self.started_at:  # noqa: PLR1730
            self.started_at = run.started_at
        if run.last_active_at < self.active_at:  # noqa: PLR1730
            self.active_at = run.last_active_at


def _label(value: str) -> str:
    """*value* as a label: a model may have made it up, and one that cannot be encoded takes the whole page down."""
    if len(value) <= MAX_LABEL and value.isascii():
        return value
    return value[:MAX_LABEL].encode("utf-8", "replace").decode()


class Registry:
    """Every cell of the process. Nothing of anybody else's is called while the lock is held.

    Args:
        wall_clock: Unix seconds, for the heartbeat.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.wall_clock = wall_clock
        self.before_reading: list[Callable[[], None]] = []
        # Re-entrant: a __del__ that the collector runs inside of it may end a run or settle a call.
        self.lock = threading.RLock()
        self.tools = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew, without any label set but the ones that are always there. Decorated tools stay decorated."""
        self.mode = "enforce"
        self.runs: dict[int, weakref.ref[OpenRun]] = {}
        self.cells: dict[str, Cells] = {metric.name: {} for metric in METRICS if metric.kind == "counter"}
        self.distributions: dict[str, dict[Labels, Distribution]] = {
            metric.name: {} for metric in METRICS if metric.kind == "histogram"
        }
        self.exemplars: dict[tuple[str, Labels], list[Exemplar | None]] = {}
        self.calls = self.cells[semconv.TOOL_CALLS.name]
        self.repeats = self.cells[semconv.TOOL_REPEATS.name]
        self._folds = self.cells[semconv.SERIES_FOLDED.name]
        self._admitted: dict[str, set[str]] = {label: {OTHER} for label in _CAPS}
        self._pairs: set[Labels] = set()
        self._tools_of: dict[str, int] = {}
        self._known: set[Labels] = set()
        self._folded: set[int] = set()
        self._agents: set[str] = set()
        self._budgets: set[Labels] = set()
        for metric in METRICS:
            if not _OPEN.isdisjoint(metric.labels):
                self._folds[metric.name,] = 0
        for stage in GUARD_STAGES:
            self.add(semconv.GUARD_ERRORS, stage, amount=0)
        for signal in SIGNALS:
            self.add(semconv.EXPORT_ERRORS, signal, amount=0)
        self.add(semconv.UNTRACKED_TOOL_CALLS, UNKNOWN_AGENT, amount=0)
        self.add(semconv.SPANS_EVICTED, amount=0)

    def after_fork(self) -> None:
        """In a child: the lock may be held by a thread that is not here, and the counts are the parent's."""
        self.lock = threading.RLock()
        self.runs = {}
        for cells in self.cells.values():
            for labels in cells:
                cells[labels] = 0
        for distributions in self.distributions.values():
            distributions.clear()
        self.exemplars.clear()

    # --- label sets ----------------------------------------------------------------------------------------------

    def _admit(self, label: str, value: str) -> str:
        admitted = self._admitted[label]
        value = _label(value)
        # "__other__" is in the set and is no value of its own, hence > and not >=.
        if value not in admitted:
            if len(admitted) > _CAPS[label]:
                return OTHER
            admitted.add(value)
        return value

    def _pair(self, agent: str, tool: str) -> tuple[str, str]:
        agent = self._admit("agent", agent)
        tool = _label(tool)
        if (agent, tool) not in self._pairs and tool != OTHER:
            tools = self._tools_of.get(agent, 0)
            if tools >= MAX_TOOLS_PER_AGENT or len(self._pairs) >= MAX_PAIRS:
                return agent, OTHER
            self._tools_of[agent] = tools + 1
            self._pairs.add((agent, tool))
        return agent, tool

    def labels(self, metric: Metric, values: Labels) -> Labels:
        """The label set under which *values* are counted. The caller holds the lock."""
        series = self.cells.get(metric.name) or self.distributions.get(metric.name) or {}
        if values in series:
            return values
        if metric.labels[:2] == ("agent", "tool"):
            labels: Labels = (*self._pair(values[0], values[1]), *values[2:])
        else:
            labels = tuple(
                self._admit(name, value) if name in _CAPS else value
                for name, value in zip(metric.labels, values, strict=True)
            )
        if labels not in series and len(series) >= MAX_SERIES - _folded_series(metric):
            labels = tuple(OTHER if name in _OPEN else value for name, value in zip(metric.labels, labels, strict=True))
        if labels != values and labels != tuple(map(_label, values)):
            self._count_folded(metric, values)
        return labels

    def _count_folded(self, metric: Metric, values: Labels) -> None:
        # A hash, not the values: they may be as long as a model cares to make them.
        folded = hash((metric.name, values))
        if folded not in self._folded:
            if len(self._folded) >= MAX_FOLDED:
                self._folded.clear()
            self._folded.add(folded)
            self._folds[metric.name,] += 1

    # --- writing -------------------------------------------------------------------------------------------------

    def add(self, metric: Metric, *values: str, amount: int | Decimal = 1) -> None:
        """Add *amount* to a counter; 0 makes the series be there."""
        cells = self.cells[metric.name]
        with self.lock:
            labels = self.labels(metric, values)
            before = cells.get(labels, 0)
            # Money by its own context: the application's may round, or trap what is inexact.
            is_money = isinstance(amount, Decimal) or isinstance(before, Decimal)
            cells[labels] = EXACT.add(before, amount) if is_money else before + amount

    def tool_call(self, agent: str, tool: str, outcome: str, *, repeated: bool) -> None:
        """Count one call: the only thing that every call pays for."""
        lock = self.lock
        # Not `with`: on CPython 3.11 that costs a third more, and this is all that a call does here.
        lock.acquire()
        try:
            try:
                self.calls[agent, tool, outcome] += 1
            except KeyError:
                self.add(semconv.TOOL_CALLS, agent, tool, outcome)
            if repeated:
                try:
                    self.repeats[agent, tool] += 1
                except KeyError:
                    self.add(semconv.TOOL_REPEATS, agent, tool)
        finally:
            lock.release()

    def know(self, agent: str, tool: str, action: str) -> None:
        """Let every series of (agent, tool) be there, at 0; once a pair."""
        if (agent, tool, action) in self._known:
            return
        with self.lock:
            agent, tool = self._pair(agent, tool)
            if (agent, tool, action) in self._known:
                return
            self._known.add((agent, tool, action))
            for outcome in OUTCOMES:
                self.add(semconv.TOOL_CALLS, agent, tool, outcome, amount=0)
            for kind in get_args(LoopKind):
                self.add(semconv.LOOPS_DETECTED, agent, tool, kind, action, amount=0)
            self.add(semconv.TOOL_REPEATS, agent, tool, amount=0)
            self.add(semconv.HINTS_IGNORED, agent, tool, amount=0)

    def observe(self, metric: Metric, agent: str, value: float, trace: tuple[str, str] | None = None) -> Labels:
        """Add one observation to a histogram.

        Args:
            metric: Which histogram.
            agent: Its label.
            value: What was observed.
            trace: Ids of a trace and a span that is recorded, for the exemplar of the bucket: the last one stays.

        Returns:
            The labels that it has.
        """
        distributions = self.distributions[metric.name]
        with self.lock:
            labels = self.labels(metric, (agent,))
            before = distributions.get(labels) or Distribution((0,) * (len(metric.buckets) + 1), 0.0)
            counts = list(before.counts)
            bucket = bisect_left(metric.buckets, value)
            counts[bucket] += 1
            distributions[labels] = Distribution(tuple(counts), before.total + value)
            if trace is not None:
                kept = self.exemplars.setdefault((metric.name, labels), [None] * len(counts))
                kept[bucket] = Exemplar(*trace, value, self.wall_clock())
        return labels

    def exemplars_of(self, metric: Metric, labels: Labels) -> list[Exemplar | None]:
        """The last exemplar of each bucket of a histogram; ``None`` where there was none."""
        with self.lock:
            return list(self.exemplars.get((metric.name, labels), [None] * (len(metric.buckets) + 1)))

    def open_run(self, run: OpenRun) -> None:
        """Let the gauges see *run*, for as long as it is referenced elsewhere and not closed."""
        key = id(run)
        with self.lock:
            self.runs[key] = weakref.ref(run, lambda _: self.runs.pop(key, None))
            agent = self._admit("agent", run.agent)
            if agent not in self._agents:
                self._agents.add(agent)
                for reason in StopReason:
                    self.add(semconv.RUNS, agent, reason.value, amount=0)

    def close_run(self, run: OpenRun) -> None:
        """Take *run* out of the gauges."""
        with self.lock:
            self.runs.pop(id(run), None)

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self) -> Table:
        """Every series and its value, now."""
        for prepare in self.before_reading:
            prepare()
        with self.lock:
            # dict.copy() runs no Python code, so nothing can change the size of what it copies.
            counters = {name: cells.copy() for name, cells in self.cells.items()}
            table: Table = {name: dict(cells) for name, cells in self.distributions.items()}
            references = list(self.runs.values())
        for name, cells in counters.items():
            table[name] = {labels: _plain(value) for labels, value in cells.items()}
        table |= self._read_runs(references)
        table[semconv.TOOLS_REGISTERED.name] = {(): self.tools}
        table[semconv.BUILD_INFO.name] = {(__version__, self.mode): 1}
        table[semconv.HEARTBEAT.name] = {(): self.wall_clock()}
        return table

    def _read_runs(self, references: list[weakref.ref[OpenRun]]) -> Table:
        peaks: dict[tuple[str, int, Clock], _Peak] = {}
        for reference in references:
            run = reference()
            if run is None:
                continue
            try:
                used = run.used()
            except Exception as fault:  # noqa: BLE001 - a remote ledger may be down; the other runs are still read
                report_fault("metrics.collect", fault)
                continue
            key = (run.agent, id(run.budgets), run.clock)
            peak = peaks.get(key)
            if peak is None:
                peak = peaks[key] = _Peak(run)
            peak.include(run, used)
        return self._gauges(list(peaks.values()))

    def _gauges(self, peaks: list[_Peak]) -> Table:
        """The gauges over open runs. An agent seen before and idle now reads 0: a series that ended would linger."""
        metrics = (
            semconv.RUNS_ACTIVE,
            semconv.RUN_TOOL_CALLS_MAX,
            semconv.RUN_SPEND_USD_MAX,
            semconv.RUN_AGE_MAX,
            semconv.RUN_IDLE_MAX,
        )
        with self.lock:
            gauges: dict[str, dict[Labels, float]] = {
                metric.name: {(agent,): 0 for agent in self._agents} for metric in metrics
            }
            budgets: dict[Labels, float] = dict.fromkeys(self._budgets, 0)
            agents = [self._admit("agent", peak.agent) for peak in peaks]
        active, *largest = gauges.values()
        most: dict[tuple[str, Budgets], tuple[Any, ...]] = {}
        for agent, peak in zip(agents, peaks, strict=True):
            now = peak.clock()
            age = now - peak.started_at
            active[agent,] = active.get((agent,), 0) + peak.runs
            for cells, value in zip(largest, (peak.calls, float(peak.spend), age, now - peak.active_at), strict=True):
                cells[agent,] = max(cells.get((agent,), 0), value)
            used = (peak.steps, peak.calls, peak.tokens, peak.spend, age)
            key = (agent, peak.budgets)
            # An application may make its policy anew for each run: equal limits are then one comparison, not 10,000.
            most[key] = tuple(map(max, used, most[key])) if key in most else used
        for (agent, limits), (steps, calls, tokens, spend, age) in most.items():
            for breach, share in shares(Used(steps, calls, tokens, spend), limits, age):
                budget = (agent, breach.budget)
                budgets[budget] = max(budgets.get(budget, 0), share)
        with self.lock:
            self._budgets.update(budgets)
        gauges[semconv.BUDGET_USED.name] = budgets
        return {name: dict(cells) for name, cells in gauges.items()}


def _folded_series(metric: Metric) -> int:
    """Room kept for the series in which every open label is ``__other__``: one for each value of the closed labels."""
    room = 1
    for label in metric.labels:
        room *= _CLOSED.get(label, 1)
    return room


def _plain(value: int | Decimal) -> int | float:
    return value if isinstance(value, int) else float(value)
