"""Recognise the parameters and values that a framework injects into a tool: the model did not choose them.

They change with every call (usage, messages, call ids), so that a hash over them would never repeat, and they hold what
must not leave. They are recognised by the name of a class, so that no framework is imported: in annotations
(evaluated or not) and by the classes of the values that come in.
"""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from otel_loopwatch.fingerprint.tagged import MISSING, class_attribute, qualified_name

__all__ = ["is_context_annotation", "is_context_class", "register_context_type"]

# Class names that no one gives to a tool's own data.
_NAMES: Final = {
    # OpenAI Agents SDK, pydantic-ai, Google ADK, Strands, agno
    "RunContextWrapper",
    "ToolContext",
    "RunContext",
    "AgentHookContext",
    "CallbackContext",
    "InvocationContext",
    "ReadonlyContext",
    # LangGraph, LangChain
    "ToolRuntime",
    "InjectedState",
    "InjectedStore",
    "InjectedToolArg",
    "InjectedToolCallId",
    "RunnableConfig",
    "BaseStore",
    "StreamWriter",
    "BaseCallbackManager",
    "CallbackManager",
    "AsyncCallbackManager",
    "CallbackManagerForToolRun",
    "AsyncCallbackManagerForToolRun",
    "BaseCallbackHandler",
    # MCP, FastMCP, Microsoft Agent Framework, AutoGen, CrewAI
    "RequestContext",
    "ServerSession",
    "ClientSession",
    "MiddlewareContext",
    "FunctionInvocationContext",
    "CancellationToken",
    "ToolCallHookContext",
    # web frameworks
    "HTTPConnection",
    "WebSocket",
    "BackgroundTasks",
}

# Names that a tool's own data may well have. A class that declares fields is data, unless it is one of these packages'.
_COMMON_NAMES: Final = {"Context", "Request", "Runtime", "Callbacks"}
_PACKAGES: Final = frozenset(
    (
        "mcp",
        "fastmcp",
        "langgraph",
        "langchain_core",
        "llama_index",
        "workflows",
        "starlette",
        "fastapi",
        "django",
        "flask",
    )
)
_DATA_MARKS: Final = (
    "__dataclass_fields__",
    "__pydantic_fields__",
    "__attrs_attrs__",
    "__struct_fields__",
    "__total__",
)
_DATA_BASES: Final = frozenset((str, int, float, dict, list, tuple))

_registered_types: set[type] = set()
_registered_names: set[str] = set()
_known: dict[type, bool] = {}
_MAX_KNOWN: Final = 1024

_mro: Any = type.__dict__["__mro__"].__get__


def register_context_type(context: type | str) -> None:
    """Keep parameters annotated with *context*, and values of it, out of every hash.

    Args:
        context: A class (its subclasses are meant too), or its name, bare (``MyContext``) or qualified
            (``app.ctx.MyContext``). Register it before the tools that use it are decorated.
    """
    if isinstance(context, str):
        _registered_names.add(context)
    else:
        _registered_types.add(context)
    _known.clear()


def is_context_class(kind: type) -> bool:
    """True for a class whose values are injected. Never raises."""
    try:
        found = _known.get(kind)
        if found is None:
            found = any(map(_is_context_base, _mro(kind)))
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[kind] = found
    except Exception:  # noqa: BLE001 - the metaclass of a value may raise anything
        return False
    return found


def _is_context_base(base: type) -> bool:
    if base in _registered_types:
        return True
    qualified = qualified_name(base)
    # pydantic names a parametrised generic "RunContext[Deps]".
    name = base.__name__.partition("[")[0]
    if name in _NAMES or name in _registered_names or qualified in _registered_names:
        return True
    return name in _COMMON_NAMES and (qualified.partition(".")[0] in _PACKAGES or not _is_data(base))


def _is_data(kind: type) -> bool:
    return not _DATA_BASES.isdisjoint(_mro(kind)) or any(
        class_attribute(kind, mark) is not MISSING for mark in _DATA_MARKS
    )


def is_context_annotation(annotation: Any, names: Mapping[str, Any]) -> bool:
    """True where *annotation*, or a part of an Optional, Union or Annotated, is a class whose values are injected.

    Args:
        annotation: As written: a class, an object of :mod:`typing`, a marker in Annotated, or a string of any of these.
        names: What names in strings may refer to: the globals of the function. A name that is not there (imported for
            type checkers alone) is judged by itself.
    """
    if isinstance(annotation, str):
        try:
            tree = ast.parse(annotation.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
        return _is_context_expression(tree.body, names)
    if isinstance(annotation, typing.ForwardRef):
        return is_context_annotation(annotation.__forward_arg__, names)
    if isinstance(annotation, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        return is_context_annotation(annotation.__value__, names)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated or origin is typing.Union or origin is types.UnionType:
        parts = typing.get_args(annotation)
        return any(
            is_context_annotation(part, names)
            for part in parts
            if not isinstance(part, str) or origin is not typing.Annotated
        )
    kind = annotation if isinstance(annotation, type) else origin if isinstance(origin, type) else type(annotation)
    return is_context_class(kind)


def _is_context_expression(node: ast.expr, names: Mapping[str, Any]) -> bool:  # noqa: PLR0911 - one a kind of node
    """The same for source text, without evaluating it."""
    match node:
        case ast.Constant(value=str(text)):
            return is_context_annotation(text, names)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_context_expression(left, names) or _is_context_expression(right, names)
        case ast.Call(func=func):
            return _is_context_expression(func, names)
        case ast.Subscript(value=base, slice=inner):
            last = _last_name(base)
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if last == "Annotated":
                # A string among the metadata is a description.
                return any(
                    _is_context_expression(part, names)
                    for at, part in enumerate(parts)
                    if at == 0 or not isinstance(part, ast.Constant)
                )
            if last in ("Optional", "Union"):
                return any(_is_context_expression(part, names) for part in parts)
            return _is_context_expression(base, names)
        case ast.Name() | ast.Attribute():
            return _is_context_name(node, names)
    return False


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_context_name(node: ast.Name | ast.Attribute, names: Mapping[str, Any]) -> bool:
    dotted = ast.unparse(node)
    first, *rest = dotted.split(".")
    found = names.get(first, MISSING)
    for attribute in rest:
        found = getattr(found, attribute, MISSING)
    if found is not MISSING and not isinstance(found, str):
        return is_context_annotation(found, names)
    last = dotted.rpartition(".")[2]
    return last in _NAMES or last in _COMMON_NAMES or last in _registered_names or dotted in _registered_names
