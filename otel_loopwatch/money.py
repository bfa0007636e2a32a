"""Money held for a call that is about to be made."""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar, Token
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from otel_loopwatch.spending import Spending

__all__ = ["Reservation", "take_reservation"]

_current: ContextVar[Reservation | None] = ContextVar("loopwatch_reservation", default=None)


class Reservation:
    """Money held by :meth:`otel_loopwatch.Run.reserve`, best used as a context manager."""

    def __init__(self, run: Spending, usd: Decimal) -> None:
        self.run = run
        self.usd = usd
        self._token: Token[Reservation | None] | None = None
        # Re-entrant: a finaliser or a signal handler may come in while this thread holds it.
        self._lock = threading.RLock()

    def take(self) -> Decimal:
        """What is still held, once: the caller gives it back."""
        with self._lock:
            held, self.usd = self.usd, Decimal(0)
        return held

    def release(self) -> None:
        """Give back what is still held; a second time changes nothing."""
        held = self.take()
        if held:
            self.run.give_back(held)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        # In another context than the one that entered (a generator closed elsewhere) there is nothing to reset.
        with contextlib.suppress(ValueError):
            if token is not None:
                _current.reset(token)
        self.release()


def take_reservation(run: Spending) -> Decimal:
    """What the innermost ``with run.reserve(...)`` of this context still holds for *run*, once."""
    held = _current.get()
    return held.take() if held is not None and held.run is run else Decimal(0)
