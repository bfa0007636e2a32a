"""What the guard costs a tool call: rows of DESIGN 7, as multiples of a span written by hand, from one run.

python benchmarks/overhead.py [--quick] [--json] [--profile ROW]
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import orjson
from harness import PROVIDER, Case, Prepare, Timed, arguments, main, search
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_loopwatch as lw
from otel_loopwatch import telemetry
from otel_loopwatch.calls import Settled, ToolCall
from otel_loopwatch.fingerprint import fingerprint

UNLIMITED = 10**9

SAMPLED_OUT = TracerProvider(sampler=ALWAYS_OFF)
NO_BUDGETS = lw.Policy()
BUDGETS = lw.Policy(
    budgets=lw.Budgets(
        max_steps=UNLIMITED,
        max_tool_calls=UNLIMITED,
        max_seconds=UNLIMITED,
        max_tokens=UNLIMITED,
        max_spend_usd=Decimal(UNLIMITED),
    )
)
# The same call with a new result is progress until this limit: here it is never reached.
CHANGING = replace(NO_BUDGETS, loops=replace(NO_BUDGETS.loops, max_repeats_changing=UNLIMITED))

watched = lw.watch_tool(search)


@lw.watch_tool(name="search")
async def watched_async(query: str, limit: int = 10, filters: dict[str, object] | None = None) -> str:
    return search(query, limit, filters)


def in_run(policy: lw.Policy, provider: TracerProvider) -> Prepare:
    """Watched calls, each with other arguments, in one run."""

    @contextmanager
    def prepare(n: int) -> Iterator[Timed]:
        calls = arguments(n)
        telemetry.use_tracer_provider(provider)

        def call_all() -> None:
            for kwargs in calls:
                watched(**kwargs)

        with lw.watch_run("benchmark", policy=policy):
            yield call_all

    return prepare


@contextmanager
def in_run_async(n: int) -> Iterator[Timed]:
    calls = arguments(n)
    telemetry.use_tracer_provider(PROVIDER)

    async def call_all() -> None:
        for kwargs in calls:
            await watched_async(**kwargs)

    # The runner takes the context of the place where it is first used.
    with lw.watch_run("benchmark", policy=NO_BUDGETS), asyncio.Runner() as runner:
        runner.get_loop()
        yield lambda: runner.run(call_all())


def verdict_alone(policy: lw.Policy, fingerprint_of: Callable[[int], str]) -> Prepare:
    """``admit`` and ``settle`` on the memory ledger; the records are made before."""

    @contextmanager
    def prepare(n: int) -> Iterator[Timed]:
        telemetry.use_tracer_provider(SAMPLED_OUT)
        run = lw.Run("benchmark", policy=policy)
        rules = policy.rules_for("search")
        at = run.clock()
        pairs = [
            (ToolCall(f"#{number}", "search", fingerprint_of(number), at), Settled(f"{number:032x}", at=at))
            for number in range(n)
        ]

        def judge_all() -> None:
            for call, settled in pairs:
                run.admit(call, rules)
                run.settle(call, settled)

        yield judge_all
        run.close()

    return prepare


def hashing(make: Callable[[int], dict[str, object]]) -> tuple[Prepare, Prepare]:
    """The fingerprint of arguments, and what it is compared with: orjson and SHA-256 of the same value."""

    @contextmanager
    def ours(n: int) -> Iterator[Timed]:
        values = [make(number) for number in range(n)]
        yield lambda: [fingerprint("search", value) for value in values]

    @contextmanager
    def plain(n: int) -> Iterator[Timed]:
        values = [make(number) for number in range(n)]
        dumps, sha256 = orjson.dumps, hashlib.sha256
        yield lambda: [sha256(dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest() for value in values]

    return ours, plain


def hash_cases() -> Iterator[Case]:
    """The hash row, an entry a kind of arguments."""
    text = "the retention of attachments that were uploaded before the migration; "
    for key, what, ceiling, make in (
        ("hash_100", "hash of 100 B", 2.5, lambda number: {"query": f"{number:08d} {text}", "limit": 10}),
        ("hash_2k", "hash of 2 kB, ASCII", 2.0, lambda number: {"query": f"{number:08d} {text * 28}", "limit": 10}),
        (
            "hash_text",
            "hash of 2 kB, not ASCII",
            4.0,
            lambda number: {"query": f"{number:08d} {'Aufbewahrung für Anhänge, ' * 70}"},
        ),
        (
            "hash_floats",
            "hash of 2 kB, floats to rewrite",
            12.0,
            lambda number: {"vector": [float(number + i) for i in range(300)]},
        ),
    ):
        ours, plain = hashing(make)
        yield Case(f"{key}_plain", "orjson and SHA-256", plain)
        yield Case(key, f"{what}, against orjson and SHA-256", ours, ceiling, against=f"{key}_plain")


CASES = (
    Case("sync", "watched call, in full, sync", in_run(NO_BUDGETS, PROVIDER), 1.6, 1.45),
    Case("async", "watched call, in full, async", in_run_async, 1.6, 1.45),
    Case("budgets", "the same, sync, with five budgets set", in_run(BUDGETS, PROVIDER)),
    Case("sampled_out", "tracing sampled out", in_run(NO_BUDGETS, SAMPLED_OUT), 0.6, 0.5),
    Case("verdict", "verdict alone, distinct calls", verdict_alone(NO_BUDGETS, "{:032x}".format), 0.25, 0.2),
    Case(
        "verdict_same",
        "verdict alone, same call, changing result",
        verdict_alone(CHANGING, lambda _: "0" * 32),
        0.45,
        0.4,
    ),
    *hash_cases(),
)


if __name__ == "__main__":
    main(__doc__, CASES)
