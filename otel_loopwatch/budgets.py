"""Usage against limits. Pure: no clock, no state, no OpenTelemetry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from otel_loopwatch.amounts import EXACT
from otel_loopwatch.calls import Breach, StopReason, Used
from otel_loopwatch.policy import Budgets

__all__ = ["Shares", "any_reached", "breached", "call_breach", "is_limited", "shares", "step_breach", "warning_shares"]


def is_limited(budgets: Budgets) -> bool:
    """True where any limit on usage is set, so that an unlimited run pays for no check."""
    return any(
        limit is not None
        for limit in (
            budgets.max_steps,
            budgets.max_tool_calls,
            budgets.max_seconds,
            budgets.max_tokens,
            budgets.max_spend_usd,
        )
    )


def call_breach(used: Used, budgets: Budgets, elapsed_s: float) -> Breach | None:
    """The limit that forbids a tool call whose reservation *used* already includes.

    Args:
        used: Usage of the run that owns *budgets*, this call included.
        budgets: The limits.
        elapsed_s: Seconds since that run began.
    """
    limit = budgets.max_tool_calls
    if limit is not None and used.tool_calls > limit:
        return Breach("tool_calls", limit, used.tool_calls, StopReason.TOOL_CALL_BUDGET)
    usd = budgets.max_spend_usd
    if usd is not None and (spent := EXACT.add(used.spend_usd, used.held_usd)) > usd:
        return Breach("spend_usd", usd, spent, StopReason.SPEND_BUDGET)
    return breached(used, budgets, elapsed_s)


def step_breach(used: Used, budgets: Budgets, elapsed_s: float) -> Breach | None:
    """The limit that forbids a model turn that *used* already includes."""
    limit = budgets.max_steps
    if limit is not None and used.steps > limit:
        return Breach("steps", limit, used.steps, StopReason.STEP_BUDGET)
    return breached(used, budgets, elapsed_s)


def breached(used: Used, budgets: Budgets, elapsed_s: float) -> Breach | None:
    """The first of tokens, USD and seconds that is used up: ``used >= limit``."""
    tokens = budgets.max_tokens
    if tokens is not None and used.tokens >= tokens:
        return Breach("tokens", tokens, used.tokens, StopReason.TOKEN_BUDGET)
    usd = budgets.max_spend_usd
    if usd is not None and used.spend_usd >= usd:
        return Breach("spend_usd", usd, used.spend_usd, StopReason.SPEND_BUDGET)
    seconds = budgets.max_seconds
    if seconds is not None and elapsed_s >= seconds:
        return Breach("seconds", seconds, elapsed_s, StopReason.TIME_BUDGET)
    return None


def shares(used: Used, budgets: Budgets, elapsed_s: float) -> Iterator[tuple[Breach, float]]:
    """Each limit that is set, with the share of it that is used (1.0 = all), for warnings and the gauge."""
    for name, limit, amount, reason in (
        ("steps", budgets.max_steps, used.steps, StopReason.STEP_BUDGET),
        ("tool_calls", budgets.max_tool_calls, used.tool_calls, StopReason.TOOL_CALL_BUDGET),
        ("tokens", budgets.max_tokens, used.tokens, StopReason.TOKEN_BUDGET),
        ("spend_usd", budgets.max_spend_usd, used.spend_usd, StopReason.SPEND_BUDGET),
        ("seconds", budgets.max_seconds, elapsed_s, StopReason.TIME_BUDGET),
    ):
        if limit is not None:
            yield Breach(name, limit, amount, reason), float(EXACT.divide(Decimal(str(amount)), Decimal(str(limit))))


class Shares(NamedTuple):
    """The amounts from which a run is warned, infinite where there is no limit."""

    steps: float
    tool_calls: float
    tokens: float
    spend_usd: Decimal | float
    seconds: float


def warning_shares(budgets: Budgets) -> Shares:
    """The warning share of each limit as an amount, so that a call compares numbers and divides none."""
    # By way of Decimal: 35 * 0.2 is 7.000000000000001, and the seventh call would not be warned of.
    share = Decimal(str(budgets.warn_at))

    def amount(limit: float | None) -> float:
        return math.inf if limit is None else float(EXACT.multiply(Decimal(str(limit)), share))

    usd = budgets.max_spend_usd
    return Shares(
        amount(budgets.max_steps),
        amount(budgets.max_tool_calls),
        amount(budgets.max_tokens),
        math.inf if usd is None else EXACT.multiply(usd, share),
        amount(budgets.max_seconds),
    )


def any_reached(used: Used, elapsed_s: float, shares: Shares) -> bool:
    """True where one of *shares* is reached. Says not which: that is for :func:`shares`."""
    return (
        used.tool_calls >= shares.tool_calls
        or used.tokens >= shares.tokens
        or used.steps >= shares.steps
        or elapsed_s >= shares.seconds
        or used.spend_usd >= shares.spend_usd
    )
