"""Recorded runs: reading them, playing them, and what is said about it."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys

import pytest
from rich.console import Console

from otel_loopwatch import run as run_module
from otel_loopwatch.policy import Budgets, LoopRules, Policy, ToolRules
from otel_loopwatch.replay import (
    Label,
    RecordedCall,
    RecordedRun,
    Report,
    Skipped,
    play,
    read_labels,
    read_runs,
    replay,
)
from otel_loopwatch.replay.report import Acted, Played, score


def call(tool="search", args=None, result="nothing was found here", **facts):
    return {"tool": tool, "args": args or {"q": "x"}, "result": result, "error": False} | facts


def record(run_id="r1", calls=(), **facts):
    return {"run_id": run_id, "source": "s", "outcome": "success", "calls": list(calls)} | facts


def recorded(calls, **facts):
    return RecordedRun("r1", "s", "success", tuple(RecordedCall(**(call(**one) | facts)) for one in calls))


def write(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def read(*files):
    skipped = []
    return list(read_runs(files, on_skip=skipped.append)), skipped


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_run_is_read_field_by_field(tmp_path):
    one = record(calls=[call(step=3, ts=12.5, tokens=40, i=0, result_sha="-"), call(args=None, error=True)])
    runs, skipped = read(write(tmp_path / "runs.jsonl", [one]))
    assert skipped == []
    assert runs == [
        RecordedRun(
            "r1",
            "s",
            "success",
            (
                RecordedCall("search", {"q": "x"}, "nothing was found here", error=False, step=3, ts=12.5, tokens=40),
                RecordedCall("search", {"q": "x"}, "nothing was found here", error=True),
            ),
        )
    ]


def test_a_call_without_arguments_is_one(tmp_path):
    one = record(calls=[call() | {"args": None}])
    assert read(write(tmp_path / "a", [one]))[0][0].calls[0].args == {}


@pytest.mark.parametrize("name", ["runs.jsonl.gz", "runs.jsonl"])
def test_compressed_files_are_known_by_their_content(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(json.dumps(record()).encode()))
    assert [run.run_id for run in read(path)[0]] == ["r1"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_a_file_like_any_other(pack):
    # What a shell makes of `loopwatch replay <(zcat runs.jsonl.gz)`.
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pack(json.dumps(record()).encode()))
        read_bytes, skipped = [], []
        runs = list(read_runs([f"/dev/fd/{reading}"], on_skip=skipped.append, on_bytes=read_bytes.append))
    finally:
        os.close(reading)
    assert ([run.run_id for run in runs], skipped, read_bytes) == (["r1"], [], [])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_dash_is_the_standard_input(monkeypatch, pack):
    data = io.BufferedReader(io.BytesIO(pack(json.dumps(record()).encode())))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    runs, skipped = read("-")
    assert ([run.run_id for run in runs], skipped) == (["r1"], [])


def test_files_are_read_as_a_stream(tmp_path):
    path = write(tmp_path / "runs.jsonl", [record("r1"), record("r2")])
    runs = read_runs([path, tmp_path / "not there"], on_skip=pytest.fail)
    assert [next(runs).run_id, next(runs).run_id] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (json.dumps({"run_id": "r"}).encode(), "calls is missing"),
        (json.dumps(record(calls=[]) | {"calls": {}}).encode(), "calls is not a list"),
        (json.dumps(record() | {"run_id": 7}).encode(), "run_id is not a string"),
        (json.dumps({key: value for key, value in record().items() if key != "source"}).encode(), "source is missing"),
        (
            json.dumps({key: value for key, value in record().items() if key != "outcome"}).encode(),
            "outcome is missing",
        ),
        (json.dumps(record(calls=["x"])).encode(), "calls[0] is not a JSON object"),
        (json.dumps(record(calls=[call(), {"tool": "t"}])).encode(), "calls[1].args is missing"),
        (json.dumps(record(calls=[{"tool": "t", "args": {}}])).encode(), "calls[0].result is missing"),
        (json.dumps(record(calls=[call() | {"args": "x"}])).encode(), "calls[0].args is not a JSON object"),
        (json.dumps(record(calls=[{"args": {}, "result": ""}])).encode(), "calls[0].tool is missing"),
        (json.dumps(record(calls=[call(error="yes")])).encode(), "calls[0].error is not a boolean"),
        (json.dumps(record(calls=[call(step=-1)])).encode(), "calls[0].step is not a number >= 0"),
        (json.dumps(record(calls=[call(ts=True)])).encode(), "calls[0].ts is not a number >= 0"),
        (json.dumps(record(calls=[call(tokens=float("nan"))])).encode(), "calls[0].tokens is not a number >= 0"),
    ],
)
def test_a_broken_line_is_reported_and_skipped(tmp_path, line, reason):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(
        b"\n".join([json.dumps(record("before")).encode(), line, b"", json.dumps(record("after")).encode()])
    )
    runs, skipped = read(path)
    assert [run.run_id for run in runs] == ["before", "after"]
    assert skipped == [Skipped(str(path), 2, reason)]
    assert str(skipped[0]) == f"{path}:2: {reason}"


def test_a_truncated_file_is_scored_up_to_its_break(tmp_path):
    # Random ids, so that the whole does not fit into one block of the compressor.
    lines = b"".join(
        json.dumps(record(f"r{n}", [call(args={"n": pow(7, n, 10**30)})])).encode() + b"\n" for n in range(9000)
    )
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-40_000])
    good = write(tmp_path / "good.jsonl", [record("good")])
    runs, skipped = read(path, good)
    assert len(runs) > 100
    assert runs[-1].run_id == "good"
    assert [(one.file, one.line) for one in skipped] == [(str(path), len(runs))]
    assert "breaks off" in skipped[0].reason


def test_garbage_behind_the_magic_number_is_reported(tmp_path):
    path = tmp_path / "runs.gz"
    path.write_bytes(b"\x1f\x8b garbage")
    runs, skipped = read(path)
    assert (runs, [(one.file, one.line) for one in skipped]) == ([], [(str(path), 1)])


def test_a_file_that_is_not_there_is_reported(tmp_path):
    good = write(tmp_path / "good.jsonl", [record("good")])
    runs, skipped = read(tmp_path / "missing", tmp_path, good)
    assert [run.run_id for run in runs] == ["good"]
    assert [(one.file, one.line) for one in skipped] == [(str(tmp_path / "missing"), 0), (str(tmp_path), 0)]
    assert str(skipped[0]) == f"{tmp_path / 'missing'}: cannot be read (No such file or directory)"


def test_progress_is_told_in_bytes_of_the_file(tmp_path):
    path = write(tmp_path / "runs.jsonl", [record(str(number)) for number in range(5)])
    told = []
    list(read_runs([path], on_skip=pytest.fail, on_bytes=told.append))
    assert sum(told) == path.stat().st_size


def label(run_id="r1", **facts):
    return {"run_id": run_id, "label": "loop", "kind": "identical_retry", "first_bad_call_index": 1} | facts


def test_labels_are_read(tmp_path):
    path = write(
        tmp_path / "labels.jsonl",
        [
            label("a", confidence="low"),
            label("b", label="not_loop", kind="normal", first_bad_call_index=None),
            label("c", label="perhaps"),
            label("d", first_bad_call_index=None),
        ],
    )
    skipped = []
    assert read_labels(path, on_skip=skipped.append) == {
        "a": Label("a", is_loop=True, kind="identical_retry", first_bad_call=1, is_sure=False),
        "b": Label("b", is_loop=False, kind="normal", first_bad_call=None),
    }
    assert [(one.line, one.reason) for one in skipped] == [
        (3, "label is neither loop nor not_loop"),
        (4, "first_bad_call_index of a loop is missing"),
    ]


# --- playing ----------------------------------------------------------------------------------------------------------


def test_a_loop_is_hinted_then_aborted_though_the_recorded_model_went_on():
    limit = LoopRules().max_repeats
    played = play(recorded([{}] * 10), Policy())
    assert played == Played(
        "r1",
        "s",
        "success",
        10,
        Acted(limit, "hint", "repeat", "loop_detected", limit + 1),
        Acted(limit + 2, "abort", "repeat", "loop_detected", limit + 3),
    )


def test_a_healthy_run_is_left_alone():
    calls = [{"args": {"q": number}, "result": f"{chr(97 + number)} says something new"} for number in range(30)]
    assert play(recorded(calls), Policy())[4:] == (None, None)


def test_a_budget_that_would_have_stopped_it_is_named():
    calls = [{"args": {"q": number}, "result": f"{'x' * number} new"} for number in range(9)]
    played = play(recorded(calls), Policy(budgets=Budgets(max_tool_calls=4)))
    assert played.first_action == played.abort == Acted(4, "abort", "tool_calls", "tool_call_budget", 1)


@pytest.mark.parametrize(
    ("budgets", "facts", "at"),
    [
        (Budgets(max_seconds=3), [{}] * 9, 3),
        (Budgets(max_seconds=30), [{"ts": 1_000.0 + 10 * number} for number in range(9)], 3),
        (Budgets(max_seconds=30), [{"ts": 1_000.0 - number} for number in range(9)], None),
        (Budgets(max_tokens=100), [{"tokens": 30}] * 9, 4),
        (Budgets(max_steps=3), [{"step": number // 2} for number in range(9)], 6),
    ],
)
def test_time_tokens_and_turns_are_those_of_the_recording(budgets, facts, at):
    calls = [{"args": {"q": number}, "result": f"{'x' * number} new"} | one for number, one in enumerate(facts)]
    abort = play(recorded(calls), Policy(budgets=budgets)).abort
    assert (abort and abort.call_index) == at


def test_rules_of_a_tool_hold():
    calls = [{}] * 8
    assert play(recorded(calls), Policy(tools={"search": ToolRules(exempt=True)})).first_action is None
    assert play(recorded(calls), Policy(tools={"search": ToolRules(max_repeats=5)})).first_action.call_index == 5
    poll = play(recorded(calls), Policy(tools={"search": ToolRules(kind="poll", max_repeats=4)})).first_action
    assert (poll.call_index, poll.kind) == (4, "poll_stalled")


def test_a_declared_write_opens_an_epoch():
    calls = [{"tool": "t", "args": {"n": number}} if number % 2 else {} for number in range(8)]
    loops = LoopRules(max_repeats=2, max_rereads=2, max_no_progress=50)
    assert play(recorded(calls), Policy(loops=loops, tools={"t": ToolRules(kind="write")})).first_action is None
    assert play(recorded(calls), Policy(loops=loops, tools={"t": ToolRules(kind="read")})).first_action is not None


def test_a_tool_that_the_policy_does_not_allow_is_unknown():
    played = play(recorded([{"args": {"q": number}} for number in range(9)]), Policy(deny=("search",)))
    assert played.first_action.kind == "unknown_tool"


def test_recorded_errors_are_errors():
    calls = [{"args": {"q": number}, "result": "404 page not found", "error": True} for number in range(9)]
    first = play(recorded(calls), Policy()).first_action
    assert (first.call_index, first.kind, first.reason) == (LoopRules().max_error_streak, "no_progress", "no_progress")


def test_an_observing_policy_says_what_it_sees_and_stops_nothing():
    played = play(recorded([{}] * 9), Policy(mode="observe"))
    assert (played.first_action.action, played.abort) == ("observe", None)


def test_replay_leaves_no_run_open(tmp_path):
    replay([write(tmp_path / "runs.jsonl", [record(calls=[call()] * 9)])])
    assert run_module.open_runs() == ()


# --- reporting --------------------------------------------------------------------------------------------------------


def acted(index):
    return Acted(index, "hint", "repeat", "loop_detected", 3)


def test_the_score_counts_loops_alarms_and_delays():
    def loop(first, kind="retry", **facts):
        return Label("x", is_loop=True, kind=kind, first_bad_call=first, **facts)

    fine = Label("y", is_loop=False, kind="normal", first_bad_call=None)
    line = score(
        [
            (loop(4), acted(4)),
            (loop(4), acted(7)),
            (loop(4, kind="cycle"), acted(3)),
            (loop(4), None),
            (loop(4, is_sure=False), None),
            (fine, acted(2)),
            (fine, None),
            (fine, None),
            (fine, None),
        ]
    )
    assert (line.loops, line.found, line.recall, line.early, line.median_delay) == (4, 3, 0.75, 1, 0)
    assert (line.not_loops, line.false_alarms, line.false_alarm_rate) == (4, 1, 0.25)
    assert line.found_by_kind == {"retry": [2, 3], "cycle": [1, 1]}
    assert line.alarms_by_kind == {"normal": [1, 4]}
    assert line.as_dict()["alarms_by_kind"] == {"normal": {"acted_on": 1, "labelled": 4}}


def test_the_score_of_nothing_is_unknown():
    line = score([])
    assert (line.recall, line.false_alarm_rate, line.median_delay) == (None, None, None)


@pytest.fixture
def report(tmp_path):
    runs = write(
        tmp_path / "runs.jsonl",
        [
            record("loop", [call()] * 9, outcome="failure"),
            record("fine", [call()], outcome="success"),
            record("other", [call()] * 3, outcome="success"),
        ],
    )
    with runs.open("a") as file:
        file.write("broken\n")
    labels = write(
        tmp_path / "labels.jsonl",
        [label("loop"), label("fine", label="not_loop", kind="normal"), label("elsewhere")],
    )
    return replay([runs], labels=labels)


def test_a_replay_tells_every_run_as_it_is_played(tmp_path):
    told = []
    report = replay([write(tmp_path / "r", [record("a"), record("b")])], on_run=told.append)
    assert [played.run_id for played in told] == ["a", "b"]
    assert (report.runs, report.exit_code, report.scores()) == (told, 0, {})


def test_a_report_is_json(report):
    said = json.loads(json.dumps(report.as_dict()))
    assert said["runs_played"] == 3
    assert report.exit_code == 1
    assert [one["line"] for one in said["skipped"]] == [4]
    assert said["sources"] == [
        {
            "source": "s",
            "outcome": "failure",
            "runs": 1,
            "calls": 9,
            "first_action": 1,
            "abort": 1,
            "first_action_share": 1.0,
            "abort_share": 1.0,
        },
        {
            "source": "s",
            "outcome": "success",
            "runs": 2,
            "calls": 4,
            "first_action": 1,
            "abort": 0,
            "first_action_share": 0.5,
            "abort_share": 0.0,
        },
    ]
    assert said["runs"][0]["first_action"]["kind"] == "repeat"
    assert said["runs"][1]["first_action"] is None
    assert said["scores"]["first_action"]["recall"] == 1.0
    assert said["scores"]["first_action"]["median_delay"] == 1
    assert said["scores"]["abort"]["median_delay"] == 3


def printed(report):
    console = Console(width=120, file=io.StringIO())
    console.print(*report.tables())
    return console.file.getvalue()


def test_a_report_is_a_table(report):
    text = printed(report)
    assert "100.0 %" in text
    assert "identical_retry" in text
    assert "1/1" in text


def test_without_labels_there_is_one_table(report):
    bare = Report({}, [])
    for one in report.runs:
        bare.add(one)
    assert len(bare.tables()) == 1


def test_scores_without_an_action_have_a_dash(tmp_path):
    runs = write(tmp_path / "runs.jsonl", [record("fine", [call()])])
    labels = write(tmp_path / "labels.jsonl", [label("fine", label="not_loop", kind="normal")])
    report = replay([runs], labels=labels)
    assert report.scores()["first_action"].recall is None
    assert printed(report).count(" - ") >= 2


@pytest.mark.parametrize("on_unpriced", ["warn", "estimate", "stop"])
def test_tokens_of_a_model_that_no_recording_names_cost_nothing(on_unpriced):
    limited = Policy(budgets=Budgets(max_spend_usd=1, on_unpriced=on_unpriced))
    calls = [{"args": {"q": str(number)}, "result": f"answer {number}"} for number in range(9)]
    assert play(recorded(calls, tokens=10**6), limited).abort is None
