"""Reading the spans of other libraries: is it a tool call, a model call or an agent, and what does it show.

All that is known about single libraries is in the tables of :mod:`otel_loopwatch.dialects`. Each fact has the names
that carry it, in order, and the first one that is there counts: a span that says a thing twice, by its old and by its
new name, has said it once.

What a tool span shows of its call is read in :mod:`otel_loopwatch.shown_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import StatusCode

from otel_loopwatch import semconv
from otel_loopwatch.amounts import amount, token_count
from otel_loopwatch.calls import Usage
from otel_loopwatch.dialects import (
    AGENT_NAME,
    BY_CALLBACK,
    CONVERSATION,
    COST,
    KINDS,
    MODEL,
    NAMINGS,
    NO_MODELS,
    PROVIDER,
    TOKENS,
    TOOL_NAME,
    Naming,
)
from otel_loopwatch.telemetry import SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_loopwatch.spans import Kind

__all__ = [
    "DEFAULT_AGENT",
    "Attributes",
    "agent_name",
    "attributes_of",
    "conversation",
    "failed",
    "first",
    "is_silent",
    "kind",
    "model",
    "provider",
    "response_id",
    "root_agent",
    "scope",
    "shows_usage",
    "text",
    "tool_name",
    "usage",
]

NO_COUNT: Final = -1
"""In place of a number of tokens that is none: whoever charges it takes it as 0, and the spend as incomplete."""

DEFAULT_AGENT: Final = "agent"
"""The agent of a run whose spans name none."""

_TELLING: Final = frozenset(KINDS)
_USED: Final = frozenset(name for family in TOKENS for name in (*family.input, *family.output))
_SPEAKING: Final = _TELLING | _USED
_BY_SCOPE: Final[dict[str, list[Naming]]] = {
    made_by: [naming for naming in NAMINGS if naming.scope == made_by]
    for made_by in {naming.scope for naming in NAMINGS}
}
_PREFIXES: Final = tuple(naming.prefix for naming in _BY_SCOPE[""])

Attributes = Mapping[str, Any]


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of *span* as a plain dictionary: the SDK's own mapping takes half a microsecond for a look."""
    attributes: Any = span.attributes
    return attributes.copy() if isinstance(attributes, MappingProxyType) else dict(attributes or {})


def first(attributes: Attributes, names: tuple[str, ...]) -> Any:
    """The value of the first of *names* that is there."""
    for name in names:
        if name in attributes:
            return attributes[name]
    return None


def text(attributes: Attributes, names: tuple[str, ...]) -> str | None:
    """:func:`first` as text."""
    found = first(attributes, names)
    return None if found is None else str(found)


def scope(span: ReadableSpan) -> str:
    """The instrumentation scope that made *span*, "" where it says none."""
    made_by = span.instrumentation_scope
    return "" if made_by is None else made_by.name


def kind(attributes: Attributes, made_by: str, name: str) -> Kind | None:
    """What a span is: by its attributes, else (they may come at its end only) by its name; ``None`` says neither.

    Args:
        attributes: Of the span, as far as they are known.
        made_by: Its instrumentation scope.
        name: Its name.
    """
    # Most spans are of no agent, and this is in the way of each: one look at all of their attributes, in C.
    for attribute, meanings in () if _TELLING.isdisjoint(attributes) else KINDS.items():
        if attribute in attributes:
            # The first that is there decides: an operation that is none of ours (embeddings) is not asked again.
            meaning = meanings.get(str(attributes[attribute]), "other")
            return "run" if made_by == SCOPE and meaning == "agent" else meaning
    naming = _naming(made_by, name)
    return None if naming is None else naming.kind


def is_silent(attributes: Attributes, made_by: str, name: str) -> bool:
    """True for a span that shows nothing of an agent: most are."""
    return _SPEAKING.isdisjoint(attributes) and _naming(made_by, name) is None


def _naming(made_by: str, name: str) -> Naming | None:
    if made_by not in _BY_SCOPE and not name.startswith(_PREFIXES):
        return None
    for naming in (*_BY_SCOPE.get(made_by, []), *_BY_SCOPE[""]):
        if name.startswith(naming.prefix) and name.endswith(naming.suffix):
            return naming
    return None


def _named(made_by: str, name: str) -> str:
    """The tool, agent or model that the name of a span names; the whole name where no naming is known."""
    naming = _naming(made_by, name)
    return name if naming is None else name[len(naming.prefix) : len(name) - len(naming.suffix)].strip()


def agent_name(attributes: Attributes, made_by: str, name: str) -> str:
    """Name of the agent that an agent span shows."""
    return text(attributes, AGENT_NAME) or _named(made_by, name)


def root_agent(made_by: str, name: str) -> str:
    """What the run of a local root span is called, where that span is not known to show an agent."""
    return name if made_by in BY_CALLBACK else DEFAULT_AGENT


def tool_name(attributes: Attributes, made_by: str, name: str) -> str:
    """Name of the tool that a tool span shows."""
    return text(attributes, TOOL_NAME) or _named(made_by, name)


def conversation(attributes: Attributes) -> str | None:
    """Id of the conversation or session. It says who talks, not which run this is."""
    return text(attributes, CONVERSATION)


def failed(span: ReadableSpan, attributes: Attributes) -> bool:
    """True where a span says that what it shows has failed."""
    return (
        span.status.status_code is StatusCode.ERROR
        or semconv.ERROR_TYPE in attributes
        or (semconv.GEN_AI_TOOL_STATUS in attributes and attributes[semconv.GEN_AI_TOOL_STATUS] == "error")
    )


# --- model calls ------------------------------------------------------------------------------------------------------


def model(attributes: Attributes) -> str | None:
    """The model that answered, else the one that was asked for."""
    named = (str(attributes[name]) for name in MODEL if name in attributes)
    return next((name for name in named if name not in NO_MODELS), None)


def provider(attributes: Attributes) -> str | None:
    """The provider of the model."""
    return text(attributes, PROVIDER)


def response_id(attributes: Attributes) -> str | None:
    """The provider's id of the answer."""
    return text(attributes, (semconv.GEN_AI_RESPONSE_ID,))


def shows_usage(attributes: Attributes) -> bool:
    """True where a span says how many tokens were used."""
    return not _USED.isdisjoint(attributes)


def usage(attributes: Attributes) -> Usage | None:
    """What a span says was used, with its price where the library has computed one; ``None`` where it says nothing.

    ``input_tokens`` includes cached ones and those written to a cache. Where a library counts them apart (a sum of the
    two that is larger than the whole gives it away), they are added.
    """
    for names in TOKENS:
        if all(token_count(first(attributes, either)) is None for either in (names.input, names.output)):
            continue
        counts = [_counted(attributes, each) for each in names]
        read, written, cached, stored, thought = counts
        if NO_COUNT not in counts:
            if cached + stored > read:
                read += cached + stored
            written = max(written, thought)
        return Usage(
            model(attributes),
            read,
            written,
            cached,
            _cost(attributes),
            cache_write_input_tokens=stored,
            reasoning_output_tokens=thought,
        )
    cost = _cost(attributes)
    return None if cost is None else Usage(model(attributes), cost_usd=cost)


def _counted(attributes: Attributes, names: tuple[str, ...]) -> int:
    said = first(attributes, names)
    count = token_count(said)
    return (0 if said is None else NO_COUNT) if count is None else count


def _cost(attributes: Attributes) -> Decimal | None:
    """USD that a library has computed itself."""
    if attributes.get(semconv.GEN_AI_USAGE_COST_CURRENCY, "USD") != "USD":
        return None
    return amount(first(attributes, COST))
