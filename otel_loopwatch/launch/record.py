"""The runs of one process as they end, and what became of them all: a table for people, a report for programs.

The table is written without ``rich``: the process is the agent's, which need not have it.
"""

from __future__ import annotations

import json
import os
import threading
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_loopwatch.calls import RunOutcome, StopReason
from otel_loopwatch.run import Run
from otel_loopwatch.version import __version__

__all__ = ["MAX_KEPT", "MAX_ROWS", "Record", "Row", "is_device", "report", "table", "write_report"]

MAX_KEPT: Final = 10_000
"""Runs that are remembered one by one, about 1 kB each; of those beyond, only the sums are."""

MAX_FINDINGS: Final = 10
"""Findings of one run that are remembered, the longest repetitions: a run may have a hundred."""

MAX_ROWS: Final = 20
SCHEMA: Final = 1
"""Version of the report's shape. A new key does not change it; one that goes or means something else does."""

MAX_NAME: Final = 32
"""Characters of an agent's or a tool's name in the table."""

_QUIET: Final = frozenset({StopReason.COMPLETED, StopReason.PAUSED})
_HEAD: Final = ("agent", "stop reason", "calls", "repeated", "tokens", "USD", "seconds")
_LEFT: Final = frozenset({0, 1, 3})


class Row(NamedTuple):
    """One run that has ended.

    Attributes:
        parent_id: Id of the run in which it was opened; what it used is part of that one's figures.
        outcome: How it ended, with :data:`MAX_FINDINGS` findings at most, the longest first, and without the partial
            result and the exception: those are the program's.
        findings: How many findings it had.
    """

    parent_id: str | None
    outcome: RunOutcome
    findings: int


class Sums(NamedTuple):
    """What all runs together used, each thing once: a run's figures are part of its parent's."""

    runs: int = 0
    tool_calls: int = 0
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    spend_usd: Decimal = Decimal(0)
    spend_complete: bool = True
    seconds: float = 0.0


class Record:
    """Told of every run that ends, from whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rows: list[Row] = []
        self._dropped = 0
        self._sums = Sums()
        self._reasons: Counter[StopReason] = Counter()

    def add(self, run: Run, outcome: RunOutcome) -> None:
        """Remember how *run* ended."""
        longest = sorted(outcome.findings, key=lambda found: -found.repeats)[:MAX_FINDINGS]
        row = Row(
            None if run.parent is None else run.parent.run_id,
            # What is the program's own must not be kept alive by the record.
            replace(outcome, partial=None, cause=None, findings=tuple(longest)),
            len(outcome.findings),
        )
        with self._lock:
            if len(self._rows) < MAX_KEPT:
                self._rows.append(row)
            else:
                self._dropped += 1
            self._reasons[outcome.stop_reason] += 1
            sums = self._sums
            if run.parent is None:
                self._sums = Sums(
                    sums.runs + 1,
                    sums.tool_calls + outcome.tool_calls,
                    sums.steps + outcome.steps,
                    sums.input_tokens + outcome.input_tokens,
                    sums.output_tokens + outcome.output_tokens,
                    sums.cached_input_tokens + outcome.cached_input_tokens,
                    sums.spend_usd + outcome.spend_usd,
                    sums.spend_complete and outcome.spend_complete,
                    sums.seconds + outcome.duration_s,
                )
            else:
                self._sums = sums._replace(runs=sums.runs + 1)

    def taken(self) -> tuple[list[Row], int, Sums, Mapping[StopReason, int]]:
        """The rows, how many more there were, the sums, and the number of runs by stop reason."""
        with self._lock:
            return list(self._rows), self._dropped, self._sums, dict(self._reasons)


def report(record: Record, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The report, as JSON types; ``docs/how-to/zero-code.md`` says what each key means.

    Args:
        record: The runs.
        facts: What else is known of the process, under its keys.
    """
    rows, dropped, sums, reasons = record.taken()
    return {
        "schema": SCHEMA,
        "version": __version__,
        **facts,
        "totals": {
            "runs": sums.runs,
            "stop_reasons": {reason.value: count for reason, count in sorted(reasons.items())},
            "tool_calls": sums.tool_calls,
            "steps": sums.steps,
            "input_tokens": sums.input_tokens,
            "output_tokens": sums.output_tokens,
            "cached_input_tokens": sums.cached_input_tokens,
            "spend_usd": _plain(sums.spend_usd),
            "spend_complete": sums.spend_complete,
        },
        "runs_left_out": dropped,
        "runs": [_run(row) for row in rows],
    }


def _run(row: Row) -> dict[str, Any]:
    outcome = row.outcome
    return {
        "run_id": outcome.run_id,
        "parent_id": row.parent_id,
        "agent": outcome.agent,
        "stop_reason": outcome.stop_reason.value,
        "tool_calls": outcome.tool_calls,
        "steps": outcome.steps,
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_input_tokens": outcome.cached_input_tokens,
        "spend_usd": _plain(outcome.spend_usd),
        "spend_complete": outcome.spend_complete,
        "duration_s": round(outcome.duration_s, 6),
        "findings_total": row.findings,
        "findings": [
            {
                "kind": found.kind,
                "tool": found.tool,
                "repeats": found.repeats,
                "action": found.action,
                "args_hash": found.args_hash,
                "members": list(found.members),
                "error_class": found.error_class,
                "step": found.step,
            }
            for found in outcome.findings
        ],
    }


def _plain(amount: Decimal) -> str:
    """Text, because a float loses cents; without exponent and without the zeros that a sum may end with."""
    return f"{amount.normalize():f}"


def write_report(path: str, content: Mapping[str, Any]) -> None:
    """Write *content* to *path* as JSON, the whole file or nothing of it; straight to a device (``/dev/stdout``).

    Raises:
        OSError: Where it cannot be written.
    """
    text = json.dumps(content, indent=2) + "\n"
    if is_device(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    # Of a link it is the file behind it that is to be replaced.
    target = Path(path).resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def is_device(path: str | os.PathLike[str]) -> bool:
    """True where *path* must be written to and never replaced: a device, a pipe, or a name for an open file."""
    return Path(path).is_relative_to("/dev") or (Path(path).exists() and not Path(path).is_file())


def table(record: Record) -> list[str]:
    """The lines of the table: at most :data:`MAX_ROWS` runs, those that were stopped and the dear ones first."""
    rows, dropped, sums, _ = record.taken()
    if not rows:
        return []
    shown = sorted(rows, key=_worst_first)[:MAX_ROWS]
    cells = [_HEAD, *(_cells(row) for row in shown)]
    if len(rows) > 1:
        count = len(rows) + dropped
        more = f"{count:,} runs" if count == len(shown) else f"{count:,} runs, {len(shown)} shown"
        cells.append(
            (
                more,
                "",
                f"{sums.tool_calls:,}",
                "",
                f"{sums.input_tokens + sums.output_tokens:,}",
                _usd(sums.spend_usd, complete=sums.spend_complete),
                f"{sums.seconds:.2f}",
            )
        )
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells]
    rule = "-" * max(map(_width, lines))
    return [lines[0], rule, *lines[1 : len(shown) + 1], *([rule, lines[-1]] if len(rows) > 1 else [])]


def _worst_first(row: Row) -> tuple[bool, Decimal, int]:
    outcome = row.outcome
    return outcome.stop_reason in _QUIET, -outcome.spend_usd, -outcome.tool_calls


def _cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    repeated = ""
    if outcome.findings:
        worst, more = outcome.findings[0], row.findings - 1
        repeated = f"{_name(worst.tool)} x{worst.repeats}" + (f" +{more}" if more else "")
    return (
        _name(outcome.agent),
        outcome.stop_reason.value,
        f"{outcome.tool_calls:,}",
        repeated,
        f"{outcome.input_tokens + outcome.output_tokens:,}",
        _usd(outcome.spend_usd, complete=outcome.spend_complete),
        f"{outcome.duration_s:.2f}",
    )


def _usd(amount: Decimal, *, complete: bool) -> str:
    return f"{'' if complete else '>= '}{amount:.4f}"


def _name(name: str) -> str:
    """*name* without what a terminal would act on, and not too long."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in name)
    return clean if len(clean) <= MAX_NAME else clean[: MAX_NAME - 3] + "..."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - _width(cell))
        padded.append(cell + gap if place in _LEFT else gap + cell)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns of a terminal that *text* takes."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
