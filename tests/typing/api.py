"""Checked by mypy, not run: what the public API looks like to a type checker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import assert_type

import otel_loopwatch as lw


@lw.watch_tool
def search(query: str, limit: int = 10) -> list[str]:
    return [query] * limit


@lw.watch_tool(name="kb.read", kind="read", max_repeats=2, ignore_args=("request_id",), cost_usd=0.01)
async def read(url: str) -> bytes:
    return url.encode()


@lw.watch_tool
def lines(path: str) -> Iterator[str]:
    yield path


@lw.watch_tool(action="abort")
async def pages(path: str) -> AsyncIterator[str]:
    yield path


class Client:
    @lw.watch_tool
    def get(self, key: str) -> int:
        return len(key)

    @classmethod
    @lw.watch_tool
    def make(cls, key: str) -> Client:
        return cls()

    @staticmethod
    @lw.watch_tool(sensitive=True)
    def parse(text: str) -> float:
        return float(text)


assert_type(search("x"), list[str])
assert_type(lines("x"), Iterator[str])
assert_type(pages("x"), AsyncIterator[str])
assert_type(Client().get("x"), int)
assert_type(Client.make("x"), Client)
assert_type(Client.parse("1"), float)
search(3)  # type: ignore[arg-type]
lw.watch_tool(kind="wrote")  # type: ignore[call-overload]


async def awaited() -> None:
    assert_type(await later("x"), str)
    assert_type(await read("x"), bytes)
    async with lw.watch_run("agent") as run:
        assert_type(run, lw.Run)


@lw.watch_run("agent", on_abort="return")
def agent(question: str) -> str:
    return question


@lw.watch_run("agent")
async def later(question: str) -> str:
    return question


assert_type(agent("x"), str)


def answer() -> str:
    """A block that returns needs no statement after it."""
    with lw.watch_run("agent", policy=Path("loopwatch.yaml")) as run:
        run.partial = "draft"
        return run.outcome.stop_reason.value


def questions(run: lw.Run) -> None:
    assert_type(run.step(), int)
    assert_type(run.tried(), str)
    assert_type(run.sampling(0.2), float)
    assert_type(run.outcome, lw.RunOutcome)
    assert_type(run.outcome.spend_usd, Decimal)
    assert_type(run.outcome.findings, tuple[lw.Finding, ...])
    run.record_usage("gpt-5", input_tokens=3, cost_usd=Decimal("0.1"))
    with run.reserve(0.5):
        run.record_usage(cost_usd=0.1)


def told(verdict: lw.Verdict) -> None:
    assert_type(verdict.finding, lw.Finding | None)


lw.watch_run("agent", on_verdict=told)
bound: Callable[[str, int], list[str]] = lw.bind(search)
assert_type(lw.bind(agent)("x"), str)
assert_type(lw.current_run(), lw.Run | None)
assert_type(lw.runs(), tuple[lw.Run, ...])
assert_type(lw.is_hint(3), bool)

try:
    search("x")
except lw.ToolLoopError as loop:
    assert_type(loop.repeats, int)
    assert_type(loop.tool_name, str | None)
    assert_type(loop.result_text, str)
except lw.BudgetExceeded as budget:
    assert_type(budget.budget, str)
