"""``@watch_tool``: one decorator for functions, coroutines, (async) generators, methods, partials and callables.

The decorated tool keeps its signature, annotations, docstring and kind. What happens to a call is in
:mod:`otel_loopwatch.pipeline`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from decimal import Decimal
from typing import Any, Literal, TypeVar, overload

from otel_loopwatch.calls import ToolKind
from otel_loopwatch.errors import is_disabled
from otel_loopwatch.fingerprint import StreamDigest
from otel_loopwatch.generators import Steps, async_generator, generator
from otel_loopwatch.pipeline import Call, Tool
from otel_loopwatch.policy import Retry, ToolRules

__all__ = ["watch_tool"]

_watched: weakref.WeakKeyDictionary[Callable[..., Any], Tool] = weakref.WeakKeyDictionary()

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@overload
def watch_tool(fn: F, /) -> F: ...
@overload
def watch_tool(
    *,
    name: str | None = None,
    kind: ToolKind | None = None,
    max_repeats: int | None = None,
    max_calls: int | None = None,
    action: Literal["hint", "abort", "observe"] | None = None,
    ignore_args: tuple[str, ...] | None = None,
    loop_key: tuple[str, ...] | Callable[[dict[str, Any]], Any] | None = None,
    hint: Any = None,
    exempt: bool | None = None,
    sensitive: bool | None = None,
    cost_usd: Decimal | float | None = None,
    idempotent: bool | None = None,
    cache_ttl_s: float | None = None,
    dedupe_window_s: float | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    breaker: bool | None = None,
) -> Callable[[F], F]: ...
def watch_tool(fn: Any = None, /, *, name: str | None = None, **rules: Any) -> Any:
    """Watch a tool: each call is a span tagged with a hash of its arguments, and the run's guard judges it first.

    Bare (``@watch_tool``) or called (``@watch_tool(kind="poll")``). The rules given here are the author's; the
    operator's policy file wins over them, field by field.

    Args:
        fn: The tool: a function, coroutine function, generator, async generator, method, ``partial`` or callable.
        name: Name of the tool, as the model knows it; the function's own by default.
        **rules: The fields of :class:`~otel_loopwatch.ToolRules`.

    Raises:
        PolicyError: For a rule that is out of range.
        TypeError: For something that cannot be called, and for a name that is none.

    A call of the decorated tool raises, besides what the tool raises:
        ToolLoopError: Where the run loops and is stopped.
        BudgetExceeded: Where a limit of the run is used up.
        ToolDenied: Where the policy does not allow the tool.
        ToolHint: Where a hint is due and the return type has no room for one.

    Emits:
        A span ``execute_tool {name}``; ``loopwatch.tool.calls`` and ``loopwatch.tool.repeats``.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"watch_tool: name must be the tool's name, not {name!r}")
    author = ToolRules(**rules)

    def decorate(target: Any) -> Any:
        if isinstance(target, staticmethod | classmethod):
            return type(target)(_wrap(target.__func__, name, author))
        if not callable(target):
            raise TypeError(
                f"watch_tool: {type(target).__name__} cannot be called. Decorate the function itself, "
                "below the framework's decorator."
            )
        return _wrap(target, name, author)

    return decorate if fn is None else decorate(fn)


def _wrap(fn: Callable[..., Any], name: str | None, author: ToolRules) -> Callable[..., Any]:
    watched = _watched.get(fn) if inspect.isfunction(fn) else None
    if watched is not None:
        # Decorated by its author, and again where the agent is put together: one tool, and the outer word counts.
        fn, name, author = watched.fn, name or watched.name, author.over(watched.author)
    plain, own_name = _below(fn)
    tool = Tool(fn, name or own_name, author, drop_first=_takes_self(fn))
    if inspect.isasyncgenfunction(plain):
        wrapper = _async_generator(tool)
    elif inspect.isgeneratorfunction(plain):
        wrapper = _generator(tool)
    elif inspect.iscoroutinefunction(plain):
        wrapper = _coroutine(tool)
    else:
        wrapper = _function(tool)
    # Partials and callable objects have no name of their own, and their __dict__ is state, not metadata.
    updated = functools.WRAPPER_UPDATES if inspect.isroutine(fn) else ()
    functools.update_wrapper(wrapper, fn, updated=updated)
    if not hasattr(fn, "__name__"):
        wrapper.__name__ = wrapper.__qualname__ = own_name
        wrapper.__annotations__ = dict(getattr(plain, "__annotations__", {}))
    _watched[wrapper] = tool
    return wrapper


def _function(tool: Tool) -> Callable[..., Any]:
    fn = tool.fn

    def watched(*args: Any, **kwargs: Any) -> Any:
        call = None if is_disabled() else tool.call(args, kwargs)
        if call is None:
            return fn(*args, **kwargs)
        if not call.admit():
            return call.answer
        call.enter()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            call.leave()
            call.fail(error)
            raise
        call.leave()
        call.succeed(result)
        return result

    return watched


def _coroutine(tool: Tool) -> Callable[..., Any]:
    fn = tool.fn

    async def watched(*args: Any, **kwargs: Any) -> Any:
        call = None if is_disabled() else tool.call(args, kwargs)
        if call is None:
            return await fn(*args, **kwargs)
        if not await call.aadmit():
            return call.answer
        call.enter()
        try:
            result = await _in_time(call, fn(*args, **kwargs))
        except _TimeIsUp:
            call.leave()
            raise call.time_out() from None
        except BaseException as error:
            call.leave()
            call.fail(error)
            raise
        call.leave()
        call.succeed(result)
        return result

    return watched


class _TimeIsUp(BaseException):
    """The run's time, not a timeout of the tool's own."""


async def _in_time(call: Call, body: Awaitable[T]) -> T:
    """Await *body* while the run's time lasts (asyncio only: elsewhere the limit holds at the next guarded call)."""
    remaining = None if call.run is None else call.run.limits.remaining_s()
    if remaining is None:
        return await body
    import asyncio  # noqa: PLC0415 - a program without an event loop does not need it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await body
    limit = asyncio.timeout(remaining)
    try:
        async with limit:
            return await body
    except TimeoutError:
        if limit.expired():
            raise _TimeIsUp from None
        raise


def _generator(tool: Tool) -> Callable[..., Any]:
    fn = tool.fn

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Generator[Any, Any, Any], Steps]:
        call = None if is_disabled() else tool.call(args, kwargs)
        if call is None:
            return fn(*args, **kwargs), Steps()
        return (fn(*args, **kwargs), _Stream(call)) if call.admit() else (_once(call.answer), Steps())

    return generator(begin)


def _async_generator(tool: Tool) -> Callable[..., Any]:
    fn = tool.fn

    async def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[AsyncGenerator[Any, Any], Steps]:
        call = None if is_disabled() else tool.call(args, kwargs)
        if call is None:
            return fn(*args, **kwargs), Steps()
        return (fn(*args, **kwargs), _Stream(call)) if await call.aadmit() else (_aonce(call.answer), Steps())

    return async_generator(begin)


class _Stream(Steps):
    """A call whose result comes in pieces."""

    __slots__ = ("_call", "_digest")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._digest = StreamDigest()

    def enter(self) -> None:
        self._call.enter()

    def leave(self) -> None:
        self._call.leave()

    def yielded(self, item: Any) -> None:
        self._digest.update(item)

    async def within(self, awaitable: Awaitable[T]) -> T:
        return await _in_time(self._call, awaitable)

    def returned(self, value: Any) -> Any:
        self._call.succeed_with(self._digest.result())
        return value

    def failed(self, error: BaseException) -> bool:
        if isinstance(error, _TimeIsUp):
            raise self._call.time_out() from None
        self._call.fail(error)
        return False

    def closed(self, leaving: GeneratorExit) -> None:  # noqa: ARG002
        self._call.abandon(self._digest.result())


def _once(item: Any) -> Generator[Any, Any, None]:
    yield item


async def _aonce(item: Any) -> AsyncGenerator[Any, Any]:
    yield item


def _below(fn: Callable[..., Any]) -> tuple[Any, str]:
    """The function below partials and callable objects, which knows its kind; and a name for the tool."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return fn, fn.__name__
    return type(fn).__call__, getattr(fn, "__name__", type(fn).__name__)


def _takes_self(fn: Callable[..., Any]) -> bool:
    """True for a plain function whose first parameter is ``self`` or ``cls``: a method that is not bound yet."""
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls")
