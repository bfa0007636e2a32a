"""Which numbers may be counted: of tokens, and of USD. What may not is told from 0, and never reaches a sum."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, Final

__all__ = ["EXACT", "MAX_COUNT", "amount", "token_count"]

MAX_COUNT: Final = 2**63
"""Above it is no number of tokens, and no amount of USD: a sum that overflows would be an error of every later call."""

MAX_DECIMALS: Final = 24
"""Decimals of an amount that are kept; a token of the cheapest model costs 1e-8 USD."""

EXACT: Final = Context(prec=80, traps=[])
"""For sums and products of amounts. No sum of :data:`MAX_COUNT` amounts needs more digits, and the application's own
context may round to few of them, or trap what is inexact."""

_SMALLEST: Final = Decimal(1).scaleb(-MAX_DECIMALS)


def token_count(value: Any) -> int | None:
    """A number of tokens, or ``None`` for what is none (negative, NaN, absurdly large, a bool, a string)."""
    # False for NaN.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_COUNT:
        return None
    return int(value)


def amount(value: Any) -> Decimal | None:
    """An amount of USD, or ``None`` for what is none (negative, NaN, absurdly large, a bool, a string)."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    # Of an integer first: Python refuses to write out one of more than 4,300 digits.
    if isinstance(value, int) and not 0 <= value < MAX_COUNT:
        return None
    usd = value if isinstance(value, Decimal) else Decimal(str(value))
    if not (usd.is_finite() and 0 <= usd < MAX_COUNT):
        return None
    exponent = usd.as_tuple().exponent
    return EXACT.quantize(usd, _SMALLEST) if isinstance(exponent, int) and exponent < -MAX_DECIMALS else usd
