"""Generators whose body runs in a context that their consumer does not see.

A context that is attached across a ``yield`` leaks into the consumer, and cannot be detached by another task or thread
that goes on with the generator. So it is attached around each step of the body, and never in between.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeVar

__all__ = ["Steps", "async_generator", "generator"]

T = TypeVar("T")


class Steps:
    """What is done around the steps of a generator's body. This one does nothing."""

    __slots__ = ()

    def enter(self) -> None:
        """The body goes on."""

    def leave(self) -> None:
        """The body has yielded, returned or raised."""

    async def within(self, awaitable: Awaitable[T]) -> T:
        """Await one step of an asynchronous body."""
        return await awaitable

    def yielded(self, item: Any) -> None:
        """The body has yielded *item*."""

    def returned(self, value: Any) -> Any:
        """The body has returned; returns what the generator returns."""
        return value

    def failed(self, error: BaseException) -> bool:  # noqa: ARG002
        """The body has raised *error*; True ends the generator quietly."""
        return False

    def closed(self, leaving: GeneratorExit) -> None:
        """The body was closed before its end: nobody waits for the rest."""


def generator(
    begin: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Generator[Any, Any, Any], Steps]],
) -> Callable[..., Generator[Any, Any, Any]]:
    """A generator function: *begin*, called when the first item is asked for, makes the body of the arguments."""

    def watched(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body, steps = begin(args, kwargs)
        resume: Callable[[], Any] = functools.partial(next, body)
        while True:
            try:
                item = _step(resume, steps)
            except StopIteration as stop:
                return steps.returned(stop.value)
            except BaseException as error:
                if steps.failed(error):
                    return steps.returned(None)
                raise
            steps.yielded(item)
            try:
                sent = yield item
            except GeneratorExit as leaving:
                _close(body, steps, leaving)
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on into the body
                resume = functools.partial(body.throw, thrown)
            else:
                resume = functools.partial(body.send, sent)

    return watched


def _step(resume: Callable[[], Any], steps: Steps) -> Any:
    steps.enter()
    try:
        return resume()
    finally:
        steps.leave()


def _close(body: Generator[Any, Any, Any], steps: Steps, leaving: GeneratorExit) -> None:
    try:
        _step(body.close, steps)
    except BaseException as error:
        if not steps.failed(error):
            raise
    else:
        steps.closed(leaving)


def async_generator(
    begin: Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[tuple[AsyncGenerator[Any, Any], Steps]]],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """:func:`generator` for an asynchronous body."""

    async def watched(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body, steps = await begin(args, kwargs)
        resume: Callable[[], Awaitable[Any]] = body.__anext__
        while True:
            try:
                item = await _astep(resume, steps)
            except StopAsyncIteration:
                steps.returned(None)
                return
            except BaseException as error:
                if steps.failed(error):
                    return
                raise
            steps.yielded(item)
            try:
                sent = yield item
            except GeneratorExit as leaving:
                await _aclose(body, steps, leaving)
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on into the body
                resume = functools.partial(body.athrow, thrown)
            else:
                resume = functools.partial(body.asend, sent)

    return watched


async def _astep(resume: Callable[[], Awaitable[Any]], steps: Steps) -> Any:
    steps.enter()
    try:
        return await steps.within(resume())
    finally:
        steps.leave()


async def _aclose(body: AsyncGenerator[Any, Any], steps: Steps, leaving: GeneratorExit) -> None:
    try:
        await _astep(body.aclose, steps)
    except BaseException as error:
        if not steps.failed(error):
            raise
    else:
        steps.closed(leaving)
