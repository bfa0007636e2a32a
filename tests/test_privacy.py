"""No argument, result or exception text of a tool leaves in telemetry, hints or errors (DESIGN 5.13, E-8)."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import otel_loopwatch as lw
from otel_loopwatch import metrics
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.testing import Captured, capture

CANARY = "kanarie4711"


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


def everything_said(seen: Captured, caplog: pytest.LogCaptureFixture) -> str:
    """All that telemetry got, as one text."""
    said = [span.to_json() for span in seen.spans]
    registry = CollectorRegistry()
    registry.register(metrics.prometheus_collector())
    said.append(generate_latest(registry).decode())
    said += [record.getMessage() + repr(record.__dict__) for record in caplog.records]
    return "\n".join(said)


@lw.watch_tool
def look_up(secret: str, number: int = 0) -> dict[str, str]:
    return {"answer": CANARY}


@lw.watch_tool
def fails(secret: str, number: int = 0) -> str:
    raise ValueError(f"cannot read {CANARY} at {secret}")


@lw.watch_tool
def infra(secret: str, number: int = 0) -> str:
    raise TimeoutError(f"no answer for {CANARY}")


@lw.watch_tool
def streams(secret: str, number: int = 0) -> Iterator[str]:
    yield CANARY


@lw.watch_tool(kind="poll")
def polls(secret: str, number: int = 0) -> str:
    return CANARY


@lw.watch_tool
def save(secret: str, number: int = 0) -> str:
    raise PermissionError(13, CANARY, f"/home/{CANARY}")


TOOLS: list[Callable[..., Any]] = [look_up, fails, infra, streams, polls, save]


def loops(tool: Callable[..., Any], *, vary: bool, action: str) -> lw.Run:
    rules = LoopRules(
        max_repeats=2,
        max_error_streak=2,
        max_no_progress=2,
        max_infra_errors=2,
        max_poll_repeats=2,
        action=action,
        hints_before_abort=1,
    )
    policy = Policy(loops=rules, budgets=Budgets(max_tool_calls=9, max_seconds=600))
    with lw.watch_run("a", policy=policy, on_abort="return", insist_after=None) as run:
        for number in range(12):
            run.step()
            try:
                answer = tool(f"{CANARY}-{number if vary else 0}", number=number if vary else 0)
                list(answer) if tool is streams else answer
            except (lw.RunAborted, lw.ToolHint) as error:
                error.seen = True
            except Exception:  # noqa: BLE001
                pass
    return run


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("vary", [False, True], ids=["same", "varying"])
@pytest.mark.parametrize("action", ["hint", "abort", "observe"])
def test_e8_nothing_of_it_in_spans_metrics_and_log(
    seen: Captured, caplog: pytest.LogCaptureFixture, tool: Any, vary: bool, action: str
) -> None:
    caplog.set_level(logging.DEBUG)
    run = loops(tool, vary=vary, action=action)
    said = everything_said(seen, caplog)
    assert tool.__name__ in said
    assert CANARY not in said
    for finding in run.outcome.findings:
        assert CANARY not in repr(asdict(finding))


def texts_of(error: BaseException) -> str:
    facts = dict(error.__dict__)
    facts.pop("outcome", None)
    return "".join([str(error), repr(error), repr(error.args), repr(facts), getattr(error, "result_text", "")])


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("vary", [False, True], ids=["same", "varying"])
def test_e8_nothing_of_it_in_hints_and_errors(tool: Any, vary: bool) -> None:
    rules = LoopRules(max_repeats=2, max_error_streak=2, max_no_progress=2, max_infra_errors=2, max_poll_repeats=2)
    verdicts: list[lw.Verdict] = []
    said: list[str] = []
    with lw.watch_run("a", policy=Policy(loops=rules), on_abort="return", on_verdict=verdicts.append) as run:
        for number in range(12):
            run.step()
            try:
                answer = tool(f"{CANARY}-{number if vary else 0}", number=number if vary else 0)
                answer = next(iter(answer)) if tool is streams else answer
                if lw.is_hint(answer):
                    said.append(answer)
            except (lw.RunAborted, lw.ToolHint) as error:
                said.append(texts_of(error))
            except Exception:  # noqa: BLE001
                pass
    said += [repr(verdict) for verdict in verdicts]
    if verdicts:
        assert said
    assert CANARY not in "".join(said)


def test_a_budget_error_says_nothing_of_it() -> None:
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1))),
    ):
        look_up(CANARY)
        look_up(CANARY, number=1)
    assert CANARY not in texts_of(caught.value)
    assert CANARY not in "".join(traceback.format_exception_only(caught.value))
    assert CANARY not in repr(pickle.loads(pickle.dumps(caught.value)).__dict__)


def test_an_unhashable_argument_says_nothing_of_it(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __repr__(self) -> str:
            return CANARY

        def __str__(self) -> str:
            raise ValueError(CANARY)

    caplog.set_level(logging.DEBUG)
    with lw.watch_run("a"):
        look_up(Hostile())
        look_up({CANARY: Hostile()})
    assert CANARY not in everything_said(seen, caplog)


def test_a_faulty_hint_or_callback_says_nothing_of_it(
    seen: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPWATCH_STRICT", "0")

    def broken(verdict: lw.Verdict) -> str:
        raise ValueError(CANARY)

    @lw.watch_tool(hint=broken)
    def read(secret: str) -> str:
        return CANARY

    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=1)), on_verdict=broken):
        read(CANARY)
        assert lw.is_hint(read(CANARY))
    assert "ValueError" in caplog.text
    assert CANARY not in everything_said(seen, caplog)


async def test_a_timed_out_tool_says_nothing_of_it(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    @lw.watch_tool
    async def hangs(secret: str) -> str:
        await asyncio.Event().wait()
        return secret

    async with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=0.01)), on_abort="return"):
        await hangs(CANARY)
    assert CANARY not in everything_said(seen, caplog)


def test_an_application_error_that_ends_the_run_is_named_by_its_class(
    seen: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=CANARY), lw.watch_run("a"):
        raise ValueError(CANARY)
    assert seen.named("invoke_agent a").attributes["error.type"] == "ValueError"
    assert CANARY not in everything_said(seen, caplog)


# --- tried ------------------------------------------------------------------------------------------------------------


def test_tried_is_for_the_model_alone(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("a", policy=Policy(loops=LoopRules(action="observe"))) as run:
        look_up(CANARY)
        with pytest.raises(ValueError, match=CANARY):
            fails(f"other {CANARY}")
        text = run.tried()
    assert f"look_up(secret='{CANARY}', number=0) -> ok" in text
    assert f"fails(secret='other {CANARY}', number=0) -> ValueError" in text
    assert "cannot read" not in text
    assert "answer" not in text
    assert CANARY not in everything_said(seen, caplog)


def test_a_sensitive_tool_shows_nothing_there_either() -> None:
    @lw.watch_tool(sensitive=True)
    def pay(card: str) -> str:
        return "paid"

    with lw.watch_run("a") as run:
        pay(CANARY)
        assert CANARY not in run.tried()
        assert "pay" in run.tried()
