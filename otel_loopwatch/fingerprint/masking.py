"""A text without what changes between two answers that say the same: times, durations, ids, addresses, temporary paths.

Plain numbers stay: another number is another answer. Masked:

* Dates and times: ISO 8601, ``12:30:45``, ``01/02/2024``, ``Mon May  1 10:00:00 2024``, ``15/Mar/2024:10:00:00``,
  seconds since 1970 with a fraction.
* Durations (``0.12s``, ``3 ms``, ``1.2e-3 seconds``, ``1m30s``), rates (``12.3MB/s``, ``8.9it/s``), the meter that
  curl draws.
* UUIDs, hexadecimal ids of 8 characters or more that mix digits and letters, addresses (``0x7f3a2c``).
* Numbers of processes and threads (``pid 123``, ``sshd[123]:``, ``[1] 12345``), names that tempfile and mktemp make.

Patterns over a whole text would cost more than hashing it. So it is split into words, only words with a digit are
looked at, and those that turned out to hold nothing to mask are remembered: a loop gives the same words again and
again. No pattern backtracks over an unbounded run.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["mask"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MARK: Final = "\x1a"
"""Stands for what was masked: the control character SUBSTITUTE, which no text has. Patterns take it for a letter, so
that a mask makes no new edge of a word beside it."""

# The first character is taken before it is asked what stands before it, hence the lookbehinds of two: a pattern that
# begins with a set of characters is skipped through several times faster.
_VOLATILE: Final = re.compile(
    r"""
    [0-9a-fA-F\[]
    (?:
      # Digits first: dates, clocks, numbers with a unit.
      (?<=[0-9])(?<![0-9a-zA-Z\x1a][0-9])
      (?:
        (?:\d{3}-\d{2}-\d{2}|\d{3}/\d{2}/\d{2}|\d/\d{2}/\d{4}|\d\.\d{2}\.\d{4}|\d?/[A-Z][a-z]{2}/\d{4}|\d{7}(?=T\d{4}))
        (?:[T:_]\d{2}:?\d{2}(?::?\d{2}(?:[.,]\d{1,9})?)?)?(?:Z|[+-]\d{2}:?\d{2})?(?![\d\x1a-])
      | (?<![:.].)\d{0,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?|(?=[^\w:\x1a]|$))
        (?:[AaPp][Mm]|Z|[+-]\d{2}:?\d{2})?(?![\w:\x1a])
      | (?<![._].)\d{0,15}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?
        (?:ns|[uµμ]s|ms|s|secs?|seconds?|mins?|minutes?|hrs?|hours?
        |[kKMGT]?(?:i?B|bits?|bytes|b|it|requests|req|ops|rows|tokens)?(?:/s(?:ec)?|ps)
        |h\d{1,2}m(?:\d{1,2}s)?|m\d{1,2}(?:\.\d{1,9})?s)(?![\w\x1a])
      | (?<![._].)(?<=1)\d{9}\.\d{1,9}(?![\w\x1a])
      )
    | # Hexadecimal ones.
      (?<![0-9a-zA-Z\x1a][0-9a-fA-F])(?<!\[)
      (?:
        (?<![._-].)[0-9a-fA-F]{7}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?![\w\x1a-])
      | (?<=0)x[0-9a-fA-F]{5,}
      | (?:(?<=[0-9])(?=[0-9]{0,60}[a-f])|(?<=[a-f])(?=[a-f]{0,60}[0-9]))[0-9a-f]{7,}(?![0-9a-zA-Z\x1a])
      | (?:(?<=[0-9])(?=[0-9]{0,60}[A-F])|(?<=[A-F])(?=[A-F]{0,60}[0-9]))[0-9A-F]{7,}(?![0-9a-zA-Z\x1a])
      )
    | (?<=\w\[)\d{1,9}\](?=:)
    )
    """,
    re.VERBOSE,
).sub

_LONG_MONTHS: Final = _words("January February March April May June July August September October November December")
_MONTHS: Final = _LONG_MONTHS | {month[:3] for month in _LONG_MONTHS}
_WRITTEN_DATE: Final = re.compile(
    r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
    r"(?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}[.,]? \d{1,2}(?:st|nd|rd|th)?"
    r"|\d{1,2}(?:st|nd|rd|th)? (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6})\b"
    r"(?:,? \d{4}\b(?!:))?"
    r"(?:,? \d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?[AaPp][Mm]\b)?(?: (?:[A-Z]{3,4}|[+-]\d{4})\b)?(?: \d{4}\b)?)?"
).sub
_PROCESS_WORDS: Final = ("pid", "PID", "Pid", "tid", "TID", "rocess", "hread")
_PROCESS: Final = re.compile(
    r"\b([pPtT]id|PID|TID|(?:[Pp]rocess|[Tt]hread)(?: ?(?:id|ID))?)([^\w\n\x1a]{1,3})\d{1,10}\b"
).sub
_JOB: Final = re.compile(r"^\[\d{1,4}\]\s{1,9}\d{2,10}\s*$", re.MULTILINE).sub
_METER: Final = re.compile(r"[^\r\n]+").sub
_NUMBERED: Final = re.compile(r"((?:^|[^\w])pytest-|/proc/)\d{1,10}").sub
_TEMPORARY: Final = re.compile(
    r"(?<![A-Za-z0-9\x1a])tmp(?:[a-z0-9_]{8}|\.\w{6,12})(?![\w\x1a])|/var/folders/[\w+.-]{1,40}/[\w+.-]{1,80}/T/"
).sub
_DIGITS: Final = re.compile(r"\d+").sub
_has_digit: Final = re.compile(r"\d").search

_AROUND: Final = "()[]{}<>,.;:\"'~=≈"
_UNITS: Final = _words(
    """ns us µs μs ms s sec secs second seconds min mins minute minutes hr hrs hour hours nanoseconds microseconds
    milliseconds B/s kB/s KB/s MB/s GB/s KiB/s MiB/s GiB/s bytes/s kbit/s Mbit/s Gbit/s kbps Mbps Gbps it/s req/s
    requests/s ops/s rows/s tokens/s"""
)

MAX_WORD: Final = 64
_MAX_STABLE: Final = 4096
_stable: set[str] = set()
"""Words of at most 64 characters that are not alphabetic and hold nothing to mask."""


def mask(text: str) -> str:
    """*text* with each run of white space as one space, and what changes by itself as :data:`MARK`.

    Masking what is masked changes nothing.
    """
    if "tmp" in text or "/var/folders/" in text:
        text = _TEMPORARY(MARK, text)
    if _has_digit(text) is None:
        return " ".join(text.split())
    if "--:--" in text:
        text = _METER(_masked_meter, text)
    if "[" in text and ("\n[" in text or text[0] == "["):
        text = _JOB(MARK, text)
    if "pytest-" in text or "/proc/" in text:
        text = _NUMBERED("\\1\x1a", text)
    for word in _PROCESS_WORDS:
        if word in text:
            text = " ".join(text.split())
            text = _PROCESS("\\1\\2\x1a", text)
            break
    return _masked(text.split(), written_dates=True)


def _masked_meter(line: re.Match[str]) -> str:
    """A line of the meter of curl, whose columns are times and speeds."""
    text = line.group()
    return _DIGITS(MARK, text).replace("--:--", MARK) if "--:--" in text else text


def _masked(words: list[str], *, written_dates: bool) -> str:
    stable = _stable
    for at, word in enumerate(words):
        if word.isalpha() or word in stable:
            continue
        core = word.strip(_AROUND)
        if core.isdecimal():
            after = _beside(words, at + 1)
            if (
                written_dates
                and len(core) <= 2
                and (after in _MONTHS or (at > 0 and _beside(words, at - 1) in _MONTHS))
            ):
                # The one thing of several words, and rare.
                return _masked(_WRITTEN_DATE(MARK, " ".join(words)).split(), written_dates=False)
            if after in _UNITS:
                words[at] = word.replace(core, MARK)
        elif len(word) > MAX_WORD:
            words[at] = _masked_long(word)
        else:
            words[at] = masked = _VOLATILE(MARK, word)
            if masked == word:
                if core and core[-1].isdecimal() and _is_number(core):
                    if _beside(words, at + 1) in _UNITS:
                        words[at] = word.replace(core, MARK)
                else:
                    _remember(word)
    return " ".join(words)


def _masked_long(word: str) -> str:
    """A word of JSON without white space, of whose strings most hold nothing to mask."""
    parts = word.split('"')
    stable = _stable
    for at, part in enumerate(parts):
        if part.isalpha() or part in stable or part.strip(_AROUND).isdecimal():
            continue
        parts[at] = masked = _VOLATILE(MARK, part)
        if masked == part and len(part) <= MAX_WORD:
            _remember(part)
    return '"'.join(parts)


def _remember(word: str) -> None:
    if len(_stable) >= _MAX_STABLE:
        _stable.clear()
    _stable.add(word)


def _beside(words: list[str], at: int) -> str:
    return words[at].strip(_AROUND) if at < len(words) else ""


def _is_number(core: str) -> bool:
    try:
        float(core)
    except ValueError:
        return False
    return True
