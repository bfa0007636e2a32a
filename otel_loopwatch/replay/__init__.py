"""Recorded runs, played through the same detectors, budgets and policy as live ones.

::

    from otel_loopwatch.replay import replay

    report = replay(["runs.jsonl.gz"], Policy.load("loopwatch.yaml"), labels="labels.jsonl")
    report.as_dict()  # or rich.print(*report.tables())
    report.skipped  # broken lines: everything else was scored all the same

Replay answers what the guard *would have* done: the recorded model saw none of its hints and went on regardless.
"""

from __future__ import annotations

from otel_loopwatch.replay.backtest import Acted, Played, play, replay
from otel_loopwatch.replay.readers import Label, RecordedCall, RecordedRun, Skipped, read_labels, read_runs
from otel_loopwatch.replay.report import Report, Score

__all__ = [
    "Acted",
    "Label",
    "Played",
    "RecordedCall",
    "RecordedRun",
    "Report",
    "Score",
    "Skipped",
    "play",
    "read_labels",
    "read_runs",
    "replay",
]
