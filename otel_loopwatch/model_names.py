"""The names of models: which of them name the same one. No table, no network.

One model has many names: with a date or without, as a gateway spells it, as a cloud sells it. What may differ is said
here; everything else (``gpt-4o-mini`` for ``gpt-4o``, ``claude-opus-4.1x``) is another model.
"""

from __future__ import annotations

import functools
import re
from typing import Final

__all__ = ["MAX_NAME", "bare", "is_prefix", "is_revision", "words"]

MAX_NAME: Final = 256
"""Longer names are no model's."""

_REVISION = (
    r"(?:\d{8}|\d{6}|\d{3,4}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{2}-\d{2}"  # dates, and numbers of a build
    r"|v\d+(?::\d+)?|latest|default|preview|exp|experimental|beta"
    r"|thinking|high|medium|low|minimal)"  # the same model at the same rate, told to think more or less
)
_REVISIONS: Final = re.compile(rf"(?:[-@:._]{_REVISION})*")
_TRAILING: Final = re.compile(rf"(?:[-@:._]{_REVISION})+$")
# us.anthropic., apac.amazon.: where Bedrock runs a model, and who made it.
_REGION_OR_MAKER: Final = re.compile(r"(?:[a-z]{2,6}(?:-[a-z]{2,4})?\.)?(?:[a-z][a-z0-9]+\.)?")
_SEPARATORS: Final = "-@:._"
_FINE_TUNED: Final = re.compile(r"(?:ft:|.*\.ft-)")


def is_revision(known: str, tail: str) -> bool:
    """True where ``known + tail`` names the model that *known* names: *tail* is a date, a build, ``latest``, ``v1:0``.

    Args:
        known: What a table matches by, the beginning of the name: ``gpt-4o``, or cut anywhere (``claude-opus-4-2025``).
        tail: The rest of the name.
    """
    if not tail or _FINE_TUNED.match(known):
        # What a customer calls her fine-tuned model is her own affair.
        return True
    if known[-1] in _SEPARATORS:
        tail = known[-1] + tail
    elif known[-1].isdigit() and tail[0].isdigit():
        cut = max(known.rfind(each) for each in _SEPARATORS)
        tail = known[cut:] + tail if cut >= 0 else known + tail
    return _REVISIONS.fullmatch(tail) is not None


def is_prefix(head: str) -> bool:
    """True where *head* in front of a model's name only says where it runs or who made it."""
    return head.endswith("/") or _REGION_OR_MAKER.fullmatch(head.rpartition("/")[2]) is not None


@functools.lru_cache(maxsize=4096)
def bare(name: str) -> str:
    """*name* without what may differ between two reports of one call: ``openai/gpt-5-2025-08-07`` is ``gpt-5``.

    Two models with one bare name may be two all the same; see where it is used.
    """
    last = name.strip().lower().rpartition("/")[2]
    # Up to a letter: gpt-4.1 and llama3.1 are no makers.
    maker = _REGION_OR_MAKER.match(last)
    if maker is not None and last[maker.end() : maker.end() + 1].isalpha():
        last = last[maker.end() :]
    return re.sub(r"[@:._]", "-", _TRAILING.sub("", last) or last)


def words(name: str) -> tuple[str, ...]:
    """The parts of *name* from its beginning, to compare two names by: ``claude``, ``opus``, ``4``, ``1``."""
    return tuple(re.split(r"[-@:._/ ]+", name.lower()))
