"""What is raised: every error pickles, and what it says is fit to be stored."""

from __future__ import annotations

import copy
import pickle
import threading
from decimal import Decimal

import pytest

import otel_loopwatch as lw
from otel_loopwatch import errors
from otel_loopwatch.calls import RunOutcome, StopReason
from otel_loopwatch.errors import Unwind, report_fault, telemetry_guard, warn_once
from otel_loopwatch.launch.command import CommandError


class TwoArguments(Exception):
    """Pickles, and cannot be read again: the usual fault of an exception with an __init__ of its own."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


OUTCOME = RunOutcome("r1", "a", StopReason.LOOP_DETECTED, tool_calls=3, spend_usd=Decimal("0.1"), partial={"draft": 1})

ERRORS = [
    lw.LoopwatchError("x"),
    lw.RunAborted("x", stop_reason=StopReason.USER_ABORT, outcome=OUTCOME, tool_name="t", call_id="c1"),
    lw.ToolLoopError(
        "x",
        repeats=4,
        kind="repeat",
        args_hash="f",
        stop_reason=StopReason.LOOP_DETECTED,
        outcome=OUTCOME,
        tool_name="t",
    ),
    lw.BudgetExceeded(
        "x",
        budget="spend_usd",
        limit=Decimal("0.1"),
        used=Decimal("0.2"),
        stop_reason=StopReason.SPEND_BUDGET,
        outcome=OUTCOME,
    ),
    lw.ToolDenied("x", tool_name="t"),
    lw.ToolHint("[loop-detected] x", tool_name="t", repeats=3),
    CommandError("there is no program x", 127),
    lw.PolicyError("must be 1", key="budgets.max_steps", file="p.yaml", line=3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_pickles(error: lw.LoopwatchError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert again.__dict__ == error.__dict__


def test_every_error_class_is_among_them() -> None:
    def below(cls: type) -> set[type]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    ours = {cls for cls in below(lw.LoopwatchError) if cls.__module__.startswith("otel_loopwatch")}
    assert ours == {type(error) for error in ERRORS}


@pytest.mark.parametrize("partial", [threading.Lock(), lambda: 1, TwoArguments("a", "b")])
def test_an_unpicklable_partial_costs_the_partial_alone(partial: object) -> None:
    from dataclasses import replace

    error = lw.ToolLoopError(
        "x",
        repeats=4,
        kind="repeat",
        args_hash="f",
        stop_reason=StopReason.LOOP_DETECTED,
        outcome=replace(OUTCOME, partial=partial, cause=TwoArguments("a", "b")),
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.repeats, again.stop_reason, again.partial) == (4, "loop_detected", None)
    assert again.outcome == replace(OUTCOME, partial=None)
    assert again.outcome.cause is None
    assert error.partial is partial, "the error at hand keeps it"


def test_the_firm_signal_is_no_exception_and_pickles() -> None:
    unwind = Unwind("r1")
    assert not isinstance(unwind, Exception)
    again = pickle.loads(pickle.dumps(unwind))
    assert (again.run_id, str(again)) == ("r1", str(unwind))


def test_a_framework_class_may_be_mixed_in() -> None:
    class PassThrough(Exception):
        pass

    class Mixed(lw.ToolLoopError, PassThrough):
        pass

    error = Mixed("x", repeats=2, kind="repeat", args_hash="f", stop_reason=StopReason.LOOP_DETECTED)
    assert isinstance(error, lw.RunAborted)
    assert isinstance(error, PassThrough)
    assert error.partial is None


def test_the_family() -> None:
    assert issubclass(lw.ToolLoopError, lw.RunAborted)
    assert issubclass(lw.BudgetExceeded, lw.RunAborted)
    assert not issubclass(lw.ToolHint, lw.RunAborted)
    assert not issubclass(lw.ToolDenied, lw.RunAborted)
    assert issubclass(lw.PolicyError, ValueError)


def test_c3_the_result_text_is_ready_to_be_stored() -> None:
    assert ERRORS[2].result_text == "[run-aborted] x"


def test_a_policy_error_names_file_line_and_key() -> None:
    assert str(ERRORS[-1]) == "p.yaml:3: budgets.max_steps: must be 1"
    assert str(lw.PolicyError("must be 1")) == "must be 1"


# --- our own faults ---------------------------------------------------------------------------------------------------


def test_our_faults_are_seen_in_our_tests() -> None:
    with pytest.raises(ZeroDivisionError), telemetry_guard("test"):
        1 / 0  # noqa: B018


def test_our_faults_stay_ours(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("LOOPWATCH_STRICT", "0")
    errors._warned.clear()
    stages = []
    monkeypatch.setattr(errors, "_on_fault", [stages.append])
    for _ in range(3):
        with telemetry_guard("telemetry"):
            raise ValueError("secret-4711")
    assert stages == ["telemetry"] * 3
    assert len(caplog.records) == 1, "logged once, counted each time"
    assert "ValueError in telemetry" in caplog.text
    assert "secret-4711" not in caplog.text


def test_a_base_exception_is_not_ours_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWATCH_STRICT", "0")
    with pytest.raises(KeyboardInterrupt), telemetry_guard("telemetry"):
        raise KeyboardInterrupt


def test_warnings_are_given_once_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    errors._warned.clear()
    for topic in ("a", "b", "a", "b"):
        warn_once(topic, f"about {topic}")
    assert [record.getMessage() for record in caplog.records] == ["otel-loopwatch: about a", "otel-loopwatch: about b"]
    errors._warned.clear()
    report_fault("a", ValueError())
    report_fault("a", ValueError())
    assert len(caplog.records) == 3


@pytest.mark.parametrize("value, disabled", [("", False), ("0", False), ("1", True), ("true", True)])
def test_disabled_by_environment(monkeypatch: pytest.MonkeyPatch, value: str, disabled: bool) -> None:
    monkeypatch.setenv("LOOPWATCH_DISABLED", value)
    assert errors.is_disabled() is disabled
    bodies = []

    @lw.watch_tool
    def same() -> str:
        bodies.append(1)
        return "x"

    with lw.watch_run("a", policy=lw.Policy(loops=lw.LoopRules(max_repeats=1))) as run:
        results = [same() for _ in range(3)]
    assert len(bodies) == (3 if disabled else 1)
    assert results[0] == "x"
    assert run.outcome.tool_calls == (0 if disabled else 1)
