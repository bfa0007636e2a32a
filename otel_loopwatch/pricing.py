"""What a model call costs in USD, or that nobody knows. No network.

Asked in this order: the user's table, the user's function, the table that genai-prices bundles. One convention holds
throughout: ``input_tokens`` includes those read from a cache and those written to one, ``output_tokens`` includes
reasoning (:meth:`~otel_loopwatch.calls.Usage.from_exclusive` converts what is reported otherwise).
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final

from otel_loopwatch.amounts import amount, token_count
from otel_loopwatch.calls import Usage
from otel_loopwatch.errors import report_fault
from otel_loopwatch.model_names import MAX_NAME
from otel_loopwatch.policy import Policy
from otel_loopwatch.prices import ModelPrice

__all__ = ["FRONTIER", "estimate", "load_prices", "price", "price_by"]

FRONTIER: Final = ModelPrice(
    input_usd_per_mtok=Decimal(10),
    output_usd_per_mtok=Decimal(50),
    cached_input_usd_per_mtok=Decimal(1),
    cache_write_usd_per_mtok=Decimal("12.5"),
)
"""What a model is taken to cost that nobody knows. The list price of the dearest models for general use in genai-prices
0.2.3 (November 2026): GPT-6 Astra and Claude Fable 5 cost the same. A few special ones cost more (o1-pro)."""


def price(usage: Usage, provider: str | None = None) -> Decimal | None:
    """The price of *usage* by the bundled table, at today's rates, in USD. Never raises.

    Args:
        usage: What was used. ``cost_usd`` is not looked at: a price that was reported needs no table.
        provider: The provider's id as a library reports it (``openai``, ``aws.bedrock``); ``None`` asks by model alone.

    Returns:
        USD, or ``None`` where model or provider is unknown or a count is negative. Unknown is not 0. A name that only
        begins like that of a known model (``claude-opus-4.1x``) is unknown.
    """
    model = usage.model
    try:
        if not model or len(model) > MAX_NAME or (provider is not None and len(provider) > MAX_NAME):
            return None
        if any(token_count(count) is None for count in usage.counts):
            return None
        # Takes 0.6 s: only for those who need a price.
        from otel_loopwatch import catalogue  # noqa: PLC0415

        table = catalogue.current()
        found = table.find(model, provider)
        return None if found is None else table.price(found, usage)
    except Exception:  # noqa: BLE001 - impossible names and counts, a faulty table: in each case the price is unknown
        return None


def load_prices() -> None:
    """Load the bundled table now, and not in the middle of the first model call: it takes 0.6 s, once a process."""
    from otel_loopwatch import catalogue  # noqa: PLC0415 - as in price()

    catalogue.current()


def price_by(policies: Iterable[Policy], usage: Usage, provider: str | None = None) -> Decimal | None:
    """The price of *usage* by what the user says, else by the bundled table. Never raises.

    Args:
        policies: The run's, then those of its ancestors: the first that says something is heard.
        usage: What was used.
        provider: As in :func:`price`.

    Returns:
        USD, or ``None`` where it is unknown. So it is, too, where a user's function raises or returns what is no
        amount: that is counted in ``loopwatch.guard.errors``, and no other price takes its place.
    """
    for policy in policies:
        if policy.prices:
            own = _listed(policy, usage.model)
            if own is not None:
                return own.price(usage)
        if policy.price_of is not None:
            try:
                said = policy.price_of(usage, provider)
            except Exception as fault:  # noqa: BLE001 - a user's function may raise anything
                report_fault("price", fault)
                return None
            if said is not None:
                usd = amount(said)
                if usd is None:
                    report_fault("price", TypeError(f"price_of returned a {type(said).__name__} that is no amount"))
                return usd
    return price(usage, provider)


def _listed(policy: Policy, model: str | None) -> ModelPrice | None:
    """The price of *model* in the user's table: by its name, else by the first pattern that fits."""
    if model is None:
        return None
    exact = policy.prices.get(model)
    if exact is not None:
        return exact
    name = model.lower()
    return next((rates for key, rates in policy.prices.items() if fnmatchcase(name, key.lower())), None)


def estimate(usage: Usage, provider: str | None = None) -> Decimal:
    """What *usage* may have cost, where its price is unknown. Never raises.

    The price of the model itself where another provider sells it, else the highest among the models that are nearest by
    name, else by the rates of :data:`FRONTIER`.

    Args:
        usage: What was used.
        provider: As in :func:`price`.
    """
    model = usage.model
    try:
        if model and len(model) <= MAX_NAME and (provider is None or len(provider) <= MAX_NAME):
            from otel_loopwatch import catalogue  # noqa: PLC0415 - as in price()

            table = catalogue.current()
            # Without those that are free: that the unknown one is free as well would be the costliest mistake.
            priced = [usd for each in table.relatives(model, provider) if (usd := table.price(each, usage))]
            if priced:
                return max(priced)
    except Exception as fault:  # noqa: BLE001 - a faulty table: a rough price is needed all the same
        report_fault("price", fault)
    return FRONTIER.price(usage)
