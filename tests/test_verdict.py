"""What is done about a finding, and the words for it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from otel_loopwatch import verdict
from otel_loopwatch.calls import Breach, Finding, StopReason
from otel_loopwatch.policy import LoopRules, Policy, Rules, ToolRules

FINDING = Finding("repeat", "search", "subject", 4, "f" * 32, members=("search",))


def rules(**loops: object) -> Rules:
    return Policy(loops=LoopRules(**loops)).rules_for("search")


@pytest.mark.parametrize(
    "given, action",
    [
        ({}, "hint"),
        ({"subject": 1}, "hint"),
        ({"subject": 2}, "abort"),
        ({"subject": 3}, "abort"),
        ({"other": 2}, "hint"),
    ],
)
def test_hints_are_counted_by_subject(given: dict[str, int], action: str) -> None:
    assert verdict.decide(FINDING, rules(hints_before_abort=2), given, hinted_this_step=False) == action


@pytest.mark.parametrize("elsewhere, action", [(3, "hint"), (4, "abort"), (5, "abort")])
def test_hints_have_a_ceiling_in_a_run(elsewhere: int, action: str) -> None:
    given = {f"subject {number}": 1 for number in range(elsewhere)}
    assert verdict.decide(FINDING, rules(max_hints=4), given, hinted_this_step=False) == action


def test_the_second_demand_of_one_turn_is_answered_alike() -> None:
    assert verdict.decide(FINDING, rules(hints_before_abort=1), {"subject": 1}, hinted_this_step=True) == "hint"


@pytest.mark.parametrize("action", ["abort", "observe"])
def test_other_actions_are_what_the_rules_say(action: str) -> None:
    assert verdict.decide(FINDING, rules(action=action), {"subject": 9}, hinted_this_step=False) == action


def test_the_tools_own_action_wins() -> None:
    policy = Policy(loops=LoopRules(action="hint"), tools={"search": ToolRules(action="abort")})
    assert verdict.decide(FINDING, policy.rules_for("search"), {}, hinted_this_step=False) == "abort"


def test_observe_mode_disarms_the_tools_own_action() -> None:
    policy = Policy(mode="observe", tools={"search": ToolRules(action="abort")})
    assert verdict.decide(FINDING, policy.rules_for("search"), {}, hinted_this_step=False) == "observe"


def test_b6_the_hint_says_tool_count_and_that_arguments_were_equal() -> None:
    text = verdict.hint_text(FINDING)
    assert text.startswith('[loop-detected] Tool "search" has now been called 4 times with identical arguments.\n')
    assert "different arguments" not in text


def test_b6_the_hint_says_that_only_outcomes_were_equal() -> None:
    text = verdict.hint_text(replace(FINDING, kind="no_progress", args_equal=False, repeats=7))
    assert '"search" has now been called 7 times with different arguments, and the outcome has not changed' in text
    assert "identical" not in text


def test_b6_the_hint_names_the_last_error_class_and_no_cause() -> None:
    text = verdict.hint_text(replace(FINDING, error_class="RateLimited"))
    assert "(last error: RateLimited)" in text
    for guess in ("because", "server", "service", "probably"):
        assert guess not in text.lower()


@pytest.mark.parametrize(
    "kind, fact",
    [
        ("repeat", "called 4 times with identical arguments"),
        ("repeat_changing", "called 4 times in a row with identical arguments, each time with another outcome"),
        ("cycle", '("read", "search") has come 3 times'),
        ("error_streak", "3 calls have failed or been refused"),
        ("no_progress", "with identical arguments, and neither"),
        ("poll_stalled", "its answer has not changed"),
        ("unknown_tool", "is not available and has now been asked for 4 times"),
    ],
)
def test_every_kind_has_words_of_its_own(kind: str, fact: str) -> None:
    text = verdict.hint_text(replace(FINDING, kind=kind, members=("read", "search")))
    assert fact in text
    assert text.startswith(verdict.HINT_MARKER)
    assert "subject" not in text
    assert FINDING.args_hash not in text


def test_the_advice_fits_a_tool_that_does_not_exist() -> None:
    assert "tools that are available" in verdict.hint_text(replace(FINDING, kind="unknown_tool"))
    assert "The call was not made" in verdict.hint_text(FINDING)


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("repeat", StopReason.LOOP_DETECTED),
        ("cycle", StopReason.LOOP_DETECTED),
        ("poll_stalled", StopReason.LOOP_DETECTED),
        ("no_progress", StopReason.NO_PROGRESS),
        ("error_streak", StopReason.NO_PROGRESS),
    ],
)
def test_a4_no_progress_is_a_stop_reason_of_its_own(kind: str, reason: StopReason) -> None:
    trip = verdict.finding_trip(replace(FINDING, kind=kind), "r1")
    assert (trip.stop_reason, trip.run_id) == (reason, "r1")
    assert trip.message.endswith("The run was stopped.")


def test_the_trip_of_a_budget_says_used_and_limit() -> None:
    trip = verdict.breach_trip(Breach("seconds", 5, 5.123456, StopReason.TIME_BUDGET), "r1")
    assert trip.message == "Budget 'seconds' is used up: 5.123 of 5. The run was stopped."
    money = verdict.breach_trip(Breach("spend_usd", Decimal("0.5"), Decimal("0.61"), StopReason.SPEND_BUDGET), "r1")
    assert money.message == "Budget 'spend_usd' is used up: 0.61 of 0.5. The run was stopped."
    assert money.breach is not None
