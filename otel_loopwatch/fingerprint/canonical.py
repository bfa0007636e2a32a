r"""One form for equal values: RFC 8785 (JCS) bytes, extended to what JSON does not know.

Numbers, strings, escapes and the order of keys are those of RFC 8785, with these differences:

* An integer keeps all of its digits, beyond 2^53 too; a float is written as RFC 8785 says. So ``1 == 1.0`` and
  ``-0.0 == 0``, and beyond 2^53 an integer equals no float. An integer of more than 4,300 digits is written in
  hexadecimal.
* Strings and keys are in NFC, no other folding. Lone surrogates are written as ``\udxxx``.
* A key that is no string is written as a value is, without quotes: ``{1:"x"}`` is not ``{"1":"x"}``.
* NaN and the infinities, sets, bytes, dates and so on carry a tag that begins with ``!``
  (:mod:`otel_loopwatch.fingerprint.tagged`).
* A container inside itself is ``!cycle`` and the number of levels up. Past 2^20 values the containers that follow are
  cut to what is left, half from each end, with their length; past 10,000 levels there is only ``!deep``.

orjson writes nearly all of this, several times faster than Python can. It does it whenever the value, judged by the
classes that occur in it and then by the bytes that come out, would come out the same; :func:`walk` does the rest.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from otel_loopwatch.fingerprint.tagged import Rule, Unordered, qualified_name, rule_for

__all__ = ["canonical_bytes", "canonical_call", "fast_call", "walk"]

MAX_NODES: Final = 2**20
MAX_DEPTH: Final = 10_000
MAX_SORTED_DEPTH: Final = 16
"""How deep sets, and keys that are containers, may nest: these are written one inside the other, by recursion."""

# UAX #15 calls 30 the longest run of combining marks that text has. Normalising longer ones takes quadratic time.
MAX_COMBINING_RUN: Final = 30
SHORT_TEXT: Final = 4096

ATOMS: Final = frozenset((str, int, bool, type(None)))
_CONTAINERS: Final = frozenset((dict, list, tuple))
_JSON: Final = ATOMS | _CONTAINERS | {float}

# orjson refuses deeper ones.
_ORJSON_DEPTH: Final = 254
_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_is_normalized = unicodedata.is_normalized
_referents: Callable[..., list[Any]] = gc.get_referents

_is_whole = float.is_integer
_FLOAT: Final = {float}

MAX_SAFE: Final = 2**53
"""Up to this integer every one is a float."""

# Leading bytes of UTF-8 from U+E000 to U+FFFF: these sort before the characters beyond by code point, after them in
# UTF-16.
_ABOVE_SURROGATES: Final = (b"\xee", b"\xef")
_LATIN_1_SIZE: Final = "\u00ff".__sizeof__() - 1
_UCS_2_SIZE: Final = "\uffff".__sizeof__() - 2


def canonical_bytes(value: Any) -> bytes:
    """The canonical form of *value*: equal values, and only those, have equal bytes.

    Never raises an :class:`Exception`, calls no ``__eq__`` or ``__hash__`` of the value's, and consumes nothing.

    Args:
        value: Anything. What has no rule counts as the qualified name of its class.
    """
    data = _fast(value)
    return walk(value) if data is None else data


def canonical_call(tool: str, arguments: Any) -> bytes:
    """The canonical form of ``[tool, arguments]``, in one pass. Never raises, as :func:`canonical_bytes`.

    Args:
        tool: Name of the tool.
        arguments: What is to be hashed with it; a dict, except where a ``loop_key`` chose something else.
    """
    data = fast_call(tool, arguments) if type(arguments) is dict else None
    return canonical_bytes([tool, arguments]) if data is None else data


def fast_call(tool: str, arguments: dict[str, Any]) -> bytes | None:
    """What :func:`canonical_call` returns, where there are JSON types alone; else ``None``."""
    try:
        if type(tool) is not str:
            return None
        # Most calls have no container among their arguments, and need no survey.
        rewrite = False if ATOMS.issuperset(map(type, arguments.values())) else _survey(list(arguments.values()))
        if rewrite is None:
            return None
        data = orjson.dumps([tool, _rewritten(arguments) if rewrite else arguments], None, _OPTIONS)
    except Exception:  # noqa: BLE001 - orjson refuses, or the metaclass of a value does
        return None
    return data if data.isascii() or _is_canonical_text(data) else None


# --- the fast path: orjson --------------------------------------------------------------------------------------------


def _fast(value: Any) -> bytes | None:
    """What orjson makes of *value* where that is the canonical form, else ``None``."""
    try:
        rewrite = _survey([value])
        if rewrite is None:
            return None
        data = orjson.dumps(_rewritten(value) if rewrite else value, None, _OPTIONS)
    except Exception:  # noqa: BLE001 - orjson refuses, or the metaclass of a value does
        return None
    return data if data.isascii() or _is_canonical_text(data) else None


def _survey(level: list[Any]) -> bool | None:
    """Look at the classes of some values and of all that they hold.

    The garbage collector's own view of containers gives one level after the other without a loop in Python. orjson
    alone would not do: it writes an Enum or a UUID as a str, and NaN as null.

    Returns:
        ``None`` where there are other than JSON types; True where there are floats that orjson and RFC 8785 write
        differently; else False.
    """
    nodes = 0
    rewrite = False
    for _ in range(_ORJSON_DEPTH):
        kinds = set(map(type, level))
        if not kinds <= _JSON:
            return None
        if float in kinds and not rewrite:
            rewrite = _differ(level if len(kinds) == 1 else [item for item in level if type(item) is float])
        if kinds.isdisjoint(_CONTAINERS):
            return rewrite
        level = _referents(*level)
        nodes += len(level)
        if nodes > MAX_NODES:
            return None
    return None


def _differ(floats: list[float]) -> bool:
    """True where one of them may be whole, without a fraction, not finite, or written with an exponent."""
    if any(map(_is_whole, floats)):
        return True
    sizes = list(map(abs, floats))
    return not (min(sizes) >= 1e-5 and sum(sizes) < 1e16)


def _rewritten(value: Any) -> Any:
    """A copy of a value of JSON types of which orjson makes the canonical form."""
    kind = type(value)
    if kind is float:
        return _rewritten_float(value)
    if kind is dict:
        return {key: _rewritten(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        kinds = set(map(type, value))
        if kinds <= ATOMS:
            return value
        return list(map(_rewritten, value)) if kinds != _FLOAT else _rewritten_floats(value)
    return value


def _rewritten_floats(numbers: Sequence[float]) -> list[Any]:
    # Most lists of floats hold none that is out of the common, and most whole ones are small.
    if all(map(_is_whole, numbers)) and max(map(abs, numbers)) <= MAX_SAFE:
        return list(map(int, numbers))
    return [number if number % 1 and 1e-5 <= abs(number) < 1e16 else _rewritten_float(number) for number in numbers]


def _rewritten_float(number: float) -> Any:
    if number % 1 == 0:
        if abs(number) <= MAX_SAFE:
            return int(number)
    elif 1e-5 <= abs(number) < 1e16 or abs(number) < 1e-6:
        return number
    return orjson.Fragment(_number(number))


def _is_canonical_text(data: bytes) -> bool:
    """True where JSON with non-ASCII characters needs no normalising, nor another order of keys."""
    text = data.decode()
    size = text.__sizeof__()
    # CPython stores a str in the width of its widest character, so that its size tells what there is none of: up to
    # U+00FF all text is in NFC, and up to U+FFFF keys sort alike by code point and by UTF-16.
    if size == _LATIN_1_SIZE + len(text):
        return True
    if size != _UCS_2_SIZE + 2 * len(text) and any(lead in data for lead in _ABOVE_SURROGATES):
        return False
    return _is_normalized("NFC", text)


# --- the rest: a walk -------------------------------------------------------------------------------------------------


def walk(value: Any) -> bytes:
    """The canonical form of *value*, written by Python. Slower than :func:`canonical_bytes`, never different."""
    try:
        return _Walk().write(value)
    except Exception:  # noqa: BLE001 - hashing never fails a call: MemoryError, RecursionError
        return _fallback(value)


def _fallback(value: Any) -> bytes:
    return b"!object" + _text(qualified_name(type(value)))


_rules: dict[type, Rule | None] = {}
_MAX_RULES: Final = 1024


def _tagged(value: Any) -> tuple[bytes, Any]:
    """Tag and payload of a value that is of no JSON type."""
    kind = type(value)
    try:
        if kind not in _rules:
            if len(_rules) >= _MAX_RULES:
                _rules.clear()
            _rules[kind] = rule_for(kind)
        rule = _rules[kind]
        if rule is not None:
            return rule(value)
    except Exception:  # noqa: BLE001 - code of the value's class may raise anything
        return b"!object", qualified_name(kind)
    return b"!object", qualified_name(kind)


class _Walk:
    """Writes one value. Containers are kept on a list of its own, so that depth costs no stack."""

    def __init__(self) -> None:
        self.left = MAX_NODES
        self.nested = 0

    def write(self, value: Any) -> bytes:
        out: list[bytes] = []
        write = out.append
        frames: list[tuple[Iterator[tuple[bytes, Any]], bytes, int]] = [(iter(((b"", value),)), b"", 0)]
        levels: dict[int, int] = {}
        while frames:
            members, closing, owner = frames[-1]
            for prefix, member in members:
                write(prefix)
                item = member
                while (written := _atom(item)) is None and not _is_open(type(item)):
                    tag, item = _tagged(item)
                    write(tag)
                if written is not None:
                    write(written)
                elif (level := levels.get(id(member))) is not None:
                    write(b"!cycle%d" % (len(frames) - level))
                elif type(item) is Unordered:
                    write(self._unordered(item))
                elif len(frames) >= MAX_DEPTH:
                    write(b"!deep")
                else:
                    opening, inner, end = self._open(item)
                    write(opening)
                    levels[id(member)] = len(frames)
                    frames.append((inner, end, id(member)))
                    break
            else:
                write(closing)
                levels.pop(owner, None)
                frames.pop()
        return b"".join(out)

    def _open(self, item: Any) -> tuple[bytes, Iterator[tuple[bytes, Any]], bytes]:
        is_dict = type(item) is dict
        members = self._sorted(item) if is_dict else list(zip(itertools.repeat(b","), item))
        opening, end = (b"{", b"}") if is_dict else (b"[", b"]")
        size = len(members)
        if size > self.left:
            half = self.left // 2
            members = members[:half] + members[size - half :]
            opening = b"!cut%d" % size + opening
        self.left -= len(members)
        if members:
            prefix, first = members[0]
            members[0] = (prefix[1:], first)
        return opening, iter(members), end

    def _sorted(self, held: dict[Any, Any]) -> list[tuple[bytes, Any]]:
        """The members of a dict, each with its key as the prefix, in the order of RFC 8785."""
        items = list(held.items())
        if all(type(key) is str and key.isascii() for key, _ in items):
            return [(b"," + orjson.dumps(key) + b":", member) for key, member in sorted(items, key=_first)]
        entries = []
        for key, member in items:
            plain = key if type(key) is str else _tagged(key) if isinstance(key, str) else None
            if isinstance(plain, tuple):
                tag, plain = plain
                plain = None if tag else plain
            if isinstance(plain, str):
                text = _nfc(plain)
                entries.append(((False, text.encode("utf-16-be", "surrogatepass")), _text(text), member))
            else:
                written = self._inner(key)
                entries.append(((True, written), written, member))
        entries.sort(key=_first)
        for _, same in itertools.groupby(range(len(entries)), key=lambda at: entries[at][0]):
            # Two keys of one normal form: their values decide.
            places = list(same)
            if len(places) > 1:
                tied = sorted((entries[at] for at in places), key=lambda entry: self._inner(entry[2]))
                entries[places[0] : places[-1] + 1] = tied
        return [(b"," + written + b":", member) for _, written, member in entries]

    def _unordered(self, members: Iterable[Any]) -> bytes:
        return b"[" + b",".join(sorted(map(self._inner, members))) + b"]"

    def _inner(self, value: Any) -> bytes:
        """The form of a value that has to be known before those beside it can be sorted."""
        self.left -= 1
        written = _atom(value)
        if written is not None:
            return written
        if self.nested >= MAX_SORTED_DEPTH or self.left < 0:
            return b"!deep"
        self.nested += 1
        try:
            return self.write(value)
        finally:
            self.nested -= 1


def _is_open(kind: type) -> bool:
    """True for what has members. By identity: the metaclass of a value may have a ``__hash__`` that raises."""
    return kind is dict or kind is list or kind is tuple or kind is Unordered


def _first(entry: tuple[Any, ...]) -> Any:
    return entry[0]


def _atom(value: Any) -> bytes | None:
    """The form of a value that has no members, or ``None``."""
    kind = type(value)
    if kind is str:
        return orjson.dumps(value) if value.isascii() else _text(value)
    if kind is int:
        return _integer(value)
    if kind is float:
        return _number(value)
    if value is None:
        return b"null"
    if kind is bool:
        return b"true" if value else b"false"
    return None


def _integer(number: int) -> bytes:
    try:
        return b"%d" % number
    except ValueError:
        return b'!int"%x"' % number


def _number(number: float) -> bytes:
    """A float as ECMAScript writes it (RFC 8785, 3.2.2.3)."""
    if not math.isfinite(number):
        return b"!float" + orjson.dumps(repr(number))
    if number == 0:
        return b"0"
    mantissa, _, exponent = repr(number).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0").encode()
    sign = "-" if number < 0 else ""
    digits = mantissa.lstrip("-").replace(".", "")
    point = int(exponent) + 1
    if 0 < point <= 21:
        # Shortest digits have at most 17 places, and repr gives an exponent from 10^16 on.
        text = digits[:point].ljust(point, "0") + ("." + digits[point:] if len(digits) > point else "")
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        text = f"{digits[0]}{fraction}e{point - 1:+d}"
    return (sign + text).encode()


def _text(text: str) -> bytes:
    normal = _nfc(text)
    try:
        return orjson.dumps(normal)
    except TypeError:
        return json.encoder.encode_basestring(normal).encode("utf-8", "backslashreplace")


def _nfc(text: str) -> str:
    if text.isascii() or _is_normalized("NFC", text) or not _is_stream_safe(text):
        return text
    return unicodedata.normalize("NFC", text)


def _is_stream_safe(text: str) -> bool:
    """False for a long text with a run of combining marks that no writing has."""
    if len(text) <= SHORT_TEXT:
        return True
    marks = bytes(map(bool, map(unicodedata.combining, text)))
    return b"\1" * (MAX_COMBINING_RUN + 1) not in marks
