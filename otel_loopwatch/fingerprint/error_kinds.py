"""The kind of an error: its class, and what its message says apart from what it quotes of the call.

``404 Client Error: Not Found for url: https://h/x?try=3`` and the same with ``try=4`` are two messages and one kind.
Messages as such are compared first (:mod:`.digest`); kinds tell whether ever-new arguments fail for one reason.
"""

from __future__ import annotations

import re
from typing import Final

from otel_loopwatch.fingerprint.keys import mac

__all__ = ["error_kind"]

MAX_MESSAGE: Final = 4000
"""Characters of a message that are looked at, half of them from its end: a traceback says the reason last."""

# An apostrophe inside a word (doesn't) quotes nothing.
_QUOTED: Final = re.compile(r"""(?<!\w)(?:'[^'\n]{0,400}'|"[^"\n]{0,400}"|`[^`\n]{0,400}`|\[[^]\n]{0,400}\])(?!\w)""")
# Paths, URLs, numbers, ids, options, operators: of such words a message quotes the call, or the place in the code.
_QUOTING: Final = re.compile(r"[\d/\\=_@#$%&*<>|~+^]")


def error_kind(error: BaseException | str) -> str:
    """The kind of *error*. Never raises an :class:`Exception`.

    Args:
        error: What the tool raised, or the text of a recorded error.

    Returns:
        A keyed hash, 32 hexadecimal characters: it holds no text of the message.
    """
    if isinstance(error, str):
        name, message = "", error
    else:
        name = type(error).__qualname__
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - a __str__ of the user's
            message = ""
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE // 2] + " " + message[-MAX_MESSAGE // 2 :]
    words = [word for word in _QUOTED.sub(" ", message).split() if _QUOTING.search(word) is None]
    if not any(map(str.isalpha, "".join(words))):
        # A bare code (404) is all there is to compare.
        words = message.split()
    return mac(f"kind {name} {' '.join(words)}".encode("utf-8", "surrogatepass"))
