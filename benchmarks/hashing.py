"""What hashing costs, as multiples of what it is compared with, from one run: DESIGN 7 (the hash row) and case E-9.

python benchmarks/hashing.py [--quick] [--json] [--profile ROW]
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson
import pandas as pd
from harness import Case, Prepare, Timed, main

from otel_loopwatch.fingerprint import Binder, fingerprint, looks_like_write
from otel_loopwatch.fingerprint.digest import result_digest

MEGA = 1_000_000

TEXT = "how does the retention policy treat attachments that were uploaded before the last migration "
CODE = "def function(argument):\n    return argument + 1  # the next one\n"

Make = Callable[[int], Any]


def timed(work: Callable[[Any], object], make: Make) -> Prepare:
    """*work* on values that are all different; making them is not timed."""

    @contextmanager
    def prepare(n: int) -> Iterator[Timed]:
        values = [make(number) for number in range(n)]
        yield lambda: [work(value) for value in values]

    return prepare


def hashed(value: Any) -> str:
    return fingerprint("search", value)


def by_hand(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value)).hexdigest()


def sha_256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def against(key: str, what: str, work: Any, make: Make, base: Any, base_make: Make, **facts: Any) -> tuple[Case, Case]:
    """A case and the one that it is compared with."""
    operations = facts.pop("operations", 400)
    return (
        Case(f"{key}_base", "", timed(base, base_make), operations=operations),
        Case(key, what, timed(work, make), operations=operations, against=f"{key}_base", **facts),
    )


def arguments(key: str, what: str, make: Make, ceiling: float | None = None) -> tuple[Case, Case]:
    """Against orjson and SHA-256 of the same value."""
    return against(key, f"fingerprint: {what}", hashed, make, by_hand, make, ceiling=ceiling)


def huge(key: str, what: str, value: Any, size: int) -> tuple[Case, Case]:
    """Case E-9: against SHA-256 of as many bytes."""
    raw = bytes(size)
    return against(
        key,
        f"E-9, SHA-256 of as many bytes: {what}",
        hashed,
        lambda _: {"a": value},
        sha_256,
        lambda _: raw,
        operations=1,
    )


def items(number: int) -> list[dict[str, Any]]:
    return [{"id": number + at, "name": f"item {at}", "tags": ["a", "b", "c"], "active": True} for at in range(25)]


def edits(number: int) -> list[dict[str, Any]]:
    return [{"old": CODE, "new": CODE.replace("1", "2"), "line": number + at} for at in range(14)]


def search(query: str, limit: int = 10, *, lang: str = "en") -> None:
    pass


BINDER = Binder(search)
SIGNATURE = inspect.signature(search)
SHELL = "cd /repo && python -m pytest tests/test_x.py -k 'one or two' 2>&1 | tail -n 40"


def bound_by_inspect(_: Any) -> object:
    arguments = SIGNATURE.bind("x", limit=5)
    arguments.apply_defaults()
    return arguments.arguments


def result(number: int) -> str:
    return f"Ran {number} tests in 0.{number}s. Read from /repo/src/module.py, line 128: {TEXT}"


CASES = [
    case
    for pair in (
        arguments("small", "100 B", lambda n: {"query": f"{n:08d} {TEXT[:60]}", "limit": 10}, 2.5),
        arguments("flat", "2 kB, flat, ASCII", lambda n: {"query": f"{n:08d} {TEXT * 20}", "limit": 10}, 2.0),
        arguments("nested", "2 kB, 14 objects of code", lambda n: {"path": "/a.py", "edits": edits(n)}, 2.0),
        arguments("dense", "2 kB, 25 small objects, 200 values", lambda n: {"items": items(n)}),
        arguments("latin", "2 kB, accents", lambda n: {"query": f"{n:08d} " + "où est la clé ? " * 120}, 4.0),
        arguments("wide", "2 kB, Japanese", lambda n: {"query": f"{n:08d} " + "東京の天気はどうですか。" * 55}, 4.0),
        arguments("mixed", "2 kB, emoji", lambda n: {"query": f"{n:08d} " + "what a day 😀 " * 125}, 4.0),
        arguments(
            "whole", "2 kB, 300 floats, all whole", lambda n: {"points": [float(n + at) for at in range(300)]}, 12.0
        ),
        arguments(
            "half", "2 kB, 300 floats, half whole", lambda n: {"points": [n + at / 2 for at in range(300)]}, 12.0
        ),
        arguments(
            "tiny", "2 kB, 150 floats with an exponent", lambda n: {"points": [(n + at) * 1e-9 for at in range(150)]}
        ),
        against(
            "tagged",
            "fingerprint: 200 B with bytes and a set",
            hashed,
            lambda n: {"query": TEXT, "raw": b"x", "ids": {n, 1}},
            by_hand,
            lambda n: {"query": TEXT, "raw": "x", "ids": [n, 1]},
        ),
        huge("bytes", "50 MB bytes", bytes(50 * MEGA), 50 * MEGA),
        huge("text", "50 MB text", "a" * (50 * MEGA), 50 * MEGA),
        huge("ints", "a list of 10^6 ints", list(range(MEGA)), 8 * MEGA),
        huge("floats", "a list of 10^6 floats", [at / 2 for at in range(MEGA)], 8 * MEGA),
        huge("frame", "a DataFrame of 10^6 x 10 floats", pd.DataFrame(np.zeros((MEGA, 10))), 80 * MEGA),
        against(
            "binder",
            "binding, inspect.Signature.bind",
            lambda _: BINDER.bind(("x",), {"limit": 5}),
            int,
            bound_by_inspect,
            int,
        ),
        against(
            "digest",
            "result digest of 180 B, SHA-256 of it",
            result_digest,
            result,
            lambda text: sha_256(text.encode()),
            result,
        ),
        against(
            "write",
            "looks_like_write of a shell command, SHA-256 of it",
            lambda text: looks_like_write("bash", {"command": text}),
            lambda n: f"{SHELL} {n}",
            lambda text: sha_256(text.encode()),
            lambda n: f"{SHELL} {n}",
        ),
        against(
            "name",
            "looks_like_write of a name known before, SHA-256 of it",
            lambda arguments: looks_like_write("get_order_details", arguments),
            lambda n: {"id": n},
            lambda _: sha_256(b"get_order_details"),
            int,
        ),
    )
    for case in pair
]


if __name__ == "__main__":
    main(__doc__, CASES)
