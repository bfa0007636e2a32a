"""Hints: a value that code can tell from a result, and where a tool's type has room for one (C-4)."""

from __future__ import annotations

import collections.abc
import copy
import functools
import json
import pickle
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Optional, TypeVar, Union

import pytest

import otel_loopwatch as lw
from otel_loopwatch.calls import Finding, Verdict
from otel_loopwatch.hints import Hint, answer, returns_text
from otel_loopwatch.policy import LoopRules, Policy

if typing.TYPE_CHECKING:
    from nowhere import Missing

T = TypeVar("T")
LOOPS = Policy(loops=LoopRules(max_repeats=2, max_rereads=2))


@dataclass
class Report:
    title: str


class Text(str):
    __slots__ = ()


# --- the value --------------------------------------------------------------------------------------------------------


def test_a_hint_is_text_with_facts() -> None:
    hint = Hint("[loop-detected] x", "search", 4)
    assert isinstance(hint, str)
    assert (hint, hint.tool_name, hint.repeats, hint.error) == ("[loop-detected] x", "search", 4, "loop-detected")


@pytest.mark.parametrize("trip", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_hint_travels(trip: Any) -> None:
    hint = Hint("[loop-detected] x", "search", 4)
    again = pickle.loads(trip(hint)) if trip is pickle.dumps else trip(hint)
    assert type(again) is Hint
    assert (again, again.tool_name, again.repeats) == (hint, "search", 4)


def test_is_hint_also_after_a_journey_through_json() -> None:
    hint = Hint("[loop-detected] x", "search", 4)
    assert lw.is_hint(hint)
    assert lw.is_hint(json.loads(json.dumps(hint)))
    assert lw.is_hint(json.loads(json.dumps("[tool-denied] x")))
    for other in ("a result", "", None, 4, b"[loop-detected]", ["[loop-detected]"]):
        assert not lw.is_hint(other)


# --- room in the type -------------------------------------------------------------------------------------------------


def nothing_said(x): ...
def text(x) -> str: ...
def anything(x) -> Any: ...
def some_object(x) -> object: ...
def none(x) -> None: ...
def optional_text(x) -> str | None: ...
def old_union(x) -> Union[str, Report]: ...  # noqa: UP007
def annotated(x) -> Annotated[str, "doc"]: ...
def generic(x: T) -> T: ...
def parameter_cannot_be_resolved(x: Missing) -> str: ...


def report(x) -> Report: ...
def optional_report(x) -> Optional[Report]: ...  # noqa: UP045
def union_of_reports(x) -> Report | int: ...
def mapping(x) -> dict[str, Any]: ...
def texts(x) -> list[str]: ...
def iterator(x) -> collections.abc.Iterator[str]: ...
def number(x) -> int: ...
def subclass(x) -> Text: ...
def unresolvable(x) -> Missing: ...
def unresolvable_part(x) -> dict[str, Missing]: ...
def unresolvable_optional(x) -> Missing | None: ...


@pytest.mark.parametrize(
    "fn",
    [
        nothing_said,
        text,
        anything,
        some_object,
        none,
        optional_text,
        old_union,
        annotated,
        generic,
        parameter_cannot_be_resolved,
        lambda x: x,
        functools.partial(text, 1),
        print,
    ],
)
def test_c4_there_is_room_for_text(fn: Any) -> None:
    assert returns_text(fn)


@pytest.mark.parametrize(
    "fn",
    [
        report,
        optional_report,
        union_of_reports,
        mapping,
        texts,
        iterator,
        number,
        subclass,
        unresolvable,
        unresolvable_part,
        unresolvable_optional,
        functools.partial(report, 1),
        functools.partial(functools.partial(report), 1),
        functools.lru_cache(report),
        Report,
    ],
)
def test_c4_a_typed_result_is_promised(fn: Any) -> None:
    assert not returns_text(fn)


def test_c4_methods_callables_and_generators() -> None:
    class Tool:
        def __call__(self) -> Report: ...
        def method(self) -> Report: ...
        async def coroutine(self) -> str: ...

    def yields_text() -> collections.abc.Iterator[str]:
        yield "x"

    def yields_reports() -> collections.abc.Generator[Report, None, str]:
        yield Report("x")

    async def ayields_reports() -> collections.abc.AsyncIterator[Report]:
        yield Report("x")

    async def ayields_bare() -> collections.abc.AsyncIterator:
        yield 1

    class Box(Generic[T]):
        def get(self) -> T: ...

    assert not returns_text(Tool())
    assert not returns_text(Tool().method)
    assert returns_text(Tool().coroutine)
    assert returns_text(yields_text)
    assert not returns_text(yields_reports)
    assert not returns_text(ayields_reports)
    assert returns_text(ayields_bare)
    assert returns_text(Box().get)


# --- the answer -------------------------------------------------------------------------------------------------------

FINDING = Finding("repeat", "t", "s", 4, "f" * 32)
HINTED = Verdict("hint", repeats=6, finding=FINDING, text="[loop-detected] said")


def test_the_hint_counts_what_was_found() -> None:
    hint = answer(HINTED, "t", None, text_allowed=True)
    assert (str(hint), hint.tool_name, hint.repeats) == ("[loop-detected] said", "t", 4)


def test_c4_without_room_the_hint_is_raised() -> None:
    with pytest.raises(lw.ToolHint) as caught:
        answer(HINTED, "t", None, text_allowed=False)
    assert (str(caught.value), caught.value.tool_name, caught.value.repeats) == ("[loop-detected] said", "t", 4)
    assert not isinstance(caught.value, lw.RunAborted)


def test_c4_a_value_or_a_function_of_the_users_wins() -> None:
    report = Report("stop")
    assert answer(HINTED, "t", report, text_allowed=False) is report
    assert answer(HINTED, "t", lambda verdict: Report(verdict.text or ""), text_allowed=False) == Report(
        "[loop-detected] said"
    )


def test_a_fault_in_the_users_function_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    def broken(verdict: Verdict) -> Report:
        raise ValueError("secret")

    assert lw.is_hint(answer(HINTED, "t", broken, text_allowed=True))
    with pytest.raises(lw.ToolHint):
        answer(HINTED, "t", broken, text_allowed=False)
    assert "otel-loopwatch: ValueError in hint" in caplog.records[0].getMessage()


# --- through a tool ---------------------------------------------------------------------------------------------------


def test_c4_a_typed_tool_raises_the_hint_and_the_run_goes_on() -> None:
    bodies = []

    @lw.watch_tool
    def load(x: int) -> Report:
        bodies.append(x)
        return Report("same")

    with lw.watch_run("a", policy=LOOPS) as run:
        load(1)
        load(1)
        with pytest.raises(lw.ToolHint, match=r"^\[loop-detected\]") as caught:
            load(1)
        assert load(2) == Report("same")
    assert bodies == [1, 1, 2]
    assert (caught.value.tool_name, caught.value.repeats) == ("load", 3)
    assert run.outcome.stop_reason == "completed"


def test_c4_a_typed_tool_returns_the_users_hint() -> None:
    @lw.watch_tool(hint=lambda verdict: Report(f"{verdict.finding.kind} {verdict.finding.repeats}"))
    def load(x: int) -> Report:
        return Report("same")

    with lw.watch_run("a", policy=LOOPS):
        assert [load(1) for _ in range(3)][2] == Report("repeat 3")


async def test_c4_coroutines_and_generators_are_told_in_their_way() -> None:
    @lw.watch_tool
    async def load() -> dict[str, int]:
        return {"a": 1}

    @lw.watch_tool
    def lines() -> collections.abc.Iterator[str]:
        yield "one"
        yield "two"

    @lw.watch_tool
    async def pages() -> collections.abc.AsyncIterator[Report]:
        yield Report("one")

    with lw.watch_run("a", policy=LOOPS):
        for _ in range(2):
            assert await load() == {"a": 1}
            assert list(lines()) == ["one", "two"]
            assert [page async for page in pages()] == [Report("one")]
        with pytest.raises(lw.ToolHint):
            await load()
    with lw.watch_run("a", policy=LOOPS):
        assert [list(lines()) for _ in range(2)] == [["one", "two"]] * 2
        (hint,) = lines()
        assert lw.is_hint(hint)
    with lw.watch_run("a", policy=LOOPS):
        assert len([[page async for page in pages()] for _ in range(2)]) == 2
        with pytest.raises(lw.ToolHint):
            [page async for page in pages()]
