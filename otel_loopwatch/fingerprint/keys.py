"""The key of every hash, and HMAC-SHA-256 with it.

Hashes of arguments leave in spans. Arguments are often guessable (a pin, a customer number), so that a plain hash would
tell them; a keyed one does not.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["hash_key", "is_process_key", "keyed_mac", "mac"]

logger = logging.getLogger("otel_loopwatch")

ENVIRONMENT_KEY: Final = "LOOPWATCH_HASH_KEY"
HEX_LENGTH: Final = 32
"""Hexadecimal characters of a hash: 128 of the 256 bits."""

_BLOCK: Final = 64


def keyed_mac(key: bytes) -> Callable[[bytes], str]:
    """HMAC-SHA-256 (RFC 2104) with *key*, cut to 128 bits and written as 32 hexadecimal characters.

    The two keyed blocks are hashed ahead, which halves the time of :mod:`hmac`.

    Args:
        key: Of any length.
    """
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    begin = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    finish = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def keyed(message: bytes) -> str:
        inner = begin()
        inner.update(message)
        outer = finish()
        outer.update(inner.digest())
        return outer.hexdigest()[:HEX_LENGTH]

    return keyed


class _Keyed(NamedTuple):
    key: bytes
    random: bool
    mac: Callable[[bytes], str]


# Filled at the first hash, not at import: a program may set the environment first. setdefault is atomic, so that no
# lock is needed (nor to be made again after fork, where the child keeps the key).
_loaded: dict[str, _Keyed] = {}


def _load() -> _Keyed:
    configured = os.environ.get(ENVIRONMENT_KEY, "").encode("utf-8", "surrogateescape")
    key = configured or os.urandom(32)
    made = _Keyed(key, not configured, keyed_mac(key))
    kept = _loaded.setdefault("keyed", made)
    if kept is made and kept.random:
        logger.info(
            "otel-loopwatch: hashes are made with a random key. Set %s to compare them across processes.",
            ENVIRONMENT_KEY,
        )
    return kept


def hash_key() -> bytes:
    """The key in use: ``LOOPWATCH_HASH_KEY`` as UTF-8, else 32 random bytes, kept by the process and its forks."""
    return (_loaded.get("keyed") or _load()).key


def is_process_key() -> bool:
    """True where no key is configured, so that hashes of other processes cannot be compared with ours."""
    return (_loaded.get("keyed") or _load()).random


def mac(message: bytes) -> str:
    """The keyed hash of *message*: 32 hexadecimal characters."""
    loaded = _loaded.get("keyed")
    return (_load() if loaded is None else loaded).mac(message)
