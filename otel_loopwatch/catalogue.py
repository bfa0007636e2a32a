"""The prices that genai-prices bundles: which model a name means there, and what it costs. No network.

genai-prices finds a model by the beginning of its name, so that ``claude-opus-4.1x`` has the price of one that exists
(case D-2). Here a match counts where the rest of the name is that of a revision (:mod:`otel_loopwatch.model_names`);
what it finds besides is a relative, good enough for an estimate.

Imported on first use, by :mod:`otel_loopwatch.pricing`: genai-prices takes 0.6 s and brings an HTTP client along.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, Provider

from otel_loopwatch.amounts import EXACT
from otel_loopwatch.calls import Usage
from otel_loopwatch.model_names import bare, is_prefix, is_revision, words
from otel_loopwatch.prices import ModelPrice

__all__ = ["Catalogue", "Entry", "current"]

Entry = tuple[Provider, ModelInfo]
_Key = tuple[str, str | None]
_Found = TypeVar("_Found")

MAX_REMEMBERED: Final = 1024
"""Names whose look-up is remembered: it takes a millisecond, and names may be made up."""

SHARED_WORDS: Final = 2
"""Words at the beginning that make two models relatives: ``claude-opus-9`` is one of ``claude-opus-4-1``."""

_PROVIDERS: Final = {
    "azure.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "az.ai.inference": "azure",
    "az.ai.openai": "azure",
    "azure_ai_openai": "azure",
    "azure_openai": "azure",
    "fireworks_ai": "fireworks",
    "gcp.gen_ai": "google",
    "x_ai": "x-ai",
}
"""Providers as the GenAI conventions and single libraries call them, where genai-prices reads them otherwise."""

_FRAMEWORKS: Final = frozenset(
    {
        "_other",
        "agent_framework",
        "crewai",
        "custom",
        "langchain",
        "langgraph",
        "litellm",
        "llama_index",
        "llamaindex",
        "microsoft.agent_framework",
        "other",
        "pydantic-ai",
        "strands",
        "strands-agents",
        "unknown",
    }
)
"""What stands in the place of a provider and is none: the model's name alone is asked."""

_SELF_HOSTED: Final = frozenset(
    {
        "huggingface",
        "llama.cpp",
        "llama_cpp",
        "llamacpp",
        "lm_studio",
        "lmstudio",
        "localai",
        "ollama",
        "sglang",
        "tgi",
        "vllm",
    }
)
"""Who runs models on machines of one's own: what they cost there no table knows, by whatever name."""

_PROTOCOL: Final = "openai"
"""Names a protocol as well: a client library says it of whatever answers in it."""

_GATEWAYS: Final = frozenset({"litellm", "models", "publishers", "openrouter"})
"""Words before a ``/`` that say nothing of the price. openrouter's own prices are those of the makers."""

_COMPACT_DATE: Final = re.compile(r"-(20\d{2})(\d{2})(\d{2})(?=[-:]|$)")
_BEDROCK: Final = re.compile(r"(?:[a-z]{2,6}(?:-[a-z]{2,4})?\.)?[a-z][a-z0-9]+\.[a-z]")


class Rates(NamedTuple):
    """The rates of one model on one day.

    Attributes:
        starts: Input tokens above which dearer rates hold for all tokens of the call, ascending.
        bands: The rates up to the first of *starts*, up to the second, and so on.
        fee: USD for each call, whatever it used.
        is_by_token: False for what is sold by the hour or by the page alone.
    """

    starts: tuple[int, ...]
    bands: tuple[ModelPrice, ...]
    fee: Decimal
    is_by_token: bool


class Catalogue:
    """Look-ups in one snapshot of the table.

    Args:
        snapshot: What genai-prices bundles, or what it has been updated to.
    """

    def __init__(self, snapshot: data_snapshot.DataSnapshot) -> None:
        self.snapshot = snapshot
        self.providers = providers = snapshot.providers
        self._by_id = {provider.id: provider for provider in providers}
        self._models = {
            provider.id: {model.id.lower(): model for model in reversed(provider.models)} for provider in providers
        }
        self._found: dict[_Key, Entry | None] = {}
        self._kin: dict[_Key, tuple[Entry, ...]] = {}
        self._rates: dict[int, Rates] = {}

    def find(self, model: str, provider: str | None) -> Entry | None:
        """The model that *model* names, or ``None``: there is none, or none that is sold by *provider*.

        Args:
            model: A name, as a library reports it.
            provider: Who was asked, as a library reports it; ``None`` asks by the model's name alone.
        """
        key = (model, provider)
        try:
            return self._found[key]
        except KeyError:
            found = self._find(model.strip().lower(), provider)
            _remember(self._found, key, found)
            return found

    def relatives(self, model: str, provider: str | None) -> tuple[Entry, ...]:
        """Models that are not the one that *model* names, but near to it by name; the nearest ones only."""
        key = (model, provider)
        try:
            return self._kin[key]
        except KeyError:
            kin = tuple(self._relatives(model.strip().lower(), provider))
            _remember(self._kin, key, kin)
            return kin

    def price(self, entry: Entry, usage: Usage) -> Decimal | None:
        """USD for *usage* at today's rates; ``None`` where the model is not sold by the token (speech, by the hour).

        Reckoned here and not by genai-prices, which takes 100 us for a call, and in older releases bills nothing for
        cached tokens that have no rate of their own. They are billed like the rest of the input, reasoning like the
        rest of the output.
        """
        prices = entry[1].get_prices(datetime.now(tz=UTC))
        # The snapshot holds what the table says, so that its id stays its own.
        rates = self._rates.get(id(prices))
        if rates is None:
            rates = self._rates[id(prices)] = _read(prices)
        if not rates.is_by_token and any(usage.counts):
            return None
        read, _, cached, stored, _ = usage.counts
        # More cached than sent: a source that left the cached ones out.
        band = bisect_left(rates.starts, max(read, cached + stored))
        return EXACT.add(rates.bands[band].price(usage), rates.fee)

    # --- the same model -------------------------------------------------------------------------------------------

    def _find(self, name: str, provider: str | None) -> Entry | None:
        if provider is not None and provider.strip().lower() not in _FRAMEWORKS:
            seller = self._provider(provider)
            if seller is not None:
                found = self._sold_by(seller, name)
                if found is not None or seller.id != _PROTOCOL:
                    return found
            elif provider.strip().lower() in _SELF_HOSTED:
                return None
            # Else a gateway of one's own, or a client that gives its class for a provider: what is left is the name.
        for seller, rest in self._sellers(name):
            found = self._sold_by(seller, rest)
            if found is not None:
                return found
        return None

    def _sellers(self, name: str) -> Iterator[tuple[Provider, str]]:
        """Who may sell *name*, by the name alone, and what it is called there."""
        for seller in self.providers:
            if seller.model_match is not None and seller.model_match.is_match(name):
                yield seller, name
                break
        special = "openai" if name.startswith("ft:") else "aws" if _BEDROCK.match(name) else None
        if special in self._by_id:
            yield self._by_id[special], name
        if "/" in name:
            before, _, rest = name.partition("/")
            named = None if before in _GATEWAYS else self._provider(before)
            if named is not None:
                yield named, rest
            if named is not None or before in _GATEWAYS:
                yield from self._sellers(rest)

    def _provider(self, provider: str) -> Provider | None:
        ident = provider.strip().lower()
        return data_snapshot.find_provider_by_id(self.providers, _PROVIDERS.get(ident, ident)) if ident else None

    def _sold_by(self, seller: Provider, name: str) -> Entry | None:
        dated = _COMPACT_DATE.sub(r"-\1-\2-\3", name)
        names = (name, dated) if dated != name else (name,)
        others = [self._by_id[ident] for ident in seller.fallback_model_providers or () if ident in self._by_id]
        for each in names:
            for shop in (seller, *others):
                called = self._models[shop.id].get(each)
                if called is None:
                    called = next((model for model in shop.models if _names(model.match, each)), None)
                if called is not None:
                    return seller, called
        # Where the clause takes the maker's name for a part of the model's.
        return self._sold_by(seller, name.rpartition("/")[2]) if "/" in name else None

    # --- a relative -----------------------------------------------------------------------------------------------

    def _relatives(self, name: str, provider: str | None) -> Iterator[Entry]:
        by_name = self._find(name, None)
        if by_name is not None:
            yield by_name
            return
        seller = None if provider is None else self._provider(provider)
        sellers = [*(() if seller is None else ((seller, name),)), *self._sellers(name)]
        for shop, rest in sellers:
            # The model itself, of a date that the table does not have.
            dated = [model for model in shop.models if bare(model.id) == bare(rest)]
            if dated:
                yield from ((shop, model) for model in dated)
                return
        for shop, rest in sellers:
            loose = shop.find_model(rest, all_providers=self.providers)
            if loose is not None:
                yield shop, loose
                return
        nearest = SHARED_WORDS
        kin: list[Entry] = []
        for shop, rest in sellers:
            for model in shop.models:
                shared = _shared(words(rest), words(model.id))
                if shared > nearest:
                    nearest, kin = shared, []
                if shared == nearest:
                    kin.append((shop, model))
        yield from kin


def _remember(memory: dict[_Key, _Found], key: _Key, found: _Found) -> None:
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[key] = found


def _names(clause: Any, name: str) -> bool:
    """True where *clause* matches *name* as a name of its model, not merely as one that begins like it."""
    if hasattr(clause, "or_"):
        return any(_names(each, name) for each in clause.or_)
    if hasattr(clause, "and_"):
        return bool(clause.is_match(name)) and any(_names(each, name) for each in clause.and_)
    if hasattr(clause, "equals"):
        return bool(clause.equals.lower() == name)
    if hasattr(clause, "regex"):
        found = re.search(clause.regex, name)
        return found is not None and found.group() != "" and _surrounds(name, found.start(), found.end())
    for attribute, start_of in (("starts_with", _starts), ("ends_with", _ends), ("contains", str.find)):
        known = getattr(clause, attribute, None)
        if known is not None:
            start = start_of(name, known.lower())
            return start >= 0 and _surrounds(name, start, start + len(known))
    # A kind of clause that is younger than this code: the match is taken at its word.
    return bool(clause.is_match(name))


def _starts(name: str, known: str) -> int:
    return 0 if name.startswith(known) else -1


def _ends(name: str, known: str) -> int:
    return len(name) - len(known) if name.endswith(known) else -1


def _surrounds(name: str, start: int, end: int) -> bool:
    return is_prefix(name[:start]) and is_revision(name[start:end], name[end:])


def _shared(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


# --- what it costs ----------------------------------------------------------------------------------------------------


_RATES: Final = {
    "input_usd_per_mtok": "input_mtok",
    "output_usd_per_mtok": "output_mtok",
    "cached_input_usd_per_mtok": "cache_read_mtok",
    "cache_write_usd_per_mtok": "cache_write_mtok",
    "reasoning_usd_per_mtok": "output_reasoning_mtok",
}
"""Ours -> theirs. Their others are of what no usage here has: audio, images, searches."""

_THOUSAND: Final = Decimal(1000)


def _read(prices: Any) -> Rates:
    said = {ours: value for ours, theirs in _RATES.items() if (value := getattr(prices, theirs, None)) is not None}
    starts = sorted({tier.start for value in said.values() for tier in getattr(value, "tiers", ())})
    free = {"input_usd_per_mtok": Decimal(0), "output_usd_per_mtok": Decimal(0)}
    bands = tuple(
        ModelPrice(**{**free, **{ours: _at(value, tokens) for ours, value in said.items()}})
        for tokens in (0, *(start + 1 for start in starts))
    )
    has_rates = any(value is not None for name, value in vars(prices).items() if not name.startswith("_"))
    fee = _at(getattr(prices, "requests_kcount", None) or Decimal(0), 0)
    # A model without any rate is free.
    return Rates(tuple(starts), bands, EXACT.divide(fee, _THOUSAND), is_by_token=bool(said) or not has_rates)


def _at(rate: Any, tokens: int) -> Decimal:
    """The rate that holds for a call with *tokens* of input."""
    found: Decimal = getattr(rate, "base", rate)
    for tier in getattr(rate, "tiers", ()):
        if tokens > tier.start:
            found = tier.price
    return found


_current: Catalogue | None = None


def current() -> Catalogue:
    """The catalogue of the snapshot that genai-prices uses now: an application may have it updated."""
    global _current  # noqa: PLW0603 - one table of the process
    snapshot = data_snapshot.get_snapshot()
    held = _current
    if held is None or held.snapshot is not snapshot:
        held = _current = Catalogue(snapshot)
    return held
