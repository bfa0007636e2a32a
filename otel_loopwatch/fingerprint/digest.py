"""Results and errors, reduced to what a comparison needs: is this the same answer again?

Digests are keyed as fingerprints are, and never hold content. They never raise and consume nothing: of a stream, an
iterator, a file or an object that nothing is known of there is no digest.
"""

from __future__ import annotations

import fractions
import hashlib
import re
from decimal import Decimal
from typing import Any, Final, NamedTuple

from otel_loopwatch.fingerprint.canonical import canonical_bytes
from otel_loopwatch.fingerprint.failures import is_infra, is_infra_text
from otel_loopwatch.fingerprint.keys import mac
from otel_loopwatch.fingerprint.masking import mask
from otel_loopwatch.fingerprint.tagged import MISSING, qualified_name

__all__ = [
    "ErrorDigest",
    "ResultDigest",
    "StreamDigest",
    "error_digest",
    "error_text_digest",
    "result_digest",
]

MAX_MASKED: Final = 64 * 1024
"""Characters of a text that is masked as a whole; of a longer one the head and the tail are."""
HEAD: Final = 16 * 1024
TAIL: Final = 4 * 1024
MIN_EVIDENCE: Final = 3
"""Characters below which a result is too short to be evidence of "the same answer again"."""

_SCALARS: Final = frozenset((bool, int, float, complex, type(None), Decimal, fractions.Fraction))
_LETTER: Final = re.compile(r"[^\W\d_]")
# What canonical_bytes writes for a value of which it knows the class alone. A quote inside a JSON string is escaped.
_UNKNOWN: Final = re.compile(rb'(?:^|[\[,:])!(?:object"|deep|more)')
_TAG: Final = re.compile(r"![a-z]+")
_BOUNDARY: Final = re.compile(r"\s")


class ResultDigest(NamedTuple):
    """What is kept of a result.

    Attributes:
        digest: Keyed hash of the masked result, 32 hexadecimal characters; ``None`` where it cannot be compared.
        trivial: True for a scalar, and for less than three characters: no evidence of "the same answer again".
        size: Characters of the text, or bytes of the canonical form of another value.
    """

    digest: str | None
    trivial: bool
    size: int


class ErrorDigest(NamedTuple):
    """What is kept of an error.

    Attributes:
        signature: Keyed hash of the class and the masked message, 32 hexadecimal characters.
        error_class: Name of the class; ``error`` where a text names none.
        infra: True where the error is one of the infrastructure (429, 5xx, timeouts), not of the call.
    """

    signature: str
    error_class: str
    infra: bool


UNKNOWN: Final = ResultDigest(None, trivial=False, size=0)

# A NamedTuple's own constructor is a Python function around this one and takes twice the time.
_new = tuple.__new__


def result_digest(value: Any) -> ResultDigest:
    """The digest of what a tool returned. Never raises an :class:`Exception`, and consumes nothing.

    Times, ids, addresses and the like are masked (:mod:`.masking`), runs of white space count as one space.
    Where no letter is left after that (a calculator, a clock), the result itself is compared.

    Args:
        value: Text, bytes, JSON types, dataclasses, attrs, pydantic, numpy, pandas. A digest of anything else is
            ``None``.
    """
    try:
        return _text_result(value) if type(value) is str else _result_digest(value)
    except Exception:  # noqa: BLE001 - code of the value's class may raise anything
        return UNKNOWN


def _result_digest(value: Any) -> ResultDigest:
    if isinstance(value, bytes | bytearray):
        try:
            return _text_result(value.decode())
        except UnicodeDecodeError:
            pass
    data = canonical_bytes(_content(value))
    if _UNKNOWN.search(data) is not None:
        return UNKNOWN
    return ResultDigest(_form_digest(data), type(value) in _SCALARS or len(data) < MIN_EVIDENCE, len(data))


def _form_digest(data: bytes) -> str:
    """The digest of a canonical form."""
    text = data.decode("utf-8", "replace")
    if b"!" not in data:
        return _text_digest(text)
    masked = mask(text) if len(text) <= MAX_MASKED else text
    # A tag is a letter of ours, not of the answer's.
    kept = text if _LETTER.search(_TAG.sub("", masked)) is None else masked
    return mac(b"form " + _bytes(kept))


def _content(value: Any) -> Any:
    """A message that answers one call of a model (LangChain's ToolMessage), without the id of the call."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return value
    if type(held) is dict and held.get("tool_call_id", MISSING) is not MISSING and "content" in held:
        return [qualified_name(type(value)), held["content"], held.get("status")]
    return value


def _text_result(text: str) -> ResultDigest:
    size = len(text)
    trivial = size < MAX_MASKED and len(text.strip()) < MIN_EVIDENCE
    return _new(ResultDigest, (_text_digest(text), trivial, size))


def _text_digest(text: str) -> str:
    if len(text) <= MAX_MASKED:
        masked = mask(text)
        if _LETTER.search(masked) is None:
            return mac(b"raw " + _bytes(" ".join(text.split())))
        return mac(b"masked " + masked.encode("utf-8", "surrogatepass"))
    # Between two words, so that no time or id is cut in half.
    start = _boundary(text, HEAD)
    end = _boundary(text, len(text) - TAIL)
    rest = hashlib.sha256(_bytes(text[start:end]))
    return _long_digest(mask(text[:start]), rest.hexdigest(), mask(text[end:]))


def _boundary(text: str, at: int) -> int:
    found = _BOUNDARY.search(text, at, at + 256)
    return at if found is None else found.start()


def _long_digest(head: str, rest: str, tail: str) -> str:
    return mac(b"long " + _bytes(f"{len(head)} {head} {rest} {tail}"))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class StreamDigest:
    """The digest of what a generator tool yields, taken as it passes. Holds at most 64 kB.

    Texts count as one, however they are cut into pieces; other items are set apart. Of a long stream the first 16 kB
    are masked, and the rest is hashed as it is.
    """

    __slots__ = ("_held", "_known", "_pieces", "_rest", "_size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = 0
        self._size = 0
        self._known = True
        self._rest: Any = None

    def update(self, item: Any) -> None:
        """Take in one yielded item. Never raises an :class:`Exception`, and consumes nothing."""
        try:
            if type(item) is str:
                text = item
            elif isinstance(item, bytes | bytearray):
                text = item.decode("utf-8", "backslashreplace")
            else:
                data = canonical_bytes(_content(item))
                self._known = self._known and _UNKNOWN.search(data) is None
                text = data.decode("utf-8", "replace") + "\n"
        except Exception:  # noqa: BLE001 - code of the item's class may raise anything
            self._known = False
            return
        self._size += len(text)
        if self._rest is not None:
            self._rest.update(_bytes(text))
            return
        self._pieces.append(text)
        self._held += len(text)
        if self._held > MAX_MASKED:
            whole = "".join(self._pieces)
            start = _boundary(whole, HEAD)
            self._rest = hashlib.sha256(_bytes(whole[start:]))
            self._pieces = [whole[:start]]

    def result(self) -> ResultDigest:
        """The digest of what has passed so far."""
        if not self._known:
            return ResultDigest(None, trivial=False, size=self._size)
        held = "".join(self._pieces)
        if self._rest is not None:
            return ResultDigest(_long_digest(mask(held), self._rest.hexdigest(), ""), trivial=False, size=self._size)
        return _text_result(held)


# --- errors -----------------------------------------------------------------------------------------------------------

_NAMED_ERROR: Final = re.compile(
    r"^\s*(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Warning|Timeout|Interrupt|Fault|Failure|NotFound|Denied|Exit))\s*(?::|\(|$)",
    re.MULTILINE,
)
_TRACEBACK: Final = "Traceback (most recent call last)"


def error_digest(error: BaseException) -> ErrorDigest:
    """The digest of what a tool raised. Never raises an :class:`Exception`.

    Args:
        error: Its class and message make the signature; causes only tell whether it is one of the infrastructure.
    """
    kind = type(error)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a __str__ of the user's
        message = ""
    name = qualified_name(kind)
    return ErrorDigest(_signature(name, message), name.rpartition(".")[2], is_infra(error))


def error_text_digest(text: str) -> ErrorDigest:
    """The digest of an error that is known as text alone: of recorded runs, and of frameworks that catch exceptions.

    Args:
        text: The class is the one that it begins with (``FooError: ...``), of a traceback that of the last line.
    """
    head = text[:HEAD] if len(text) <= MAX_MASKED else text[:HEAD] + "\n" + text[-TAIL:]
    first = head.lstrip()
    found = None
    if first.startswith(_TRACEBACK):
        for found in _NAMED_ERROR.finditer(head):  # noqa: B007 - the last one
            pass
    else:
        found = _NAMED_ERROR.match(first.partition("\n")[0])
    error_class = "error" if found is None else found.group(1)
    return ErrorDigest(_signature(error_class, text), error_class, is_infra_text(error_class, text))


def _signature(name: str, message: str) -> str:
    return mac(b"error " + _bytes(f"{name} {_text_digest(message)}"))
