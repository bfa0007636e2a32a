"""The state of one run: rounds, epochs, the sequence, streaks, bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Made, Play, limits, runs

from otel_loopwatch import run_state
from otel_loopwatch.calls import Settled, ToolCall
from otel_loopwatch.history import QUIET, Entry, Streak
from otel_loopwatch.policy import ToolRules
from otel_loopwatch.run_state import RunState


def test_the_first_call_finds_nothing():
    call, seen, _ = Play().ask()
    assert seen.entry == Entry()
    assert (seen.tool_calls, seen.hints, seen.duplicate, seen.window, seen.streaks) == (1, {}, False, (), QUIET)
    assert call.id == "c1"


def test_same_outcome_is_counted_and_another_one_starts_again():
    play = Play(**limits())
    assert [play.entry().same for _ in range(4) if play.call() is None] == [1, 2, 3, 4]
    play.call(result="other")
    assert play.entry().same == 1
    assert play.entry().calls == 5


def test_an_outcome_that_cannot_be_compared_is_never_the_same():
    play = Play(**limits())
    for _ in range(3):
        play.call(result=None)
        assert (play.entry().same, play.entry().kept) == (0, 0)
    assert play.entry().row == 3


def test_an_effective_write_opens_a_new_epoch_for_the_others_only():
    play = Play(**limits())
    play.calls(2)
    play.call("edit", 1, writes=True)
    assert (play.entry().same, play.entry().kept) == (0, 2)
    play.call()
    assert (play.entry().same, play.entry().kept) == (1, 3)


def test_a_write_keeps_its_own_count_through_its_own_epoch():
    play = Play(**limits())
    play.calls(2, "edit", 1, writes=True)
    assert play.entry("edit", 1).same == 2


@pytest.mark.parametrize(
    ("write", "is_effective"),
    [
        ({"writes": True}, True),
        ({"writes": False}, False),
        ({"writes": True, "error": "denied"}, False),
        ({"writes": True, "error": "timeout", "infra": True}, False),
    ],
)
def test_a_write_is_effective_where_it_settles_without_error(write, is_effective):
    play = Play(**limits())
    play.call()
    play.call("edit", 1, **write)
    assert (play.entry().same == 0) is is_effective


def test_repeating_a_write_that_succeeded_is_not_effective():
    play = Play(**limits())
    play.call("edit", 1, writes=True)
    play.call()
    play.call("edit", 1, writes=True)
    assert play.entry().same == 1


def test_a_write_that_failed_before_is_effective_when_it_succeeds():
    play = Play(**limits())
    play.call("edit", 1, writes=True, error="exists")
    play.call()
    play.call("edit", 1, writes=True)
    assert play.entry().same == 0


def test_progress_is_a_new_epoch_for_all_and_ends_every_streak():
    play = Play(**limits())
    play.calls(3, error="boom")
    play.calls(3, "edit", 1, writes=True)
    play.calls(2, "t", "b", infra=True, error="429")
    play.state.progress()
    for tool, args in (("t", "a"), ("t", "b"), ("edit", 1)):
        entry = play.entry(tool, args)
        assert (entry.same, entry.kept, entry.row, entry.infra) == (0, 0, 0, 0)
        assert play.ask(tool, args)[1].streaks == QUIET


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_b2_identical_calls_of_one_turn_are_one_round_and_are_judged_alike():
    play = Play(**limits())
    for step in (1, 2, 3):
        seen = []
        for _ in range(8):
            call, look, _ = play.ask(step=step)
            seen.append(look.entry)
            play.settle(call)
        assert {entry.same for entry in seen} == {step - 1}
        assert {entry.calls for entry in seen} == {step - 1}
    assert play.ask(step=4)[1].tool_calls == 25


def test_b2_identical_calls_in_flight_together_are_one_round():
    play = Play(**limits())
    calls = [play.ask() for _ in range(8)]
    assert {look.entry.calls for _, look, _ in calls} == {0}
    for call, _, _ in calls:
        play.settle(call)
    assert (play.entry().calls, play.entry().same) == (1, 1)


def test_of_more_than_eight_each_further_one_counts():
    play = Play(**limits())
    calls = [play.ask(step=1) for _ in range(12)]
    for count in ("calls", "counted", "same", "kept", "row"):
        assert [getattr(look.entry, count) for _, look, _ in calls] == [0] * 8 + [1, 2, 3, 4]
    for call, _, _ in calls:
        play.settle(call)
    assert (play.entry().calls, play.entry().same) == (5, 5)


def test_calls_beyond_eight_that_were_put_off_were_never_made():
    play = Play(**limits())
    calls = [play.ask(step=1) for _ in range(10)]
    for call, _, _ in calls:
        play.state.release(call)
    assert play.entry().calls == 0


def test_a_call_after_the_other_has_settled_is_a_round_of_its_own():
    play = Play(**limits())
    play.call()
    assert play.ask()[1].entry.calls == 1


def test_a_later_turn_is_another_round():
    play = Play(**limits())
    play.call(step=1)
    assert play.ask(step=1)[1].entry.calls == 0
    assert play.ask(step=2)[1].entry.calls == 0  # the one above is still in flight
    play = Play(**limits())
    play.call(step=1)
    assert play.ask(step=2)[1].entry.calls == 1


def test_a_round_that_outlasts_its_turn_ends_with_its_last_call():
    play = Play(**limits())
    late = play.ask(step=1)[0]
    play.call("other", step=2)
    assert play.ask(step=2)[1].entry.calls == 0
    play = Play(**limits())
    late = play.ask(step=1)[0]
    play.call("other", step=2)
    play.settle(late)
    assert play.ask(step=2)[1].entry.calls == 1


def test_a_different_outcome_inside_a_round_is_a_change():
    play = Play(**limits())
    play.call()
    first, second = play.ask(step=1)[0], play.ask(step=1)[0]
    play.settle(first, "r")
    play.settle(second, "other")
    assert play.entry().same == 1


def test_e_the_same_call_id_is_the_same_call():
    play = Play(**limits())
    call, first, _ = play.ask(id="x")
    again = play.ask(id="x")[1]
    assert again.duplicate
    assert again.entry == first.entry
    assert again.tool_calls == first.tool_calls
    play.settle(call)
    settled = play.ask(id="x")[1]
    assert (settled.duplicate, settled.entry.calls, settled.tool_calls) == (True, 1, 1)
    assert play.entry().calls == 1


def test_a_call_that_is_told_again_is_shown_the_same():
    play = Play(**limits())
    play.calls(3)
    _, first, _ = play.ask(id="x")
    again = play.ask(id="x")[1]
    assert len(first.window) == 3
    assert again == first._replace(duplicate=True)
    play.call(args="b")
    assert play.ask(args="b", id="y")[1].window == play.ask(args="b", id="y")[1].window == ()


def test_a_known_call_whose_record_was_pushed_out_is_answered(monkeypatch):
    monkeypatch.setattr(run_state, "MAX_FINGERPRINTS", 1)
    play = Play(**limits())
    play.call("one", id="x")
    play.call("two")
    look = play.ask("one", id="x")[1]
    assert (look.duplicate, look.entry) == (True, Entry())


def test_settle_and_release_of_a_call_that_is_not_in_flight_change_nothing():
    play = Play(**limits())
    call = play.ask()[0]
    play.settle(call)
    before = play.entry()
    assert play.state.settle(call, Settled("other")) is False
    assert play.state.release(call, "subject") is False
    assert play.entry() == before
    assert play.ask()[1].hints == {}


def test_c6_a_call_that_was_put_off_was_never_made():
    play = Play(**limits())
    play.state.release(play.ask(id="pay")[0])
    look = play.ask(id="pay")[1]
    assert (look.duplicate, look.entry.calls, look.tool_calls) == (False, 0, 1)


# --- hints ------------------------------------------------------------------------------------------------------------


def test_a9_a_hinted_call_goes_on_counting():
    play = Play(**limits())
    play.calls(2)
    for count in (2, 3, 4):
        call, look, _ = play.ask()
        assert (look.entry.same, look.entry.kept, look.entry.row) == (count, count, count)
        play.state.release(call, "s")
    assert play.ask()[1].hints == {"s": 3}


@pytest.mark.parametrize(
    ("known", "hinted", "counted"), [(True, None, 1), (True, "s", 1), (False, None, 1), (False, "s", 2)]
)
def test_a_refused_call_is_no_call_of_its_tool_except_where_the_tool_is_made_up(known, hinted, counted):
    play = Play(**limits())
    play.state.release(play.ask(known=known)[0], hinted)
    assert play.ask(args="b", known=known)[1].tool_calls == counted


def test_hints_are_counted_once_a_turn():
    play = Play(**limits())
    for step in (1, 1, 2):
        play.state.release(play.ask(step=step)[0], "s")
    assert play.ask()[1].hints == {"s": 2}


def test_a_hinted_call_that_never_ran_has_no_outcome():
    play = Play(**limits())
    play.state.release(play.ask()[0], "s")
    assert (play.entry().same, play.entry().calls) == (0, 1)


def test_a_write_after_a_hint_reopens_the_call_until_it_is_made():
    play = Play(**limits())
    play.calls(2)
    play.state.release(play.ask()[0], "s")
    assert not play.entry().reopened
    play.call("edit", 1, writes=True)
    assert play.entry().reopened
    play.call()
    assert not play.entry().reopened


def test_hints_are_a_copy():
    play = Play(**limits())
    play.state.release(play.ask()[0], "s")
    look = play.ask()[1]
    play.state.release(play.ask()[0], "s")
    assert look.hints == {"s": 1}


# --- the sequence -----------------------------------------------------------------------------------------------------


def sequence(play: Play) -> list[tuple[str, int]]:
    play.calls(2, "probe", "of the window")
    call, look, _ = play.ask("probe", "of the window")
    play.state.release(call)
    items = look.window
    return [(item.tool, item.step) for item in items[:-2]]


def test_calls_of_one_turn_have_one_order():
    orders = set()
    for names in itertools.permutations("abcd"):
        play = Play(**limits())
        play.call("z", step=1)
        for call in [play.ask(name, step=2)[0] for name in names]:
            play.settle(call)
        orders.add(tuple(sequence(play)))
    (order,) = orders
    assert order[0] == ("z", 1)
    assert sorted(order[1:]) == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]


def test_calls_of_different_turns_keep_theirs():
    play = Play(**limits())
    for step, name in enumerate("cab", start=1):
        play.call(name, step=step)
    assert sequence(play) == [("c", 1), ("a", 2), ("b", 3)]


def test_where_turns_are_unknown_the_order_is_that_of_settling():
    play = Play(**limits())
    for name in "cab":
        play.call(name)
    assert [name for name, _ in sequence(play)] == ["c", "a", "b"]


def test_a_merged_call_is_in_the_sequence_once():
    play = Play(**limits())
    for call in [play.ask("a", step=1)[0] for _ in range(3)]:
        play.settle(call)
    assert sequence(play) == [("a", 1)]


def test_a_hinted_call_leaves_a_marker_with_its_last_outcome():
    play = Play(**limits())
    play.call("a")
    play.state.release(play.ask("a")[0], "s")
    play.calls(2, "b")
    first, marker = play.ask("b")[1].window[:2]
    assert first[:2] == marker[:2]


def test_calls_of_exempt_tools_are_left_out_and_do_not_break_a_row():
    play = Play(tools={"quiet": ToolRules(exempt=True)}, **limits())
    play.call()
    play.call("quiet")
    play.call()
    assert play.entry().row == 2
    assert "quiet" not in dict(sequence(play))


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        ({"result": "", "trivial": True}, 2),
        ({"result": "news"}, 1),
        ({"result": "", "trivial": True, "writes": True}, 1),
        ({"error": "boom", "trivial": True}, 1),
    ],
)
def test_a_silent_call_does_not_come_between_two_calls(facts, row):
    play = Play(**limits())
    play.call()
    play.call("think", "hm", **facts)
    play.call()
    assert play.entry().row == row


def test_a_silent_call_is_left_out_of_the_sequence_until_it_is_made_again():
    play = Play(**limits())
    play.call("think", "hm", "", trivial=True)
    play.call("other")
    assert [name for name, _ in sequence(play)] == ["other"]
    play.call("think", "hm", "", trivial=True)
    assert [name for name, _ in sequence(play)] == ["think", "other", "probe", "probe", "think"]


def test_a_silent_call_that_is_made_again_comes_between():
    play = Play(**limits())
    play.call("think", "hm", "", trivial=True)
    play.call()
    play.call("think", "hm", "", trivial=True)
    play.call()
    assert play.entry().row == 1


def test_a_silent_call_in_a_row_counts_from_its_first():
    play = Play(**limits())
    for count in (1, 2, 3):
        play.call(result="", trivial=True)
        assert play.entry().row == count


def test_the_window_is_given_to_calls_made_twice_and_holds_64():
    play = Play(**limits())
    for number in range(100):
        play.call(args=number)
    play.call(args=99)
    assert play.ask(args=0)[1].window == ()
    window = play.ask(args=99)[1].window
    assert len(window) == 64


# --- streaks ----------------------------------------------------------------------------------------------------------


def streak_of(signatures: str) -> Streak:
    play = Play(**limits())
    for number, signature in enumerate(signatures):
        play.call(args=number, error=signature)
    return play.ask(args="next")[1].streaks.errors


@pytest.mark.parametrize(
    ("signatures", "length"),
    [("a", 1), ("aaa", 3), ("abab", 4), ("aabb", 4), ("abc", 2), ("aabbc", 3), ("ababc", 2), ("abca", 2), ("abcbc", 4)],
)
def test_a_streak_of_errors_holds_two_signatures(signatures, length):
    assert streak_of(signatures).length == length


@given(st.text("abcd", min_size=1, max_size=12))
@settings(max_examples=150)
def test_a_streak_is_the_longest_tail_of_two_signatures(signatures):
    tail = list(signatures)
    while len(set(tail)) > 2:
        tail.pop(0)
    assert streak_of(signatures).length == len(tail)
    assert len(streak_of(signatures).signatures) == len(set(tail))


def test_streaks_of_errors_are_kept_a_tool_and_for_the_run():
    play = Play(**limits())
    play.call("a", 1, error="x")
    play.call("b", 1, error="y")
    play.call("a", 2, error="x")
    streaks = play.ask("a", 3)[1].streaks
    assert (streaks.errors.length, streaks.run_errors.length) == (2, 3)
    assert play.ask("b", 3)[1].streaks.errors.length == 1


def test_a_success_ends_the_streak_of_its_tool_and_of_the_run():
    play = Play(**limits())
    play.calls(2, "a", error="x")
    play.calls(2, "b", error="x")
    play.call("a", 2)
    assert play.ask("a", 3)[1].streaks == QUIET
    streaks = play.ask("b", 3)[1].streaks
    assert (streaks.errors.length, streaks.run_errors.length) == (2, 0)


def test_an_effective_write_ends_streaks_of_errors():
    play = Play(**limits())
    play.calls(3, error="x")
    play.call("edit", 1, writes=True)
    assert play.ask(args="b")[1].streaks == QUIET


@pytest.mark.parametrize(
    ("between", "length"),
    [
        ({}, 1),
        ({"result": "ok", "trivial": True}, 2),
        ({"result": "x", "writes": True}, 2),
        ({"error": "x"}, 2),
        ({"result": None}, 2),
    ],
)
def test_answers_leave_out_what_is_no_evidence(between, length):
    play = Play(**limits())
    play.call(args=1, result="none found")
    play.call(args=2, **({"result": "one"} | between))
    play.call(args=3, result="none found")
    streak = play.ask(args=4)[1].streaks.answers
    assert streak.length == (length if length > 1 else 0)


def test_errors_of_the_infrastructure_are_no_repeats():
    play = Play(**limits())
    play.call()
    play.calls(3, infra=True, error="429")
    entry = play.entry()
    assert (entry.calls, entry.counted, entry.same, entry.infra, entry.failed) == (4, 1, 1, 3, False)
    assert play.ask(args="b")[1].streaks.infra.length == 3
    play.call()
    assert (play.entry().same, play.entry().infra) == (2, 0)
    assert play.ask(args="b")[1].streaks.infra.length == 0


def test_b5_errors_of_the_infrastructure_in_one_batch_count_once():
    play = Play(**limits())
    for call in [play.ask(step=1)[0] for _ in range(4)]:
        play.settle(call, infra=True, error="429")
    assert play.entry().infra == 1
    assert play.ask(args="b", step=2)[1].streaks.infra.length == 1


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_the_state_is_bounded():
    state = RunState()
    for number in range(3000):
        call = ToolCall(f"c{number}", f"tool {number}", f"f{number}", 0.0)
        state.reserve(call)
        state.settle(call, Settled(f"d{number}", error=f"e{number}", infra=number % 3 == 0))
    assert len(state._records) == run_state.MAX_FINGERPRINTS
    assert len(state._tools) == run_state.MAX_TOOLS
    assert len(state._ids) == run_state.MAX_IDS
    assert len(state._window) == run_state.MAX_WINDOW
    assert len(state._infra) <= run_state.MAX_FINGERPRINTS
    assert state._flight == state._rounds == {}


def test_the_least_recently_used_fingerprint_goes_first(monkeypatch):
    monkeypatch.setattr(run_state, "MAX_FINGERPRINTS", 3)
    play = Play(**limits())
    for args in (1, 2, 3, 1, 4):
        play.call(args=args)
    assert {args: play.entry(args=args).calls for args in (4, 1, 3)} == {4: 1, 1: 2, 3: 1}
    assert play.entry(args=2).calls == 0


def test_the_least_recently_used_tool_goes_first(monkeypatch):
    monkeypatch.setattr(run_state, "MAX_TOOLS", 2)
    play = Play(**limits())
    for tool in ("a", "b", "a", "c"):
        play.call(tool)
    assert play.ask("a")[1].tool_calls == 3
    assert play.ask("b")[1].tool_calls == 1


def test_an_error_without_a_class_is_one_all_the_same():
    play = Play(**limits())
    call = play.ask()[0]
    play.state.settle(call, Settled("d", error="x"))
    assert (play.entry().failed, play.entry().error_class) == (True, "error")


def test_a_call_whose_record_was_pushed_out_settles_all_the_same(monkeypatch):
    monkeypatch.setattr(run_state, "MAX_FINGERPRINTS", 2)
    monkeypatch.setattr(run_state, "MAX_TOOLS", 2)
    play = Play(**limits())
    first = play.ask("one")[0]
    for tool in ("two", "three", "four"):
        play.call(tool)
    play.settle(first)
    assert play.entry("one").same == 1


def test_rounds_of_an_earlier_turn_are_dropped():
    play = Play(**limits())
    for number in range(50):
        play.call(args=number, step=number + 1)
    assert len(play.state._rounds) == 1


# --- against a plain reading of the log -------------------------------------------------------------------------------


def expected(log: list[Made], call: Made) -> tuple[int, int, int, int, bool]:
    """calls, same, kept, row, failed of *call*'s fingerprint, by walking the whole log."""

    def of(one: Made) -> tuple[str, int]:
        return one.tool, one.args

    def outcome(one: Made) -> str | None:
        return "error" if one.error else None if one.result is None else f"r{one.result}"

    last_write, succeeded = -1, set()
    for number, one in enumerate(log):
        if not one.error:
            if one.writes and of(one) not in succeeded and of(one) != of(call):
                last_write = number
            succeeded.add(of(one))
    mine = [(number, one) for number, one in enumerate(log) if of(one) == of(call)]
    row = 0
    for one in reversed(log):
        if of(one) != of(call):
            break
        row += 1
    if not mine or outcome(mine[-1][1]) is None:
        return len(mine), 0, 0, row, False
    tail = []
    for number, one in reversed(mine):
        if outcome(one) != outcome(mine[-1][1]):
            break
        tail.append(number)
    same = sum(number > last_write for number in tail)
    return len(mine), same, len(tail), row, mine[-1][1].error


@given(runs)
@settings(max_examples=200)
def test_the_counts_are_those_of_the_log(log):
    play = Play(**limits())
    for number, one in enumerate(log):
        call, look, _ = play.ask(one.tool, one.args, writes=one.writes)
        entry = look.entry
        assert (entry.calls, entry.same, entry.kept, entry.row, entry.failed) == expected(log[:number], one)
        play.settle(call, one.result, **({"error": "error"} if one.error else {}))


@given(runs, st.data())
@settings(max_examples=100)
def test_duplicate_delivery_changes_nothing(log, data):
    once, twice = Play(**limits()), Play(**limits())
    for number, one in enumerate(log):
        facts = {"id": f"x{number}", "writes": one.writes}
        settled = {"error": "error"} if one.error else {}
        call, look, _ = once.ask(one.tool, one.args, **facts)
        once.settle(call, one.result, **settled)
        _, other, _ = twice.ask(one.tool, one.args, **facts)
        if data.draw(st.booleans()):
            assert twice.ask(one.tool, one.args, **facts)[1].duplicate
        twice.settle(call, one.result, **settled)
        if data.draw(st.booleans()):
            twice.settle(call, one.result, **settled)
            twice.state.release(call, "s")
        assert other == look
