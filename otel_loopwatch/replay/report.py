"""What came of a replay: per run, per source, and against labels."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_loopwatch.replay.readers import Label, Skipped

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Acted", "Played", "Report", "Score", "score"]


class Acted(NamedTuple):
    """A call that the guard would not simply have let through.

    Attributes:
        call_index: Index of the call, from 0.
        action: ``hint``, ``abort`` or ``observe``.
        kind: Kind of the loop, or name of the budget.
        reason: The stop reason that goes with it.
        repeats: The number of this call in the repetition.
    """

    call_index: int
    action: str
    kind: str
    reason: str
    repeats: int


class Played(NamedTuple):
    """One run, played.

    Attributes:
        run_id: Its id.
        source: Where it was recorded.
        outcome: How it ended when it was recorded.
        calls: Calls recorded.
        first_action: The first call that would have been acted on.
        abort: The call at which the run would have been aborted, had the model ignored every hint.
    """

    run_id: str
    source: str
    outcome: str
    calls: int
    first_action: Acted | None
    abort: Acted | None


@dataclass(slots=True)
class Score:
    """One line of the score against labels; those of low confidence are left out.

    Attributes:
        loops: Labelled loops.
        found: Of these, the ones acted on.
        not_loops: Labelled runs without a loop.
        false_alarms: Of these, the ones acted on.
        early: Loops acted on before their first wasted call.
        delays: For each loop found, its index of action less that of its first wasted call; negative where early.
        found_by_kind: For each kind of loop: found, and labelled.
        alarms_by_kind: For each kind of run without a loop: acted on, and labelled.
    """

    loops: int = 0
    found: int = 0
    not_loops: int = 0
    false_alarms: int = 0
    early: int = 0
    delays: list[int] = field(default_factory=list)
    found_by_kind: dict[str, list[int]] = field(default_factory=dict)
    alarms_by_kind: dict[str, list[int]] = field(default_factory=dict)

    @property
    def recall(self) -> float | None:
        """Share of the loops that were acted on; ``None`` without any."""
        return self.found / self.loops if self.loops else None

    @property
    def false_alarm_rate(self) -> float | None:
        """Share of the runs without a loop that were acted on; ``None`` without any."""
        return self.false_alarms / self.not_loops if self.not_loops else None

    @property
    def median_delay(self) -> float | None:
        """Calls wasted before the action, in the median; ``None`` where nothing was found."""
        return statistics.median(self.delays) if self.delays else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = asdict(self)
        del facts["delays"]
        return facts | {
            "recall": self.recall,
            "false_alarm_rate": self.false_alarm_rate,
            "median_delay": self.median_delay,
            "found_by_kind": _counts(self.found_by_kind),
            "alarms_by_kind": _counts(self.alarms_by_kind),
        }


def score(acted: Iterable[tuple[Label, Acted | None]]) -> Score:
    """Set what was acted on against the labels."""
    line = Score()
    for label, action in acted:
        if not label.is_sure:
            continue
        by_kind = (line.found_by_kind if label.is_loop else line.alarms_by_kind).setdefault(label.kind, [0, 0])
        by_kind[0] += action is not None
        by_kind[1] += 1
        if not label.is_loop:
            line.not_loops += 1
            line.false_alarms += action is not None
            continue
        line.loops += 1
        if action is not None and label.first_bad_call is not None:
            delay = action.call_index - label.first_bad_call
            line.found += 1
            line.delays.append(delay)
            line.early += delay < 0
    return line


@dataclass(slots=True)
class _Tally:
    runs: int = 0
    calls: int = 0
    first_action: int = 0
    abort: int = 0


class Report:
    """What the guard would have done to every run that was played.

    Attributes:
        runs: One entry a run, in the order of playing.
        skipped: What could not be read.
        labels: The labels, by run id.
    """

    def __init__(self, labels: Mapping[str, Label], skipped: Sequence[Skipped]) -> None:
        self.labels = labels
        self.skipped = skipped
        self.runs: list[Played] = []

    def add(self, played: Played) -> None:
        """Take in one run."""
        self.runs.append(played)

    @property
    def exit_code(self) -> int:
        """1 where something had to be skipped, else 0."""
        return 1 if self.skipped else 0

    def scores(self) -> dict[str, Score]:
        """The score of the first action and of the abort, over the labelled runs played; empty without labels."""
        if not self.labels:
            return {}
        known = [(self.labels[run.run_id], run) for run in self.runs if run.run_id in self.labels]
        return {
            "first_action": score((label, run.first_action) for label, run in known),
            "abort": score((label, run.abort) for label, run in known),
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON: totals, sources, scores, what was skipped, and every run."""
        return {
            "runs_played": len(self.runs),
            "skipped": [skipped._asdict() for skipped in self.skipped],
            "sources": [
                {"source": source, "outcome": outcome} | asdict(tally) | _shares(tally)
                for (source, outcome), tally in self._tallies().items()
            ],
            "scores": {name: line.as_dict() for name, line in self.scores().items()},
            "runs": [
                run._asdict()
                | {
                    "first_action": run.first_action and run.first_action._asdict(),
                    "abort": run.abort and run.abort._asdict(),
                }
                for run in self.runs
            ],
        }

    def tables(self) -> list[Table]:
        """For people: the share acted on per source and outcome, and the scores where there are labels. Needs rich."""
        scores = self.scores()
        tables = [_sources_table(self._tallies())]
        return [*tables, _scores_table(scores), _kinds_table(scores)] if scores else tables

    def _tallies(self) -> dict[tuple[str, str], _Tally]:
        tallies: dict[tuple[str, str], _Tally] = {}
        for run in self.runs:
            tally = tallies.setdefault((run.source, run.outcome), _Tally())
            tally.runs += 1
            tally.calls += run.calls
            tally.first_action += run.first_action is not None
            tally.abort += run.abort is not None
        return dict(sorted(tallies.items()))


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - only the command line has it

    table = Table(title=title)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _sources_table(tallies: Mapping[tuple[str, str], _Tally]) -> Table:
    table = _table("What the guard would have done", ("source", "outcome"), ("runs", "calls", "first action", "abort"))
    for (source, outcome), tally in tallies.items():
        shares = (tally.first_action / tally.runs, tally.abort / tally.runs)
        table.add_row(source, outcome, str(tally.runs), str(tally.calls), *map(_percent, shares))
    return table


def _scores_table(scores: Mapping[str, Score]) -> Table:
    table = _table(
        "Against the labels, low confidence left out",
        ("line",),
        ("loops", "recall", "no loops", "false alarms", "early", "median delay (calls)"),
    )
    for name, line in scores.items():
        table.add_row(
            name.replace("_", " "),
            str(line.loops),
            _percent(line.recall),
            str(line.not_loops),
            _percent(line.false_alarm_rate),
            str(line.early),
            "-" if line.median_delay is None else f"{line.median_delay:g}",
        )
    return table


def _kinds_table(scores: Mapping[str, Score]) -> Table:
    table = _table(
        "Per kind of label, acted on / labelled", ("label", "kind"), [name.replace("_", " ") for name in scores]
    )
    for label, attribute in (("loop", "found_by_kind"), ("not loop", "alarms_by_kind")):
        per_line = [getattr(line, attribute) for line in scores.values()]
        for kind in sorted(per_line[0]):
            table.add_row(label, kind, *("/".join(map(str, by_kind[kind])) for by_kind in per_line))
    return table


def _shares(tally: _Tally) -> dict[str, float]:
    return {"first_action_share": tally.first_action / tally.runs, "abort_share": tally.abort / tally.runs}


def _counts(by_kind: dict[str, list[int]]) -> dict[str, dict[str, int]]:
    return {kind: {"acted_on": acted, "labelled": labelled} for kind, (acted, labelled) in sorted(by_kind.items())}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
