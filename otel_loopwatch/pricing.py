"""What a model call costs in USD, or that nobody knows: by the table that genai-prices bundles. No network.

One convention holds throughout: ``input_tokens`` includes the cached ones. Sources that report them apart (the native
API of Anthropic) add them up before they come here.
"""

from __future__ import annotations

from decimal import Decimal

from otel_loopwatch.calls import Usage

__all__ = ["price"]

_MAX_NAME = 256
"""Longer names are no model's, and genai-prices remembers each name that it does not know."""


def price(usage: Usage, provider: str | None = None) -> Decimal | None:
    """The price of *usage* at today's rates, in USD. Never raises.

    Args:
        usage: What was used. ``cost_usd`` is not looked at: a price that was reported needs no table.
        provider: The provider's id as genai-prices knows it (``openai``, ``anthropic``); ``None`` asks by model alone.

    Returns:
        USD, or ``None`` where model or provider is unknown or a count is negative. Unknown is not 0.
    """
    model = usage.model
    try:
        if not model or len(model) > _MAX_NAME or (provider is not None and len(provider) > _MAX_NAME):
            return None
        # Takes 0.6 s and brings an HTTP client along: only for those who need a price.
        import genai_prices  # noqa: PLC0415

        counted = genai_prices.Usage(
            # More cached than sent: a source that left the cached ones out. Nothing is billed below zero.
            input_tokens=max(usage.input_tokens, usage.cached_input_tokens or usage.input_tokens),
            cache_read_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
        )
        return genai_prices.calc_price(counted, model, provider_id=provider).total_price
    except Exception:  # noqa: BLE001 - unknown names, impossible counts, a faulty table: in each case the price is unknown
        return None
