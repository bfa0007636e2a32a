"""tried(), progress() and sampling(): what a run remembers for its own agent."""

from __future__ import annotations

import enum

import pytest

import otel_loopwatch as lw
from otel_loopwatch.policy import LoopRules, Policy
from otel_loopwatch.run import Run
from otel_loopwatch.scratchpad import MAX_ATTEMPTS, MAX_TEXT, Scratchpad

OPEN = Policy(loops=LoopRules(action="observe"))


@lw.watch_tool
def search(q: str, limit: int = 10) -> str:
    if q == "boom":
        raise ValueError("secret text")
    return f"about {q.split(maxsplit=1)[0]}"


# --- tried ------------------------------------------------------------------------------------------------------------


def test_tried_is_empty_where_nothing_was() -> None:
    with lw.watch_run("a") as run:
        assert run.tried() == ""


def test_tried_shows_arguments_and_how_each_ended_but_no_result_and_no_error_text() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        search("python")
        search("python", limit=10)
        with pytest.raises(ValueError, match="secret text"):
            search("boom")
        text = run.tried()
    assert text.splitlines() == [
        "Already tried in this run:",
        "- search(q='python', limit=10) -> ok",
        "- search(q='boom', limit=10) -> ValueError",
    ]


def test_tried_shows_at_most_200_characters_of_arguments() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        search("x" * 10_000)
        (line,) = run.tried().splitlines()[1:]
    assert line.startswith("- search(q='xxx")
    assert line.endswith(") -> ok")
    assert len(line) <= len("- search() -> ok") + MAX_TEXT


def test_a_sensitive_tool_appears_by_name_alone() -> None:
    @lw.watch_tool(sensitive=True)
    def log_in(pin: str) -> str:
        return "in"

    with lw.watch_run("a", policy=OPEN) as run:
        log_in("canary-1234")
        assert run.tried() == "Already tried in this run:\n- log_in() -> ok"


def test_the_operator_may_declare_a_tool_sensitive() -> None:
    policy = Policy(tools={"search": lw.ToolRules(sensitive=True)})
    with lw.watch_run("a", policy=policy) as run:
        search("canary-1234")
        assert "canary" not in run.tried()


def test_tried_is_bounded_and_drops_the_oldest() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        for number in range(MAX_ATTEMPTS + 5):
            search(f"q{number}")
        lines = run.tried().splitlines()[1:]
    assert len(lines) == MAX_ATTEMPTS
    assert "'q5'" in lines[0]


def test_hostile_values_are_named_by_their_type() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise AssertionError("repr of an argument was taken")

    class Text(str):
        __slots__ = ()

        def __getitem__(self, key: object) -> str:
            raise AssertionError("code of an argument was run")

    class Number(enum.IntEnum):
        ONE = 1

    pad = Scratchpad()
    pad.attempted(
        "f", "t", {"a": Hostile(), "b": [1], "c": 10**5000, "d": -(2**70), "e": None, "f": 1.5, "g": True}, "ok"
    )
    pad.attempted("g", "t", {"text": Text("hello")}, "ok")
    lines = pad.text().splitlines()
    assert lines[1] == "- t(a=<Hostile>, b=<list>, c=<int>, d=<int>, e=None, f=1.5, g=True) -> ok"
    assert lines[2] == "- t(text='hello') -> ok"


def test_each_kind_of_ending_is_named_once() -> None:
    pad = Scratchpad()
    for outcome in ("ok", "ok", "ValueError", "TypeError", "KeyError"):
        pad.attempted("f", "t", {}, outcome)
    assert pad.text().splitlines()[1:] == ["- t() -> ok, ValueError, TypeError"]


def test_a_note_of_progress_is_shown() -> None:
    with lw.watch_run("a") as run:
        run.progress("found the cause")
        run.progress()
        assert run.tried().splitlines()[1:] == ["- progress: found the cause"]


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_begins_every_count_anew() -> None:
    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2, action="abort"))) as run:
        for _ in range(4):
            search("x")
            search("x")
            run.progress("something new")
    assert run.outcome.tool_calls == 8
    assert run.outcome.findings == ()


def test_without_progress_the_same_calls_are_a_loop() -> None:
    with (
        pytest.raises(lw.ToolLoopError),
        lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2, action="abort"))),
    ):
        for _ in range(4):
            search("x")
            search("x")


# --- sampling ---------------------------------------------------------------------------------------------------------


def turn(run: Run, q: str | None) -> float:
    run.step()
    temperature = run.sampling(0.1)
    if q is not None:
        search(q)
    return temperature


def test_two_turns_without_progress_raise_it_for_one_turn() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        temperatures = [turn(run, "x") for _ in range(9)]
    # Turn 1 brings something new; 2 and 3 do not; 4 is hotter; 5 back; 4 and 5 bring nothing new either; 6 is hotter.
    assert temperatures == [0.1, 0.1, 0.1, 0.6, 0.1, 0.6, 0.1, 0.6, 0.1]


def test_progress_keeps_it_where_it_is() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        assert [turn(run, f"q{number}") for number in range(8)] == [0.1] * 8


def test_it_falls_back_when_something_new_comes() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        assert [turn(run, q) for q in ("x", "x", "x", "y", "z", "w")] == [0.1, 0.1, 0.1, 0.6, 0.1, 0.1]


def test_turns_without_calls_say_nothing() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        assert [turn(run, q) for q in ("x", "x", None, None, "x", None)] == [0.1, 0.1, 0.1, 0.1, 0.1, 0.6]


def test_the_same_answer_all_through_a_turn() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        for _ in range(3):
            turn(run, "x")
        run.step()
        assert [run.sampling(0.1) for _ in range(3)] == [0.6, 0.6, 0.6]
        assert run.sampling(0.9) == 0.9, "never colder than the agent's own"
        run.step()
        assert run.sampling(0.1) == 0.1


def test_hinted_turns_are_turns_without_progress() -> None:
    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2))) as run:
        temperatures = [turn(run, "x") for _ in range(4)]
        run.step()
    # 1: new; 2: the same; 3: a hint; 4: hotter, and the second hint.
    assert temperatures == [0.1, 0.1, 0.1, 0.6]


def test_the_agents_own_word_counts() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        for _ in range(3):
            turn(run, "x")
            run.progress()
        assert turn(run, "x") == 0.1


def test_the_agents_word_counts_for_the_turn_in_which_it_is_given() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        turn(run, "x")
        turn(run, "x")
        run.progress()
        turn(run, "x")
        assert turn(run, "x") == 0.1, "one turn without progress, not two"
        assert turn(run, "x") == 0.6


def test_an_error_of_a_new_kind_is_progress_and_the_same_again_is_not() -> None:
    pad = Scratchpad()
    seen = []
    for error in ("A", "A", "A", "B"):
        pad.step_began()
        seen.append(pad.temperature(0.1, len(seen) + 1))
        pad.settled(f"f{len(seen)}", error, error)
    pad.step_began()
    assert seen == [0.1, 0.1, 0.1, 0.6]
    assert pad.temperature(0.1, 5) == 0.1


def test_without_turns_it_stays_as_it_is() -> None:
    with lw.watch_run("a", policy=OPEN) as run:
        assert [run.sampling() for _ in range(5) if search("x")] == [0.1] * 5
