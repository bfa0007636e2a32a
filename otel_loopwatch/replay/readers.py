"""Recorded runs and their labels from JSON lines, as a stream. What cannot be read is reported and skipped.

A run: ``{run_id, source, outcome, calls: [{tool, args, result, error, step?, ts?, tokens?}, ...]}``. Files may be
compressed with gzip, whatever their names; ``-`` is the standard input.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

__all__ = ["Label", "RecordedCall", "RecordedRun", "Skipped", "read_labels", "read_runs"]

GZIP_MAGIC = b"\x1f\x8b"
STDIN = "-"

_T = TypeVar("_T")


class Skipped(NamedTuple):
    """Something that could not be read.

    Attributes:
        file: Its file; ``-`` for the standard input.
        line: Its line, from 1; 0 where the file as a whole is meant.
        reason: What is wrong with it.
    """

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


class RecordedCall(NamedTuple):
    """One recorded tool call.

    Attributes:
        tool: Name of the tool.
        args: Its arguments by name.
        result: What it returned, or the text of its error.
        error: True where it failed.
        step: The model turn, from 0; ``None`` where turns were not recorded.
        ts: Unix time in seconds, where it was recorded.
        tokens: Tokens of the model turn, where they were recorded.
    """

    tool: str
    args: dict[str, Any]
    result: Any
    error: bool
    step: int | None = None
    ts: float | None = None
    tokens: int | None = None


class RecordedRun(NamedTuple):
    """One recorded run.

    Attributes:
        run_id: Its id.
        source: Where it was recorded.
        outcome: ``success``, ``failure`` or ``unknown``.
        calls: Its tool calls, in order.
    """

    run_id: str
    source: str
    outcome: str
    calls: tuple[RecordedCall, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """What a person said about a run.

    Attributes:
        run_id: Its id.
        is_loop: True where it contains a loop.
        kind: Which kind of loop, or of work that only looks like one.
        first_bad_call: Index, from 0, of the first wasted call of a loop.
        is_sure: False where the person was not: such a label is left out of the score.
    """

    run_id: str
    is_loop: bool
    kind: str
    first_bad_call: int | None
    is_sure: bool = True


class _Malformed(Exception):
    """A record that is not of the form it should have."""


def read_runs(
    files: Iterable[str | Path],
    *,
    on_skip: Callable[[Skipped], object],
    on_bytes: Callable[[int], object] | None = None,
) -> Iterator[RecordedRun]:
    """The runs in *files*, one after the other.

    Args:
        files: Paths, or ``-`` for the standard input.
        on_skip: Told of every line or file that cannot be read.
        on_bytes: Told how many bytes of the file (as stored) have been read since it was last told.
    """
    for file in files:
        yield from _records(str(file), _run, on_skip, on_bytes)


def read_labels(file: str | Path, *, on_skip: Callable[[Skipped], object]) -> dict[str, Label]:
    """The labels in *file*, by run id. Of two on one run the later holds.

    Args:
        file: A path, or ``-`` for the standard input.
        on_skip: Told of every line that cannot be read.
    """
    return {label.run_id: label for label in _records(str(file), _label, on_skip, None)}


def _records(
    file: str,
    parse: Callable[[dict[str, Any]], _T],
    on_skip: Callable[[Skipped], object],
    on_bytes: Callable[[int], object] | None,
) -> Iterator[_T]:
    number = 0
    try:
        with _opened(file) as (raw, lines):
            read = 0
            for number, line in enumerate(lines, start=1):
                if on_bytes is not None and raw is not None:
                    now = raw.tell()
                    on_bytes(now - read)
                    read = now
                if not line.strip():
                    continue
                try:
                    record = parse(_object(line))
                except _Malformed as fault:
                    on_skip(Skipped(file, number, str(fault)))
                else:
                    yield record
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        on_skip(Skipped(file, number + 1, f"the compressed data ends or breaks off here ({type(fault).__name__})"))
    except OSError as fault:
        on_skip(Skipped(file, number, f"cannot be read ({fault.strerror or type(fault).__name__})"))


@contextmanager
def _opened(file: str) -> Iterator[tuple[IO[bytes] | None, IO[bytes]]]:
    """The file as it is stored, where it can tell how far reading has come, and its lines."""
    if file == STDIN:
        yield None, _unpacked(sys.stdin.buffer)
        return
    with Path(file).open("rb") as raw:
        # A pipe (``<(zcat ...)``) cannot tell how far it has been read.
        yield raw if raw.seekable() else None, _unpacked(raw)


def _unpacked(raw: Any) -> IO[bytes]:
    """*raw*, unpacked where it begins like gzip."""
    return gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == GZIP_MAGIC else raw  # type: ignore[return-value]


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        raise _Malformed("not UTF-8") from None
    except (ValueError, RecursionError):
        raise _Malformed("not JSON") from None
    if not isinstance(value, dict):
        raise _Malformed("not a JSON object")
    return value


def _run(record: dict[str, Any]) -> RecordedRun:
    calls = _field(record, "calls", list)
    return RecordedRun(
        run_id=_field(record, "run_id", str),
        source=_field(record, "source", str),
        outcome=_field(record, "outcome", str),
        calls=tuple(_call(call, index) for index, call in enumerate(calls)),
    )


def _call(call: Any, index: int) -> RecordedCall:
    where = f"calls[{index}]"
    if not isinstance(call, dict):
        raise _Malformed(f"{where} is not a JSON object")
    for name in ("args", "result"):
        if name not in call:
            raise _Malformed(f"{where}.{name} is missing")
    args = call["args"]
    if args is not None and not isinstance(args, dict):
        raise _Malformed(f"{where}.args is not a JSON object")
    step, ts, tokens = (_number(call, name, where) for name in ("step", "ts", "tokens"))
    return RecordedCall(
        tool=_field(call, "tool", str, where),
        args=args or {},
        result=call["result"],
        error=_field(call, "error", bool, where),
        step=None if step is None else int(step),
        ts=ts,
        tokens=None if tokens is None else int(tokens),
    )


def _label(record: dict[str, Any]) -> Label:
    name = _field(record, "label", str)
    if name not in ("loop", "not_loop"):
        raise _Malformed("label is neither loop nor not_loop")
    first = _number(record, "first_bad_call_index", "")
    if name == "loop" and first is None:
        raise _Malformed("first_bad_call_index of a loop is missing")
    return Label(
        run_id=_field(record, "run_id", str),
        is_loop=name == "loop",
        kind=_field(record, "kind", str),
        first_bad_call=None if first is None else int(first),
        is_sure=record.get("confidence") != "low",
    )


def _field(record: dict[str, Any], name: str, kind: type, where: str = "") -> Any:
    path = f"{where}.{name}" if where else name
    if name not in record:
        raise _Malformed(f"{path} is missing")
    value = record[name]
    if not isinstance(value, kind):
        raise _Malformed(f"{path} is not a {'list' if kind is list else 'boolean' if kind is bool else 'string'}")
    return value


def _number(record: dict[str, Any], name: str, where: str) -> float | None:
    """An optional number >= 0."""
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise _Malformed(f"{where}.{name} is not a number >= 0" if where else f"{name} is not a number >= 0")
    return value
