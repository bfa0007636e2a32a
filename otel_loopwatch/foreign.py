"""Reading the spans of other libraries: what they show of a tool call and of a model call.

By the GenAI conventions alone (``gen_ai.operation.name``); arguments and results are there only where the user lets her
library record them. Nothing here keeps them: they become a fingerprint and a digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from otel_loopwatch import semconv
from otel_loopwatch.calls import Settled, ToolCall, Usage
from otel_loopwatch.fingerprint import fingerprint, looks_like_write, result_digest
from otel_loopwatch.fingerprint.failures import is_infra_text
from otel_loopwatch.money import token_count
from otel_loopwatch.telemetry import SCOPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_loopwatch.ambient import Kind
    from otel_loopwatch.policy import Rules

__all__ = ["is_ours", "kind", "model", "settled", "tool_call", "usage"]

MAX_ERROR_TYPE: Final = 100
"""Characters kept of an ``error.type``, which should be a class or a code."""


def is_ours(span: ReadableSpan) -> bool:
    """True for a span that this package made."""
    scope = span.instrumentation_scope
    return scope is not None and scope.name == SCOPE


def kind(attributes: Mapping[str, Any], *, ours: bool = False) -> Kind:
    """What a span shows; the ``invoke_agent`` span that this package makes is one of a run."""
    operation = attributes.get(semconv.GEN_AI_OPERATION_NAME)
    if operation is None:
        return "other"
    if operation == semconv.OPERATION_EXECUTE_TOOL:
        return "tool"
    if operation in semconv.MODEL_OPERATIONS:
        return "model"
    if operation in (semconv.OPERATION_INVOKE_AGENT, semconv.OPERATION_INVOKE_WORKFLOW):
        return "run" if ours else "agent"
    return "other"


def tool_call(
    span_id: int, tool: str, attributes: Mapping[str, Any], rules: Rules, *, at: float, step: int, permitted: bool
) -> ToolCall:
    """The call that an ``execute_tool`` span shows.

    Args:
        span_id: Of the span; stands for the call's id where none is given.
        tool: Name of the tool.
        attributes: Of the span.
        rules: The tool's rules.
        at: Monotonic seconds.
        step: The model turn that asked for it.
        permitted: False for a tool that the policy does not allow.
    """
    said = rules.tool
    arguments = _arguments(attributes)
    if arguments is None:
        # Not shown: like no other call, and nobody knows whether it changed something.
        hashed, writes = f"{span_id:032x}", said.kind == "write"
    else:
        hashed = fingerprint(tool, arguments, ignore_args=said.ignore_args or (), loop_key=said.loop_key)
        writes = said.kind == "write" or (said.kind is None and looks_like_write(tool, arguments))
    call_id = str(attributes.get(semconv.GEN_AI_TOOL_CALL_ID) or f"span:{span_id:016x}")
    return ToolCall(call_id, tool, hashed, at, step, said.kind, writes, permitted, said.cost_usd, rules.exempt)


def _arguments(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    shown = attributes.get(semconv.GEN_AI_TOOL_CALL_ARGUMENTS)
    if shown is None:
        return None
    if isinstance(shown, str):
        try:
            shown = orjson.loads(shown)
        except orjson.JSONDecodeError:
            return {"arguments": shown}
    return shown if isinstance(shown, dict) else {"arguments": shown}


def settled(attributes: Mapping[str, Any], *, at: float, failed: bool) -> Settled:
    """How the call of an ``execute_tool`` span ended. Without a recorded result, it cannot be compared.

    Args:
        attributes: Of the ended span.
        at: Monotonic seconds.
        failed: True where it says that it failed.
    """
    if failed:
        name = str(attributes.get(semconv.ERROR_TYPE) or "error")[:MAX_ERROR_TYPE]
        return Settled(name, error=name, error_class=name, infra=_is_infra(name), at=at)
    result = attributes.get(semconv.GEN_AI_TOOL_CALL_RESULT)
    if result is None:
        return Settled(None, at=at)
    digest = result_digest(result)
    return Settled(digest.digest, trivial=digest.trivial, at=at)


def _is_infra(error_type: str) -> bool:
    """True for an HTTP status of a failing or overloaded server, and for the class of such an error."""
    if error_type.isdecimal():
        return int(error_type) in (408, 429) or 500 <= int(error_type) <= 599
    return is_infra_text(error_type, f"{error_type} {error_type.replace('_', ' ')}")


def model(attributes: Mapping[str, Any]) -> str | None:
    """The model that answered, else the one that was asked for."""
    name = attributes.get(semconv.GEN_AI_RESPONSE_MODEL) or attributes.get(semconv.GEN_AI_REQUEST_MODEL)
    return None if name is None else str(name)


def usage(attributes: Mapping[str, Any]) -> Usage | None:
    """What a model call used, price unknown; ``None`` where the span does not say it."""
    read = token_count(attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS))
    written = token_count(attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS))
    if read is None and written is None:
        return None
    cached = token_count(attributes.get(semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS))
    return Usage(model(attributes), read or 0, written or 0, cached or 0)
