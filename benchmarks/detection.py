"""The tables of docs/defaults.md: recorded runs replayed under one changed limit at a time.

    python benchmarks/detection.py --labels labels.jsonl runs/*.jsonl.gz
    python benchmarks/detection.py --labels labels.jsonl --rule max_repeats=3 --rule max_no_progress=5 runs/*.jsonl.gz

Each line takes as long as one replay (5,210 runs: some 6 s).
"""

from __future__ import annotations

import argparse
import statistics
import sys

from otel_loopwatch.policy import LoopRules, Policy
from otel_loopwatch.replay import Report, play, read_labels, read_runs

RULES = [
    "max_repeats=1",
    "max_repeats=3",
    "max_repeats=4",
    "max_rereads=2",
    "max_rereads=4",
    "max_rereads=8",
    "max_repeats_changing=5",
    "max_repeats_changing=1000",
    "max_error_streak=2",
    "max_error_streak=3",
    "max_error_streak=5",
    "max_no_progress=3",
    "max_no_progress=4",
    "max_no_progress=5",
    "max_no_progress=8",
    "max_no_progress=1000",
    "cycle_laps=2",
    "cycle_laps=4",
    "hints_before_abort=1",
    "hints_before_abort=3",
    "compare_results=0",
    "compare_results=0,max_repeats=3",
]


def rules(text: str) -> LoopRules:
    """The default rules with ``name=number[,name=number]`` changed."""
    changed = dict(part.split("=") for part in text.split(",")) if text else {}
    return LoopRules(
        **{name: value != "0" if name == "compare_results" else int(value) for name, value in changed.items()}
    )


def line(name: str, report: Report) -> str:
    first, abort = report.scores()["first_action"], report.scores()["abort"]
    delay = f"{first.median_delay:g} / {statistics.mean(first.delays):.1f}" if first.delays else "-"
    solved = sum(run.outcome == "success" and run.first_action is not None for run in report.runs)
    return (
        f"| {name} | {first.recall:.3f} | {first.false_alarms} | {first.early} | {delay} "
        f"| {abort.recall:.2f} | {abort.false_alarms} | {solved} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--labels", required=True)
    parser.add_argument("--rule", action="append", help="one line of the table (default: all of docs/defaults.md)")
    asked = parser.parse_args()
    skipped = []
    recorded = list(read_runs(asked.files, on_skip=skipped.append))
    labels = read_labels(asked.labels, on_skip=skipped.append)
    print("| | recall | false alarms | early | delay | abort: recall | abort: false alarms | solved |")
    print("|---|---|---|---|---|---|---|---|")
    for text in ("", *(asked.rule or RULES)):
        report = Report(labels, skipped)
        policy = Policy(loops=rules(text))
        for run in recorded:
            report.add(play(run, policy))
        print(line(f"`{text}`" if text else "defaults", report), flush=True)
    for one in skipped:
        print(one, file=sys.stderr)
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
