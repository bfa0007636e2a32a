"""What a tool answers instead of its result: a hint that code can tell from one, where the tool's type allows it."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Self

from otel_loopwatch.calls import Verdict
from otel_loopwatch.errors import ToolHint, report_fault
from otel_loopwatch.verdict import DENIED_MARKER, HINT_MARKER

__all__ = ["Hint", "answer", "is_hint", "returns_text"]


class Hint(str):
    """A synthetic result, for the model. A ``str``, so that every framework passes it on.

    Attributes:
        tool_name: The tool that was called.
        repeats: The number of the call that was answered.
    """

    __slots__ = ("repeats", "tool_name")
    tool_name: str
    repeats: int

    def __new__(cls, text: str, tool_name: str = "", repeats: int = 0) -> Self:
        """Make a hint of *text*."""
        hint = super().__new__(cls, text)
        hint.tool_name = tool_name
        hint.repeats = repeats
        return hint

    @property
    def error(self) -> str:
        """``loop-detected``, as the first seed's result has it; ``tool-denied`` where the policy forbids the tool."""
        return (DENIED_MARKER if self.startswith(DENIED_MARKER) else HINT_MARKER).strip("[]")

    def __reduce__(self) -> tuple[Any, ...]:
        return Hint, (str(self), self.tool_name, self.repeats)


def is_hint(value: object) -> bool:
    """True where *value* is an answer of ours, not of the tool; also when it has been through JSON."""
    return isinstance(value, str) and value.startswith((HINT_MARKER, DENIED_MARKER))


def answer(verdict: Verdict, tool: str, custom: Any, *, text_allowed: bool) -> Any:
    """The value to return for a hinted call.

    Args:
        verdict: The verdict, with its text.
        tool: Name of the tool.
        custom: ``ToolRules.hint``: a value, or a function of the verdict.
        text_allowed: True where the tool's return type has room for a string.

    Raises:
        ToolHint: Where it has none and no ``ToolRules.hint`` is set.
    """
    if custom is not None:
        if not callable(custom):
            return custom
        try:
            return custom(verdict)
        except Exception as fault:  # noqa: BLE001 - a user's function may raise anything
            report_fault("hint", fault)
    text = verdict.text or ""
    repeats = verdict.repeats if verdict.finding is None else verdict.finding.repeats
    if text_allowed:
        return Hint(text, tool, repeats)
    raise ToolHint(text, tool_name=tool, repeats=repeats)


_NOTHING = inspect.Signature.empty
_OPEN_TYPES = (_NOTHING, Any, object, str, None, type(None))


def returns_text(fn: Callable[..., Any]) -> bool:
    """True where a string may be returned (or, by a generator, yielded).

    That is for ``str``, ``Any``, ``object``, a union with one of them, or where nothing is said; ``-> None`` promises
    nothing that code could read a field of. A type that cannot be found out is taken for a promise.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    plain: Any = fn if inspect.isroutine(fn) else type(fn).__call__
    plain = inspect.unwrap(getattr(plain, "__func__", plain))
    annotation = _return_type(plain)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        yielded = typing.get_args(annotation)
        annotation = yielded[0] if yielded else Any
    return not inspect.isclass(fn) and _has_room(annotation)


def _return_type(fn: Any) -> Any:
    """What *fn* promises, evaluated on its own: a parameter's type may well be there for type checkers alone."""
    annotation = getattr(fn, "__annotations__", {}).get("return", _NOTHING)
    if annotation is _NOTHING:
        return annotation
    alone = types.SimpleNamespace(__annotations__={"return": annotation})
    try:
        return typing.get_type_hints(alone, globalns=getattr(fn, "__globals__", {}))["return"]
    except Exception:  # noqa: BLE001 - the evaluation of an annotation may raise anything
        return annotation


def _has_room(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_has_room(part) for part in typing.get_args(annotation) if part is not type(None))
    return isinstance(annotation, typing.TypeVar) or any(annotation is open_type for open_type in _OPEN_TYPES)
