"""The user's own prices: what one model costs, by the million tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Final

from otel_loopwatch.amounts import EXACT, amount
from otel_loopwatch.calls import Usage
from otel_loopwatch.errors import PolicyError
from otel_loopwatch.policy_checks import shown

__all__ = ["ModelPrice"]

_MILLION: Final = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """What one model costs, in USD for a million tokens; kept as :class:`~decimal.Decimal`, 0 is a price.

    Args:
        input_usd_per_mtok: Tokens of the prompt that are neither read from a cache nor written to one.
        output_usd_per_mtok: Tokens of the answer.
        cached_input_usd_per_mtok: Tokens of the prompt that are read from a cache; ``None`` means like input.
        cache_write_usd_per_mtok: Tokens of the prompt that are written to a cache; ``None`` means like input.
        reasoning_usd_per_mtok: Tokens of reasoning; ``None`` means like output.

    Raises:
        PolicyError: For a negative, NaN, infinite or mistyped rate. Names it.
    """

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    cached_input_usd_per_mtok: Decimal | None = None
    cache_write_usd_per_mtok: Decimal | None = None
    reasoning_usd_per_mtok: Decimal | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.default is None:
                continue
            rate = amount(value)
            if rate is None:
                raise PolicyError(f"must be a finite amount of USD of at least 0, not {shown(value)}", key=item.name)
            object.__setattr__(self, item.name, rate)

    def price(self, usage: Usage) -> Decimal:
        """USD for *usage*, whose counts are whole numbers of at least 0. Exact: nothing is rounded.

        Of a count that is larger than the one it is a part of (a source that left the cached ones out), nothing is
        billed below zero: ``uncached = max(0, input - cached - cache_write)``, and so for reasoning.
        """
        uncached = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_input_tokens)
        answer = max(0, usage.output_tokens - usage.reasoning_output_tokens)
        read, made = self.input_usd_per_mtok, self.output_usd_per_mtok
        total = Decimal(0)
        for tokens, rate in (
            (uncached, read),
            (usage.cached_input_tokens, _either(self.cached_input_usd_per_mtok, read)),
            (usage.cache_write_input_tokens, _either(self.cache_write_usd_per_mtok, read)),
            (answer, made),
            (usage.reasoning_output_tokens, _either(self.reasoning_usd_per_mtok, made)),
        ):
            total = EXACT.fma(Decimal(tokens), rate, total)
        return EXACT.divide(total, _MILLION)


def _either(rate: Decimal | None, otherwise: Decimal) -> Decimal:
    return otherwise if rate is None else rate
