"""The side of a run that takes usage in and holds money: what adapters report, and what the agent's author does.

A base class of :class:`~otel_loopwatch.run.Run` and of nothing else. What is charged, and by which price, is in
:mod:`otel_loopwatch.charging`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, cast

from otel_loopwatch import budgets
from otel_loopwatch.amounts import amount
from otel_loopwatch.calls import Usage
from otel_loopwatch.money import Reservation, take_reservation

if TYPE_CHECKING:
    from otel_loopwatch.charging import Charging
    from otel_loopwatch.ledger import RunLedger
    from otel_loopwatch.limits import Limits

__all__ = ["Spending"]


class Spending:
    """Tokens and money of a run.

    Attributes:
        limits: The limits that hold for it, and its trip.
    """

    limits: Limits
    _ledger: RunLedger
    _charging: Charging

    if TYPE_CHECKING:
        # Of the run. No abstract method: isinstance() of a class that has one is slow, and is asked at every call.
        def _raise_if_aborted(self) -> None: ...

    def charge(self, usage: Usage, source: str, *, provider: str | None = None, held: Decimal = Decimal(0)) -> bool:
        """Add what a model call used, to this run and its ancestors. Trips a run whose limit it reaches; never raises.

        Args:
            usage: What was used. Without ``cost_usd`` its price is looked up: in the policy's ``prices``, by its
                ``price_of``, in the bundled table. A number that cannot be one counts as unknown.
            source: Who reports it. For each model the first source that reports is the one that counts.
            provider: Who was asked, where the model's name alone is ambiguous.
            held: Money held for this very call, given back in the same step.

        Returns:
            False where another source is the one of record, so that nothing was charged.

        Emits:
            ``loopwatch.tokens``, ``loopwatch.spend_usd``, ``loopwatch.usage.unpriced``, ``loopwatch.usage.duplicate``;
            one log record a run where a price is unknown and a USD limit is set (``Budgets.on_unpriced``).
        """
        return self._charging.charge(usage, source, provider=provider, held=held)

    def usage_missing(self, model: str | None) -> None:
        """A model call reported no usage: spend is a lower bound from here on.

        Emits:
            ``loopwatch.usage.missing``; one log record a run where a limit on tokens or USD is set.
        """
        self._charging.missing(model)

    def record_usage(
        self,
        model: str | None = None,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_input_tokens: int = 0,
        cost_usd: Decimal | float | None = None,
        provider: str | None = None,
        cache_write_input_tokens: int = 0,
        reasoning_output_tokens: int = 0,
    ) -> None:
        """Charge one model call.

        Where a provider leaves cached and cache-written tokens out of its count of input (the native API of Anthropic),
        add them first: ``input_tokens=u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens``.

        Args:
            model: Name of the model. Give money that no model cost a name as well (``"search-api"``): a report without
                one may be of any model, and is left out where another source reports.
            input_tokens: Tokens of the prompt, those read from a cache and those written to one included.
            output_tokens: Tokens of the answer, reasoning included.
            cached_input_tokens: The part of ``input_tokens`` that came from a cache.
            cost_usd: Its price, where you know it; else it is looked up. A number that cannot be one (negative, NaN)
                counts as unknown: ``outcome.spend_complete`` is then False.
            provider: The provider's name, where the model's alone is ambiguous.
            cache_write_input_tokens: The part of ``input_tokens`` that was written to a cache.
            reasoning_output_tokens: The part of ``output_tokens`` that was reasoning.

        Raises:
            RunAborted: After charging, where the run is (now) aborted.
            TypeError: For a model or a provider that is no text; nothing is charged.
        """
        for name, value in (("model", model), ("provider", provider)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"run.record_usage: {name} must be a name or None, not a {type(value).__name__}")
        usage = Usage(
            model,
            input_tokens,
            output_tokens,
            cached_input_tokens,
            # Which numbers may be counted is asked where all of them are.
            cast("Decimal | None", cost_usd),
            cache_write_input_tokens=cache_write_input_tokens,
            reasoning_output_tokens=reasoning_output_tokens,
        )
        self.charge(usage, "record_usage", provider=provider, held=take_reservation(self))
        self._raise_if_aborted()

    def reserve(self, usd: Decimal | float) -> Reservation:
        """Hold money for a model call that is about to be made, so that parallel calls cannot pass a limit together.

        ``with run.reserve(0.02): ... run.record_usage(...)``: what ``record_usage`` charges inside the block takes the
        place of what was held; what is left is given back at the end.

        Args:
            usd: The most that the call may cost, in USD.

        Raises:
            RunAborted: Where the run is aborted, or the money is not there.
            ValueError: Where ``usd`` is no finite amount of at least 0.
        """
        held = amount(usd)
        if held is None:
            raise ValueError(f"run.reserve: usd must be a finite amount of at least 0, not {usd!r}")
        self._raise_if_aborted()
        trip = self.limits.breach(self._ledger.hold(held), budgets.call_breach)
        if trip is not None:
            self.give_back(held)
            self.limits.trip(trip)
            self._raise_if_aborted()
        return Reservation(self, held)

    def give_back(self, usd: Decimal) -> None:
        """End the hold of *usd*."""
        # Not -usd, which rounds to what the application's decimal context says.
        self._ledger.hold(usd.copy_negate())
