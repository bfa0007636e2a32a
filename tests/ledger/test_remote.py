"""The contract on a ledger that is far away: slow, with messages that arrive twice and replies that get lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from contract import OK, Contract, call

from otel_loopwatch.calls import Settled, ToolCall, Trip, Usage, Used
from otel_loopwatch.history import History
from otel_loopwatch.ledger.memory import MemoryLedger, MemoryRun


class ReplyLostError(Exception):
    """The store has done it, and the client does not know."""


class Wire:
    """Delivers messages to the store.

    Every fifth is delivered twice; of every fourth the reply is lost, whereupon the client sends it again. A message
    carries a number, and the store does each number once and answers it alike each time: a caller whose reply was lost
    is told the count that was taken for it, not what others have taken since.
    """

    def __init__(self) -> None:
        self.sent = itertools.count(1)
        self.numbers = itertools.count(1)
        self.answered: dict[int, Any] = {}
        self.round_trips = 0

    def _deliver(self, number: int, do: Callable[[], Any]) -> Any:
        self.round_trips += 1
        serial = next(self.sent)
        for _ in range(2 if serial % 5 == 0 else 1):
            if number not in self.answered:
                self.answered[number] = do()
        if serial % 4 == 0:
            raise ReplyLostError
        return self.answered[number]

    def send(self, do: Callable[[], Any]) -> Any:
        number = next(self.numbers)
        while True:
            try:
                return self._deliver(number, do)
            except ReplyLostError:
                continue

    async def asend(self, do: Callable[[], Any]) -> Any:
        number = next(self.numbers)
        while True:
            await asyncio.sleep(0)  # latency: other tasks run in between
            try:
                reply = self._deliver(number, do)
            except ReplyLostError:
                continue
            await asyncio.sleep(0)
            return reply


class RemoteRun:
    """The client's side of one run."""

    is_local = False

    def __init__(self, store: MemoryRun, wire: Wire) -> None:
        self._store = store
        self._wire = wire

    def reserve(self, one: ToolCall) -> History:
        return self._wire.send(lambda: self._store.reserve(one))

    def release(self, one: ToolCall, *, hinted: str | None = None) -> None:
        self._wire.send(lambda: self._store.release(one, hinted=hinted))

    def settle(self, one: ToolCall, settled: Settled) -> tuple[Used, ...]:
        return self._wire.send(lambda: self._store.settle(one, settled))

    def charge(self, usage: Usage, *, held: Decimal = Decimal(0)) -> tuple[Used, ...]:
        return self._wire.send(lambda: self._store.charge(usage, held=held))

    def hold(self, usd: Decimal) -> tuple[Used, ...]:
        return self._wire.send(lambda: self._store.hold(usd))

    def step(self) -> tuple[Used, ...]:
        return self._wire.send(self._store.step)

    def progress(self) -> None:
        self._wire.send(self._store.progress)

    def used(self) -> tuple[Used, ...]:
        return self._wire.send(self._store.used)

    def trip(self, trip: Trip) -> Trip:
        return self._wire.send(lambda: self._store.trip(trip))

    def tripped(self) -> Trip | None:
        return self._wire.send(self._store.tripped)

    async def areserve(self, one: ToolCall) -> History:
        return await self._wire.asend(lambda: self._store.reserve(one))

    async def arelease(self, one: ToolCall, *, hinted: str | None = None) -> None:
        await self._wire.asend(lambda: self._store.release(one, hinted=hinted))

    async def asettle(self, one: ToolCall, settled: Settled) -> tuple[Used, ...]:
        return await self._wire.asend(lambda: self._store.settle(one, settled))

    async def acharge(self, usage: Usage, *, held: Decimal = Decimal(0)) -> tuple[Used, ...]:
        return await self._wire.asend(lambda: self._store.charge(usage, held=held))

    async def atrip(self, trip: Trip) -> Trip:
        return await self._wire.asend(lambda: self._store.trip(trip))


class RemoteLedger:
    """A store that is reached over :class:`Wire`."""

    def __init__(self) -> None:
        self.wire = Wire()
        self._store = MemoryLedger()

    def open(self, run_id: str, parent: RemoteRun | None) -> RemoteRun:
        store = self.wire.send(lambda: self._store.open(run_id, None if parent is None else parent._store))
        return RemoteRun(store, self.wire)


class TestRemote(Contract):
    @pytest.fixture
    def ledger(self):
        return RemoteLedger()


def test_the_wire_does_lose_and_repeat():
    ledger = RemoteLedger()
    run = ledger.open("run", None)
    before = ledger.wire.round_trips
    for number in range(20):
        run.reserve(call(number, args=str(number)))
    assert ledger.wire.round_trips - before > 20
    assert run.used()[0].tool_calls == 20


def test_allow_is_one_round_trip_and_a_hint_is_two():
    ledger = RemoteLedger()
    run = ledger.open("run", None)
    next(ledger.wire.sent)  # so that the next two replies arrive
    before = ledger.wire.round_trips
    run.reserve(call(1))
    assert ledger.wire.round_trips - before == 1
    ledger.wire.sent = itertools.count(1)
    run.release(call(1), hinted="s")
    assert ledger.wire.round_trips - before == 2
    run.settle(call(1), OK)
    assert run.used() == (Used(),)
