"""What is a loop, and at which call: each limit from both sides, and the field cases of kinds A and B."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Play, kinds, limits, runs

from otel_loopwatch.calls import Finding, StopReason
from otel_loopwatch.policy import LoopRules, ToolRules


def first(findings: list[Finding | None]) -> int | None:
    """1-based number of the first call that was acted on."""
    return next((number for number, finding in enumerate(findings, start=1) if finding is not None), None)


# --- repeat -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("facts", [{}, {"error": "x"}, {"writes": True}, {"trivial": True}, {"step": 0}])
def test_b8_n_identical_calls_run_and_the_next_is_acted_on(limit, facts):
    play = Play(answer="hint", **limits(max_repeats=limit))
    findings = play.calls(limit + 3, **facts)
    assert kinds(findings) == [None] * limit + ["repeat"] * 3
    assert [finding.repeats for finding in findings if finding] == [limit + 1, limit + 2, limit + 3]
    assert play.bodies == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 10, 30])
@pytest.mark.parametrize("facts", [{}, {"error": "x"}, {"writes": True}, {"error": "x", "writes": True}])
def test_b8_under_the_other_default_limits_too(limit, facts):
    """Whoever sets ``max_repeats`` alone means it for every call that repeats, whichever detector could see it."""
    play = Play(answer="refuse", max_repeats=limit)
    assert first(play.calls(limit + 2, **facts)) == limit + 1


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("results", ["same", "other"])
def test_b8_without_results_n_identical_calls_run_whatever_comes_of_them(limit, results):
    play = Play(answer="hint", compare_results=False, **limits(max_repeats=limit))
    found = [play.call(result="r" if results == "same" else number) for number in range(limit + 2)]
    assert [finding.repeats for finding in found if finding] == [limit + 1, limit + 2]
    assert kinds(found) == [None] * limit + ["repeat"] * 2
    assert play.bodies == limit


def test_a_finding_says_what_repeats():
    play = Play(**limits(max_repeats=1))
    play.call(error="boom")
    finding = play.call(error="boom", step=4)
    assert finding == Finding(
        kind="repeat", tool="t", subject="t:a", repeats=2, args_hash="t:a", members=("t",), error_class="E", step=4
    )
    assert finding.stop_reason is StopReason.LOOP_DETECTED


def test_a1_the_same_empty_answer_again_and_again():
    play = Play(answer="refuse", max_repeats=3)
    assert first(play.calls(6, "list_resources", "x", "[]")) == 4
    assert play.bodies == 3


def test_a_result_that_changes_is_no_repeat():
    play = Play(**limits(max_repeats=2))
    assert kinds([play.call(result=result) for result in "ababab"]) == [None] * 6


def test_a5_a_slow_loop_is_counted_like_a_fast_one():
    play = Play(max_repeats=3)
    found = []
    for number in range(40):
        play._ids = 16 * number  # 16 s apart
        found.append(play.call("search", "x"))
    assert first(found) == 4


@pytest.mark.parametrize("facts", [{"error": "FAILED x"}, {"writes": True}])
def test_a3_an_interleaved_call_does_not_blind(facts):
    play = Play(**limits(max_repeats=3))
    found = []
    for number in range(8):
        found.append(play.call("run_tests", "unit", "FAILED x", **facts))
        assert play.call("read", number, f"body {number}") is None
    assert first(found) == 4


def test_a3_control_other_outcomes_with_edits_between_are_progress():
    play = Play(max_repeats=3)
    found = []
    for number in range(8):
        found.append(play.call("run_tests", "unit", error=f"{number} passed, {8 - number} failed"))
        found.append(play.call("edit", number, f"v{number}", writes=True))
    assert first(found) is None


def reread(limit: int, rereads: int, count: int = 8, **facts) -> int | None:
    """Number of the first repeated read that is acted on, with another call after each."""
    play = Play(**limits(max_repeats=limit, max_rereads=rereads), **facts)
    found = []
    for number in range(count):
        found.append(play.call("read", "a", "text"))
        play.call("other", number, number)
    return first(found)


@pytest.mark.parametrize(("limit", "rereads", "at"), [(1, 3, 4), (2, 3, 4), (2, 5, 6), (3, 3, 4), (5, 3, 6), (2, 1, 3)])
def test_looking_something_up_again_has_a_limit_of_its_own(limit, rereads, at):
    assert reread(limit, rereads) == at


def test_a_limit_set_for_a_tool_is_exact():
    assert reread(2, 5, tools={"read": ToolRules(max_repeats=2)}) == 3


def test_a_reread_that_becomes_a_row_is_a_repeat():
    play = Play(**limits(max_repeats=2, max_rereads=9))
    play.call()
    play.call("other")
    assert kinds(play.calls(3)) == [None, None, "repeat"]


def test_a_write_in_between_starts_the_count_again():
    play = Play(**limits(max_repeats=2, max_rereads=2))
    found = []
    for number in range(5):
        found += play.calls(2)
        found.append(play.call("edit", number, "ok", writes=True))
    assert first(found) is None


def test_b3_verify_after_edit_is_no_loop():
    play = Play(max_repeats=3)
    found = []
    for number in range(5):
        found.append(play.call("read", "a.py", f"rev {number}"))
        found.append(play.call("edit", number, "ok", trivial=True, writes=True))
    assert first(found) is None


def test_b3_reads_that_stay_the_same_in_spite_of_edits_are_found():
    play = Play(max_repeats=3, max_no_progress=6)
    found = []
    for number in range(10):
        found.append(play.call("read", "a.py", "rev 0"))
        assert play.call("edit", number, "ok", trivial=True, writes=True) is None
    assert first(found) == 7
    assert kinds(found)[6] == "no_progress"


def test_c_calculate_the_same_sum_again_is_a_loop_and_other_sums_with_equal_results_are_not():
    again = Play()
    assert first(again.calls(5, "calculate", "2 + 2", "4", trivial=True)) == LoopRules().max_repeats + 1
    others = Play()
    assert first([others.call("calculate", number, "4", trivial=True) for number in range(20)]) is None


def test_b5_throttled_calls_are_no_repeats():
    play = Play(max_repeats=3)
    found = play.calls(4, "ls", "/", error="RateLimited", infra=True)
    found.append(play.call("ls", "/", "a b c"))
    assert first(found) is None
    found = play.calls(3, "ls", "/", "a b c")
    assert kinds(found) == [None, None, "repeat"]


def test_a_permanent_failure_still_counts():
    play = Play(max_repeats=3)
    assert first(play.calls(5, "ls", "/", error="no such file")) == 4


def test_b2_different_parallel_calls_are_no_loop():
    play = Play(max_repeats=3)
    calls = [play.ask("promql", f"q{number}", step=1) for number in range(8)]
    assert [finding for _, _, finding in calls] == [None] * 8


def test_b2_identical_parallel_calls_are_one_repeat():
    play = Play(max_repeats=3)
    found = []
    for step in range(1, 5):
        calls = [play.ask("promql", "same", step=step) for _ in range(8)]
        found.append({finding.repeats if finding else None for _, _, finding in calls})
        for call, _, _ in calls:
            play.settle(call)
    assert found == [{None}, {None}, {None}, {4}]


# --- repeat_changing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["other", "unknown"])
def test_the_same_call_in_a_row_has_a_limit_whatever_comes_of_it(result):
    play = Play(**limits(max_repeats=2, max_repeats_changing=5))
    found = [play.call(result=number if result == "other" else None) for number in range(7)]
    assert kinds(found) == [None] * 5 + ["repeat_changing"] * 2
    assert found[5].repeats == 6


def test_another_call_in_between_ends_the_row():
    play = Play(**limits(max_repeats_changing=3))
    found = []
    for number in range(9):
        found.append(play.call(result=number))
        if number % 3 == 2:
            play.call("other", number, number)
    assert first(found) is None


def test_b1_a_poll_whose_answer_changes_is_left_alone():
    play = Play(max_repeats=3)
    assert first([play.call("check_status", 7, f"{8 * number}%") for number in range(12)]) is None


# --- no_progress of one call ------------------------------------------------------------------------------------------


def with_edits(play: Play, count: int, **facts) -> list[Finding | None]:
    found = []
    for number in range(count):
        found.append(play.call("test", "unit", "2 failed", **facts))
        play.call("edit", (play._ids, number), "done", writes=True)
    return found


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_an_outcome_that_stays_in_spite_of_writes(limit):
    found = with_edits(Play(**limits(max_no_progress=limit)), limit + 1)
    assert kinds(found) == [None] * limit + ["no_progress"]
    assert (found[-1].repeats, found[-1].args_equal) == (limit + 1, True)
    assert found[-1].stop_reason is StopReason.NO_PROGRESS


def test_a_successful_write_may_be_repeated_between_others():
    assert first(with_edits(Play(**limits(max_no_progress=3)), 9, writes=True)) is None


def test_a_failing_write_may_not():
    assert first(with_edits(Play(**limits(max_no_progress=3)), 9, writes=True, error="exists")) == 4


def test_after_a_hint_a_new_edit_earns_one_more_try():
    play = Play(answer="hint", **limits(max_no_progress=3))
    assert kinds(with_edits(play, 8)) == [None] * 3 + ["no_progress", None, "no_progress", None, "no_progress"]


def test_after_a_hint_without_an_edit_there_is_no_further_try():
    play = Play(answer="hint", **limits(max_no_progress=3))
    with_edits(play, 3)
    assert kinds(play.calls(3, "test", "unit", "2 failed")) == ["no_progress"] * 3


# --- cycles -----------------------------------------------------------------------------------------------------------


def around(play: Play, names: str, laps: int, **facts) -> Iterator[Finding | None]:
    for _ in range(laps):
        for name in names:
            yield play.call(name, result=name, **facts)


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdef", "aab", "abac"])
@pytest.mark.parametrize("laps", [2, 3, 4])
def test_a_cycle_is_acted_on_after_its_laps(names, laps):
    play = Play(**limits(cycle_laps=laps))
    found = list(around(play, names, laps + 1))
    assert first(found) == laps * len(names) + 1
    cycle = found[laps * len(names)]
    assert (cycle.kind, cycle.repeats, cycle.members) == ("cycle", laps + 1, tuple(sorted(set(names))))
    assert cycle.args_equal


def test_a_longer_period_than_the_limit_is_none():
    assert first(list(around(Play(**limits(cycle_period=5)), "abcdef", 6))) is None
    assert first(list(around(Play(**limits(cycle_period=6)), "abcdef", 6))) == 19


def test_a2_alternation_is_found_by_call_7_with_both_members():
    play = Play(max_repeats=3)
    found = list(around(play, "ab", 5))
    assert first(found) == 7
    assert found[6].members == ("a", "b")


def test_one_call_alone_is_no_cycle():
    play = Play(**limits())
    assert first([play.call(result="r") for _ in range(20)]) is None


def test_a_cycle_needs_the_same_outcomes():
    play = Play(**limits())
    found = []
    for number in range(8):
        found.append(play.call("a", result=number))
        found.append(play.call("b", result="b"))
    assert first(found) is None


def test_unknown_outcomes_make_no_cycle():
    play = Play(**limits())
    assert first([play.call(name, result=None) for name in "ab" * 8]) is None


def test_without_results_the_calls_alone_make_a_cycle():
    play = Play(compare_results=False, **limits())
    assert first([play.call(name, result=number) for number, name in enumerate("ab" * 8)]) == 7


def test_only_the_call_that_begins_the_next_lap_is_acted_on():
    play = Play(**limits())
    list(around(play, "ab", 3))
    assert play.ask("b")[2] is None
    assert play.ask("c")[2] is None
    assert play.ask("a")[2].kind == "cycle"


def test_a_hinted_call_keeps_the_phase():
    play = Play(answer="hint", **limits())
    found = list(around(play, "ab", 5))
    assert kinds(found) == [None] * 6 + ["cycle"] * 4
    assert len({finding.subject for finding in found if finding}) == 1
    assert [finding.repeats for finding in found if finding] == [4, 4, 5, 5]


@pytest.mark.parametrize("answer", ["hint", "run"])
def test_a6_calls_of_a_turn_that_follow_each_other_are_a_batch_too(answer):
    for turn in ("ab", "ba"):
        play = Play(answer=answer, max_repeats=3)
        found = [[play.call(name, result=name, step=step) for name in turn] for step in range(1, 5)]
        assert [kinds(one) for one in found] == [[None, None]] * 3 + [["cycle", "cycle"]]
        assert found[3][0].subject == found[3][1].subject


def test_a6_only_the_calls_of_the_turn_that_begins_the_next_lap_are_acted_on():
    play = Play(**limits())
    for lap in range(3):
        for name in "ab":
            play.call(name, result=name, step=2 * lap + 1)
        play.call("c", result="c", step=2 * lap + 2)
    assert play.ask("c", step=7)[2] is None
    assert play.ask("a", step=7)[2].members == ("a", "b", "c")
    assert play.ask("b", step=7)[2].members == ("a", "b", "c")


@pytest.mark.parametrize("last", ["ab", "ba"])
def test_a6_a_batch_may_begin_with_the_call_that_the_one_before_ended_with(last):
    play = Play(max_repeats=3)
    for step in range(1, 4):
        for name in "ab":
            play.call(name, result=name, step=step)
    assert play.ask(last[0], step=4)[2].members == ("a", "b")


def test_a_cycle_longer_ago_is_over():
    play = Play(**limits())
    list(around(play, "ab", 3))
    play.call("c")
    assert play.ask("a")[2] is None


@given(st.lists(st.permutations("abc"), min_size=5, max_size=5))
@settings(max_examples=60)
def test_a6_the_whole_batch_repeats_in_any_order(turns):
    play = Play(answer="hint", max_repeats=3)
    found = []
    for step, turn in enumerate(turns, start=1):
        calls = [play.ask(name, step=step) for name in turn]
        for call, _, finding in calls:
            if finding is None:
                play.settle(call, call.tool)
            else:
                play.state.release(call, finding.subject)
        found.append([finding for _, _, finding in calls])
    assert [len([finding for finding in turn if finding]) for turn in found] == [0, 0, 0, 3, 3]
    assert {finding.subject for turn in found for finding in turn if finding} == {found[3][0].subject}
    assert found[3][0].members == ("a", "b", "c")


# --- errors -----------------------------------------------------------------------------------------------------------


def errors(play: Play, signatures: str, tool: str = "fetch") -> list[Finding | None]:
    return [play.call(tool, (play._ids, number), error=signature) for number, signature in enumerate(signatures)]


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_a4_one_tool_failing_in_one_way_with_ever_new_arguments_is_no_progress(limit):
    found = errors(Play(**limits(max_error_streak=limit)), "4" * (limit + 1))
    assert kinds(found) == [None] * limit + ["no_progress"]
    assert (found[-1].repeats, found[-1].args_equal, found[-1].error_class) == (limit + 1, False, "E")
    assert found[-1].stop_reason is StopReason.NO_PROGRESS


def test_a4_by_call_8_under_the_default_limits():
    found = errors(Play(max_repeats=3), "4" * 10)
    assert first(found) == 5
    assert kinds(found)[4] == "no_progress"


@pytest.mark.parametrize("limit", [2, 6])
@pytest.mark.parametrize(("signatures", "kind"), [("x", "no_progress"), ("xy", "error_streak")])
def test_a4_messages_that_quote_the_arguments_have_a_limit_too(limit, signatures, kind):
    play = Play(**limits(max_no_progress=limit))
    found = []
    for number in range(limit + 1):
        error = signatures[number % len(signatures)]
        found.append(play.call("fetch", number, error=error, digest=f"no /x?try={number}"))
    assert kinds(found) == [None] * limit + [kind]
    assert found[-1].repeats == limit + 1


def test_after_a_hint_on_messages_that_quote_another_call_is_tried():
    play = Play(answer="hint", **limits(max_no_progress=3))
    found = [play.call("fetch", number, error="x", digest=str(number)) for number in range(7)]
    assert kinds(found) == [None] * 3 + ["no_progress", None] * 2


def test_two_alternating_errors_are_a_streak():
    found = errors(Play(**limits(max_error_streak=4)), "xyxyx")
    assert kinds(found) == [None] * 4 + ["error_streak"]
    assert found[-1].stop_reason is StopReason.NO_PROGRESS


def test_three_kinds_of_errors_are_none():
    assert first(errors(Play(**limits(max_error_streak=4)), "xyzxyzxyz")) is None


def test_two_tools_that_fail_in_turn_are_a_streak_of_the_run():
    play = Play(**limits(max_error_streak=4))
    found = [play.call(tool, number, error="x") for number, tool in enumerate("ababa")]
    assert kinds(found) == [None] * 4 + ["error_streak"]
    assert found[-1].members == ("a",)
    assert play.ask("b", "new")[2].subject == found[-1].subject


def test_a_tool_that_took_no_part_in_the_errors_is_let_through():
    play = Play(**limits(max_error_streak=4))
    errors(play, "xxxx")
    assert play.ask("call_a_human")[2] is None


def test_a_success_of_another_tool_does_not_hide_a_failing_one():
    play = Play(**limits(max_error_streak=4))
    found = []
    for number in range(6):
        found.append(play.call("fetch", number, error="404"))
        play.call("think", number, number)
    assert first(found) == 5


def test_after_a_hint_another_call_is_tried_before_the_next_hint():
    play = Play(answer="hint", **limits(max_error_streak=3))
    found = errors(play, "x" * 9)
    assert kinds(found) == [None] * 3 + ["no_progress", None] * 3
    assert [finding.repeats for finding in found if finding] == [4, 6, 8]


def test_after_a_hint_a_call_that_is_known_to_fail_is_not():
    play = Play(answer="hint", **limits(max_error_streak=3))
    for number in range(3):
        play.call("fetch", number, error="x")
    assert kinds([play.call("fetch", 0) for _ in range(3)]) == ["no_progress"] * 3


def test_after_a_hint_of_the_run_another_call_is_tried():
    play = Play(answer="hint", **limits(max_error_streak=4))
    found = [play.call(tool, number, error="x") for number, tool in enumerate("abababab")]
    assert kinds(found) == [None] * 4 + ["error_streak", None] * 2


# --- the same answer to other arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_the_same_answer_to_other_arguments_is_no_progress(limit):
    play = Play(**limits(max_no_progress=limit))
    found = [play.call("search", number, "no matches") for number in range(limit + 1)]
    assert kinds(found) == [None] * limit + ["no_progress"]
    assert (found[-1].repeats, found[-1].args_equal) == (limit + 1, False)


def test_b4_many_actions_through_one_tool_are_no_loop():
    play = Play(max_repeats=3)
    assert first([play.call("call_action", f"a{number}", "ok", trivial=True) for number in range(20)]) is None


@pytest.mark.parametrize("facts", [{"writes": True}, {"trivial": True}])
def test_healthy_writes_and_short_answers_are_no_evidence(facts):
    play = Play()
    assert first([play.call("save", number, "saved", **facts) for number in range(20)]) is None


def test_a_write_is_let_through_after_equal_answers():
    play = Play(**limits(max_no_progress=3))
    for number in range(3):
        play.call("bash", number, "no matches")
    assert play.ask("bash", "rm", writes=True)[2] is None
    assert play.ask("bash", "ls")[2].kind == "no_progress"


def test_another_answer_starts_the_count_again():
    play = Play(**limits(max_no_progress=3))
    found = [play.call("search", number, "none" if number % 3 else number) for number in range(12)]
    assert first(found) is None


def test_after_a_hint_on_equal_answers_they_have_to_double():
    play = Play(answer="hint", **limits(max_no_progress=3))
    found = [play.call("search", number, "no matches") for number in range(16)]
    assert kinds(found) == [None] * 3 + ["no_progress"] + [None] * 3 + ["no_progress"] + [None] * 6 + [
        "no_progress",
        None,
    ]
    assert [finding.repeats for finding in found if finding] == [4, 8, 15]


# --- infrastructure, polls, unknown tools, exempt ones ----------------------------------------------------------------


def test_errors_of_the_infrastructure_have_a_limit_a_call():
    play = Play(**limits(max_infra_errors=3))
    found = play.calls(5, error="429", infra=True)
    assert kinds(found) == [None] * 3 + ["error_streak"] * 2
    assert (found[3].repeats, found[3].subject, found[3].args_equal) == (4, "t:a", True)


def test_errors_of_the_infrastructure_have_a_limit_a_tool():
    play = Play(**limits(max_infra_errors=3))
    found = [play.call(args=number, error="429", infra=True) for number in range(4)]
    assert kinds(found) == [None] * 3 + ["error_streak"]
    assert (found[3].repeats, found[3].args_equal) == (4, False)


def test_after_a_hint_on_the_infrastructure_the_tool_is_tried_again():
    play = Play(answer="hint", **limits(max_infra_errors=3))
    found = [play.call(args=number, error="429", infra=True) for number in range(7)]
    assert kinds(found) == [None] * 3 + ["error_streak", None] * 2


def test_without_results_the_infrastructure_still_has_its_limit():
    play = Play(compare_results=False, **limits(max_infra_errors=3))
    assert kinds(play.calls(4, error="429", infra=True)) == [None] * 3 + ["error_streak"]


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_a_poll_is_judged_by_its_unchanged_answers(limit):
    play = Play(**limits(max_poll_repeats=limit, max_repeats=1, max_repeats_changing=1))
    found = play.calls(limit + 1, "job", kind="poll")
    assert kinds(found) == [None] * limit + ["poll_stalled"]
    assert found[-1].repeats == limit + 1


def test_a_poll_whose_answer_changes_starts_again():
    play = Play(**limits(max_poll_repeats=3, max_repeats=1))
    assert first([play.call("job", result=number // 2, kind="poll") for number in range(12)]) is None


def test_a_poll_takes_the_limit_set_for_it():
    play = Play(tools={"job": ToolRules(kind="poll", max_repeats=4)}, **limits(max_poll_repeats=2))
    assert first(play.calls(6, "job", kind="poll")) == 5


def test_writes_do_not_excuse_a_stalled_poll():
    play = Play(**limits(max_poll_repeats=3))
    found = []
    for number in range(5):
        found.append(play.call("job", kind="poll"))
        play.call("edit", number, writes=True)
    assert first(found) == 4


def test_a_poll_still_has_the_limit_of_the_infrastructure():
    play = Play(**limits(max_infra_errors=2))
    assert kinds(play.calls(3, "job", kind="poll", error="503", infra=True)) == [None, None, "error_streak"]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_tool_that_does_not_exist_may_be_asked_for_so_often(limit):
    play = Play(answer="hint", **limits(max_repeats=limit))
    found = [play.call("made_up", number, known=False, error="denied") for number in range(limit + 2)]
    assert kinds(found) == [None] * limit + ["unknown_tool"] * 2
    assert [finding.repeats for finding in found if finding] == [limit + 1, limit + 2]
    assert len({finding.subject for finding in found if finding}) == 1


def test_an_exempt_tool_is_never_found():
    play = Play(tools={"t": ToolRules(exempt=True)}, max_repeats=1)
    assert first(play.calls(30)) is None


# --- in general -------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 3))
@settings(max_examples=100)
def test_calls_that_all_differ_are_never_a_loop(writes, turns):
    play = Play()
    found = [
        play.call(f"tool {number % 3}", number, number, writes=write, step=number // 3 if turns else 0)
        for number, write in enumerate(writes)
    ]
    assert first(found) is None


@given(runs)
@settings(max_examples=100)
def test_a_finding_counts_from_its_limit(log):
    play = Play()
    for one in log:
        finding = play.call(one.tool, one.args, one.result, writes=one.writes, **({"error": "x"} if one.error else {}))
        if finding is not None:
            assert finding.repeats > LoopRules().max_repeats
            assert finding.action == "observe"
            assert finding.tool in finding.members


@given(runs, st.sampled_from(["hint", "refuse", "run"]))
@settings(max_examples=100)
def test_the_verdict_on_a_call_depends_on_the_calls_before_it_alone(log, answer):
    play, again = Play(answer=answer), Play(answer=answer)
    for one in log:
        facts = {"writes": one.writes} | ({"error": "x"} if one.error else {})
        assert play.call(one.tool, one.args, one.result, **facts) == again.call(one.tool, one.args, one.result, **facts)
