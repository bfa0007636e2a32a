"""The call that a tool span of another library shows: arguments, result, error, as far as they were recorded.

Only where the user lets her library record them, and without what libraries put around them. Nothing here keeps them:
they become a fingerprint and a digest.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from otel_loopwatch import semconv
from otel_loopwatch.calls import Settled, ToolCall
from otel_loopwatch.dialects import (
    ARGUMENTS,
    CALL_ID,
    ENVELOPES,
    EVENT_ARGUMENTS,
    EVENT_RESULT,
    NO_CALL_IDS,
    NO_TOOLS,
    NOT_SHOWN,
    REDACTED,
    RESULT,
)
from otel_loopwatch.fingerprint import error_kind, error_text_digest, fingerprint, looks_like_write, result_digest
from otel_loopwatch.fingerprint.failures import is_infra_status, is_infra_text
from otel_loopwatch.foreign import Attributes, failed, first, text, tool_name

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_loopwatch.policy import Rules

__all__ = ["Failure", "ShownCall", "settled", "shown_call", "tool_call"]

_ERROR_TYPE: Final = re.compile(r"[\w.:<>$\[\]/-]{1,100}")
"""What an ``error.type`` should be: a class or a code. Anything else may be the error's text, which is not told."""

_CLOSING: Final = {"{": "}", "[": "]"}


class Failure(NamedTuple):
    """The error that a tool span reports, without its text.

    Attributes:
        error_class: Its class, or the code that the library gives instead.
        digest: Keyed hash of class and masked message.
        kind: Keyed hash of what the message says apart from what it quotes of the call.
        infra: True for one of the infrastructure.
    """

    error_class: str
    digest: str
    kind: str
    infra: bool


class ShownCall(NamedTuple):
    """A call that a tool span has shown.

    Attributes:
        tool: Name of the tool.
        arguments: As recorded, ``None`` where they are not.
        result: As recorded, ``None`` where it is not.
        call_id: The model's id of the call.
        failure: How it failed, if it did.
    """

    tool: str
    arguments: Any
    result: Any
    call_id: str | None
    failure: Failure | None

    def argument_hashes(self) -> dict[str, int]:
        """A hash of the value of each argument, by name, where they are shown by name."""
        shown = _arguments(self.arguments)
        if shown is None or shown.keys() == {"arguments"}:
            return {}
        return {name: hash(str(value)) for name, value in shown.items() if isinstance(name, str)}

    def after(self, earlier: ShownCall | None) -> ShownCall:
        """This, the later of two attempts at one call, with what it does not show taken from the *earlier* one."""
        if earlier is None:
            return self
        return self._replace(
            arguments=earlier.arguments if self.arguments is None else self.arguments,
            call_id=self.call_id or earlier.call_id,
        )

    def around(self, inner: ShownCall | None) -> ShownCall:
        """This, with what it does not show taken from *inner*, the span of the same call inside of it."""
        if inner is None:
            return self
        if self.failure is None and self.result is None:
            # To a client, the error that a server sends is an answer like any other.
            self = self._replace(result=inner.result, failure=inner.failure)  # noqa: PLW0642
        return self.after(inner)


def shown_call(span: ReadableSpan, attributes: Attributes, made_by: str) -> ShownCall | None:
    """The call that an ended tool span shows, in its attributes or else in its events; ``None`` where it shows none.

    Args:
        span: The span.
        attributes: Of the span.
        made_by: Its instrumentation scope.
    """
    tool = tool_name(attributes, made_by, span.name)
    if tool in NO_TOOLS:
        return None
    if any(attributes.get(name) == value for name, value in NOT_SHOWN.items()):
        arguments = result = None
    else:
        arguments = _comparable(first(attributes, ARGUMENTS))
        result = _comparable(first(attributes, RESULT))
    for event in span.events if arguments is None or result is None else ():
        said = event.attributes or {}
        if arguments is None and event.name in EVENT_ARGUMENTS:
            arguments = _comparable(said.get(EVENT_ARGUMENTS[event.name]))
        elif result is None and event.name in EVENT_RESULT:
            result = _comparable(said.get(EVENT_RESULT[event.name]))
    failure = _failure(span, attributes)
    arguments, told = _unpacked(arguments)
    ident = text(attributes, CALL_ID) or told
    envelope = _envelope(result)
    if envelope is not None:
        result, ident = envelope.content, ident or envelope.call_id
        if envelope.is_error and failure is None:
            failure = _failed_with("error", str(result))
    return ShownCall(tool, arguments, result, None if ident in NO_CALL_IDS else ident, failure)


def _comparable(recorded: Any) -> Any:
    """*recorded*, or ``None`` where a library or the SDK left something out of it: what is left would look alike."""
    if not isinstance(recorded, str):
        return recorded
    if any(mark in recorded for mark in REDACTED) or len(recorded) == _value_limit():
        return None
    # A limit that the code of the application sets shows only in that the end is missing.
    return recorded if recorded.rstrip().endswith(_CLOSING.get(recorded[:1], "")) else None


@functools.cache
def _value_limit() -> int:
    """The number of characters at which the SDK cuts a value off, -1 where it does not."""
    for variable in ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        limit = os.environ.get(variable, "").strip()
        if limit.isdecimal():
            return int(limit)
    return -1


def _object(recorded: Any, marks: tuple[str, ...]) -> dict[str, Any] | None:
    """The JSON object that *recorded* is, looked for only where it has one of *marks* in it."""
    if not isinstance(recorded, str) or not any(mark in recorded for mark in marks):
        return None
    try:
        said = orjson.loads(recorded)
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) else None


def _inside(said: dict[str, Any], *path: str) -> dict[str, Any] | None:
    """The dictionary that is found in *said* on *path*, if there is one."""
    found: Any = said
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _unpacked(arguments: Any) -> tuple[Any, str | None]:
    """Arguments without what a callback was told beside them (OpenLLMetry on LangChain), and the call's id of there."""
    said = _object(arguments, ('"input_str"',))
    if said is None or not {"input_str", "inputs"} <= said.keys():
        return arguments, None
    ident = (_inside(said, "kwargs") or {}).get("tool_call_id")
    return said["inputs"] or said["input_str"], ident if isinstance(ident, str) else None


class _Envelope(NamedTuple):
    """What a framework put around a result: an id that is new each time would make every result a new one."""

    content: Any
    call_id: str
    is_error: bool


def _envelope(result: Any) -> _Envelope | None:
    """The envelope that *result* is, if it is one."""
    said = _object(result, ENVELOPES)
    if said is None:
        return None
    # LangChain: the message; under "data" as OpenInference writes it, under "output" as OpenLLMetry does.
    said = _inside(said, "output", "kwargs") or _inside(said, "output") or _inside(said, "data") or said
    if isinstance(said.get("tool_call_id"), str):
        return _Envelope(said.get("content"), said["tool_call_id"], said.get("status") == "error")
    # Google ADK: a function response.
    if said.keys() == {"id", "name", "response"} and isinstance(said["id"], str):
        return _Envelope(said["response"], said["id"], is_error=False)
    return None


def tool_call(span_id: int, shown: ShownCall, rules: Rules, *, at: float, step: int, permitted: bool) -> ToolCall:
    """The call that a tool span shows, as the guard knows it.

    Args:
        span_id: Of the span; stands for the call's id where none is shown, or the turn is unknown: many servers number
            the calls of each answer anew, so that an id is that of one call in one turn.
        shown: What the span shows.
        rules: The tool's rules.
        at: Monotonic seconds.
        step: The model turn that asked for it, as in :class:`ToolCall`.
        permitted: False for a tool that the policy does not allow.
    """
    said = rules.tool
    tool, arguments = shown.tool, _arguments(shown.arguments)
    if arguments is None:
        # Not shown: like no other call, and nobody knows whether it changed something.
        hashed, writes = f"{span_id:032x}", said.kind == "write"
    else:
        hashed = fingerprint(tool, arguments, ignore_args=said.ignore_args or (), loop_key=said.loop_key)
        writes = said.kind == "write" or (said.kind is None and looks_like_write(tool, arguments))
    ident = f"{shown.call_id} of {tool}, turn {step}" if shown.call_id and step else f"span:{span_id:016x}"
    return ToolCall(ident, tool, hashed, at, step, said.kind, writes, permitted, said.cost_usd, rules.exempt)


def _arguments(recorded: Any) -> dict[str, Any] | None:
    if recorded is None:
        return None
    if isinstance(recorded, str):
        try:
            recorded = orjson.loads(recorded)
        except orjson.JSONDecodeError:
            return {"arguments": recorded}
    return recorded if isinstance(recorded, dict) else {"arguments": recorded}


def _failure(span: ReadableSpan, attributes: Attributes) -> Failure | None:
    """The error that the ended tool span *span* reports, if it does."""
    if not failed(span, attributes):
        return None
    name = attributes.get(semconv.ERROR_TYPE)
    message = span.status.description or ""
    for event in span.events:
        if event.name == semconv.EXCEPTION_EVENT:
            said = event.attributes or {}
            name = name or said.get(semconv.EXCEPTION_TYPE)
            message = str(said.get(semconv.EXCEPTION_MESSAGE) or message)
    error_type = str(name or "error")
    if _ERROR_TYPE.fullmatch(error_type):
        return _failed_with(error_type, message)
    return _failed_with("error", f"{error_type} {message}")


def _failed_with(name: str, message: str) -> Failure:
    said = f"{name}: {message}" if message else name
    digest = error_text_digest(said)
    return Failure(name, digest.signature, error_kind(said), infra=digest.infra or _is_busy(name))


def settled(call: ShownCall, *, at: float) -> Settled:
    """How *call* ended. Without a recorded result, it cannot be compared.

    Args:
        call: The call.
        at: Monotonic seconds.
    """
    failure = call.failure
    if failure is not None:
        return Settled(failure.digest, failure.kind, failure.error_class, failure.infra, at=at)
    if call.result is None:
        return Settled(None, at=at)
    result = result_digest(call.result)
    return Settled(result.digest, trivial=result.trivial, at=at)


def _is_busy(error_type: str) -> bool:
    """True for the HTTP status of a failing or overloaded server, or its name (``rate_limit_error``)."""
    if error_type.isdecimal():
        return is_infra_status(int(error_type))
    return is_infra_text(error_type, error_type.replace("_", " "))
