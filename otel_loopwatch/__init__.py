"""OpenTelemetry-based observability and alerting for the tool calls of LLM agents, with a guard that stops loops."""

from otel_loopwatch.boundary import watch_run
from otel_loopwatch.calls import Finding, RunOutcome, StopReason, Usage, Verdict
from otel_loopwatch.configure import configure, shutdown
from otel_loopwatch.context import bind, current_run
from otel_loopwatch.errors import (
    BudgetExceeded,
    LoopwatchError,
    PolicyError,
    RunAborted,
    ToolDenied,
    ToolHint,
    ToolLoopError,
)
from otel_loopwatch.fingerprint import register_context_type, register_infra_error
from otel_loopwatch.hints import is_hint
from otel_loopwatch.policy import Budgets, LoopRules, Policy, Retry, ToolRules
from otel_loopwatch.prices import ModelPrice
from otel_loopwatch.processor import LoopwatchSpanProcessor
from otel_loopwatch.run import Run
from otel_loopwatch.run import open_runs as runs
from otel_loopwatch.telemetry import flush
from otel_loopwatch.tools import watch_tool
from otel_loopwatch.version import __version__

__all__ = [
    "BudgetExceeded",
    "Budgets",
    "Finding",
    "LoopRules",
    "LoopwatchError",
    "LoopwatchSpanProcessor",
    "ModelPrice",
    "Policy",
    "PolicyError",
    "Retry",
    "Run",
    "RunAborted",
    "RunOutcome",
    "StopReason",
    "ToolDenied",
    "ToolHint",
    "ToolLoopError",
    "ToolRules",
    "Usage",
    "Verdict",
    "__version__",
    "bind",
    "configure",
    "current_run",
    "flush",
    "is_hint",
    "register_context_type",
    "register_infra_error",
    "runs",
    "shutdown",
    "watch_run",
    "watch_tool",
]
