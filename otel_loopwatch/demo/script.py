"""What a scripted model is: a function of all that it has been told so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Ask", "Exchange", "Model", "Say"]


class Ask(NamedTuple):
    """The model wants a tool to be called."""

    tool: str
    arguments: dict[str, Any]


class Say(NamedTuple):
    """The model answers, and the run is over."""

    text: str


class Exchange(NamedTuple):
    """One demand of the model, and what it was answered: a result, a hint or the text of an error."""

    ask: Ask
    answer: str


Model = Callable[[Sequence[Exchange], float], Ask | Say]
"""``model(exchanges so far, temperature)``. The higher the temperature, the more a model may leave its usual way."""
