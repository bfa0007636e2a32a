"""The machine-readable call sequences of the field cases (tests/data/traces.json), played through a Run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_loopwatch.calls import Finding, Settled, ToolCall
from otel_loopwatch.fingerprint import fingerprint, looks_like_write
from otel_loopwatch.fingerprint.digest import error_digest, result_digest
from otel_loopwatch.fingerprint.error_kinds import error_kind
from otel_loopwatch.policy import LoopRules, Policy
from otel_loopwatch.run import Run
from otel_loopwatch.testing import FakeClock

TRACES = {
    trace["id"]: trace for trace in json.loads((Path(__file__).parent / "data" / "traces.json").read_text())["traces"]
}
KINDS = {"pingpong": "cycle"}
"""The cases' word for what is a kind of ours."""


class ToolFailedError(Exception):
    pass


class Outcome:
    """What became of one trace."""

    def __init__(self) -> None:
        self.bodies = 0
        self.found: list[tuple[int, int, Finding]] = []
        self.events = 0
        self.tool_calls = 0

    @property
    def first(self) -> tuple[int, int, Finding]:
        return self.found[0]


def played(trace: dict[str, Any], **loops: Any) -> Outcome:
    """Play *trace*; calls of one turn are admitted together and settled afterwards, as a batch is."""
    policy = trace["policy"]
    rules = LoopRules(**({"max_repeats": policy["max_repeats"], "action": policy["action"]} | loops))
    outcome = Outcome()
    clock = FakeClock()
    began = clock.now
    run = Run(trace["id"], policy=Policy(loops=rules), clock=clock, silent=True)
    turns: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for number, call in enumerate(trace["calls"], start=1):
        turns.setdefault(call["turn"], []).append((number, call))
    told: set[tuple[str, str]] = set()
    for turn, batch in enumerate(turns.values(), start=1):
        run.derived_step()
        admitted = []
        for number, call in batch:
            clock.now = began + call["t"]
            asked = ToolCall(
                run.next_call_id(),
                call["tool"],
                fingerprint(call["tool"], call["args"]),
                clock(),
                run.current_step,
                writes=looks_like_write(call["tool"], call["args"]),
            )
            verdict = run.admit(asked, run.policy.rules_for(call["tool"]))
            if verdict.finding is not None:
                outcome.found.append((number, turn, verdict.finding))
                told.add((verdict.finding.kind, verdict.finding.subject))
                outcome.events += verdict.new
            if verdict.action in ("allow", "observe"):
                admitted.append((asked, call))
        for asked, call in admitted:
            outcome.bodies += 1
            run.settle(asked, settled(call, policy.get("infra_errors", ())))
    outcome.tool_calls = run.used().tool_calls
    assert outcome.events == len(told)
    run.close()
    return outcome


def settled(call: dict[str, Any], infra: tuple[str, ...]) -> Settled:
    if call["ok"]:
        digest = result_digest(call["result"])
        return Settled(digest.digest, trivial=digest.trivial)
    error = ToolFailedError(call["result"])
    failed = error_digest(error)
    return Settled(failed.signature, error_kind(error), failed.error_class, call["result"] in infra)


def test_every_trace_is_here():
    assert set(TRACES) == {trace for case in (FIRES, STAYS_QUIET) for trace in case} | {"B-2-same"}


FIRES = ("A-1", "A-2", "A-3", "A-4", "A-5", "A-6", "B-8-1", "B-8-2", "B-8-3")
STAYS_QUIET = ("A-3-control", "B-1", "B-2", "B-3", "B-4", "B-5")


@pytest.mark.parametrize("name", FIRES)
def test_a_trace_that_is_a_loop_is_found_in_time(name):
    trace = TRACES[name]
    expect = trace["expect"]
    outcome = played(trace)
    number, turn, finding = outcome.first
    assert number <= expect.get("by_call", number)
    assert turn <= expect.get("by_turn", turn)
    assert finding.tool == expect.get("tool", finding.tool)
    kinds = expect.get("kind", finding.kind).split("|")
    assert finding.kind in {KINDS.get(kind, kind) for kind in kinds}
    assert outcome.bodies == expect.get("bodies_run", outcome.bodies)
    assert len(outcome.found) == 1, "an aborted run refuses with its trip, and finds nothing more"


@pytest.mark.parametrize("name", STAYS_QUIET)
def test_a_trace_that_is_no_loop_is_left_alone(name):
    trace = TRACES[name]
    outcome = played(trace)
    assert outcome.found == []
    assert (
        outcome.bodies == outcome.tool_calls == len(trace["calls"]) == trace["expect"].get("tool_calls", outcome.bodies)
    )


@pytest.mark.parametrize("name", STAYS_QUIET)
def test_the_default_policy_leaves_them_alone_too(name):
    assert played(TRACES[name], max_repeats=LoopRules().max_repeats).found == []


def test_b2_same_eight_identical_calls_of_one_turn_are_one_repeat_and_eight_calls():
    outcome = played(TRACES["B-2-same"], max_repeats=TRACES["B-2-same"]["expect"]["turn_streak_max"])
    assert outcome.found == []
    assert outcome.tool_calls == outcome.bodies == TRACES["B-2-same"]["expect"]["tool_calls"]


@pytest.mark.parametrize("action", ["hint", "observe"])
def test_a6_the_batch_is_found_once_a_turn_and_names_the_set(action):
    outcome = played(TRACES["A-6"], action=action)
    number, turn, finding = outcome.first
    assert (turn, finding.kind, finding.members) == (4, "cycle", ("a", "b"))
    assert number == 7
    assert {one.subject for _, _, one in outcome.found} == {finding.subject}
    assert outcome.events == 1


def test_a2_both_members_are_named():
    assert played(TRACES["A-2"]).first[2].members == ("lookup", "search")


def test_a9_a_model_that_ignores_every_hint_is_stopped():
    trace = TRACES["A-5"] | {"calls": [TRACES["A-5"]["calls"][0] | {"t": n, "turn": n} for n in range(200)]}
    outcome = played(trace, action="hint", hints_before_abort=2)
    assert outcome.bodies == 3
    assert [finding.action for _, _, finding in outcome.found] == ["hint", "hint", "abort"]
    assert [finding.repeats for _, _, finding in outcome.found] == [4, 5, 6]
