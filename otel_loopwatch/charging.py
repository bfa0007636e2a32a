"""What the model calls of a run used and cost: who says so first, by which price, and what is done where nobody knows.

The part of a :class:`~otel_loopwatch.run.Run` that takes usage in. Sums live in the run's ledger, except for what
nobody judges: tokens by kind, and whether the spend is complete.
"""

# ruff: noqa: SLF001 - a part of the run: it shares its lock and its ledger

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from otel_loopwatch import metrics, telemetry
from otel_loopwatch.amounts import amount, token_count
from otel_loopwatch.calls import Breach, StopReason, Trip, Usage
from otel_loopwatch.errors import telemetry_guard
from otel_loopwatch.model_names import MAX_NAME, bare
from otel_loopwatch.pricing import estimate, price_by

if TYPE_CHECKING:
    from otel_loopwatch.policy import Policy
    from otel_loopwatch.run import Run

__all__ = ["Charging"]

MAX_MODELS: Final = 256
"""Models of one run whose source is remembered; those beyond are taken for one model."""
OTHER: Final = ""
ZERO: Final = Decimal(0)
MAX_SHOWN: Final = 100
"""Characters of a model's name in a message."""


class Charging:
    """The usage of one run.

    Args:
        run: The run.
        parent: That of the run in which it was opened.

    Attributes:
        tokens: Input, output and cached input tokens, those of descendants included.
        complete: False from the first usage or price on that was unknown.
    """

    __slots__ = ("_parent", "_run", "_sources", "_warned_of_price", "_warned_of_usage", "complete", "tokens")

    def __init__(self, run: Run, parent: Charging | None) -> None:
        self.tokens = (0, 0, 0)
        self.complete = True
        self._run = run
        self._parent = parent
        self._sources: dict[str | None, str] = {}
        self._warned_of_price = self._warned_of_usage = False

    def charge(self, usage: Usage, source: str, *, provider: str | None = None, held: Decimal = ZERO) -> bool:
        """Add *usage*, as :meth:`otel_loopwatch.run.Run.charge` says."""
        run = self._run
        usage, is_sound = _checked(usage)
        # Of what a tool costs there is no second source.
        if usage.tool is None and not self._is_of_record(usage.model, source):
            if held:
                run.give_back(held)
            if not run.silent:
                with telemetry_guard("metrics"):
                    metrics.usage_duplicate(source)
            return False
        if usage.cost_usd is None and is_sound:
            usage = usage._replace(cost_usd=price_by(self._policies(), usage, provider))
        is_priced = usage.cost_usd is not None
        trips: list[Trip] = []
        if not is_priced:
            usage, trips = self._unpriced(usage, provider)
        for each in self._lineage():
            each._add(usage, is_priced=is_priced)
        used = run._ledger.charge(usage, held=held)
        run.last_active_at = run.clock()
        if not run.silent:
            with telemetry_guard("metrics"):
                metrics.charged(run.agent, usage)
                if not is_priced:
                    metrics.usage_unpriced(usage.model)
        for trip in trips:
            run.limits.trip(trip)
        run.limits.settle(used)
        return True

    def missing(self, model: str | None) -> None:
        """Count a model call that reported no usage, as :meth:`otel_loopwatch.run.Run.usage_missing` says."""
        run = self._run
        for each in self._lineage():
            each.complete = False
        if not run.silent:
            with telemetry_guard("metrics"):
                metrics.usage_missing(model)
        for each in self._lineage():
            limits = each._run.budgets
            if limits.max_tokens is not None or limits.max_spend_usd is not None:
                each._warn_of_usage(model)
                return

    # --- one fact, one charge -------------------------------------------------------------------------------------

    def _is_of_record(self, model: str | None, source: str) -> bool:
        """True where *source* is the one whose reports on *model* count: the first that reports it.

        Names that differ by a date or by where the model runs are one model: a request has ``gpt-5``, its answer
        ``gpt-5-2025-08-07``. A report without a name may be of any model, so it is left out where only others report,
        and leaves out the others where it was first.
        """
        name = None if model is None else bare(model)
        with self._run._lock:
            sources = self._sources
            if name not in sources and len(sources) >= MAX_MODELS:
                name = OTHER
            of_record = sources.get(name)
            if of_record is None:
                if name is not None:
                    of_record = sources.get(None)
                elif sources and source not in sources.values():
                    return False
                of_record = of_record or source
                if of_record == source:
                    sources[name] = source
            return of_record == source

    # --- what nobody knows ----------------------------------------------------------------------------------------

    def _unpriced(self, usage: Usage, provider: str | None) -> tuple[Usage, list[Trip]]:
        """*usage* with what is charged for it in place of its price, and the trips of the runs that are to be stopped.

        Every run whose USD limit it is charged against has its say. One sum is charged to all of them, so one that
        estimates is enough.
        """
        limited = [each for each in self._lineage() if each._run.budgets.max_spend_usd is not None]
        trips = []
        for each in limited:
            trip = each._stop_for(usage.model)
            if trip is not None:
                trips.append(trip)
        if any(each._run.budgets.on_unpriced == "estimate" for each in limited):
            usage = usage._replace(cost_usd=estimate(usage, provider))
        if limited:
            limited[0]._warn_of_price(usage.model)
        return usage, trips

    def _stop_for(self, model: str | None) -> Trip | None:
        run = self._run
        limit = run.budgets.max_spend_usd
        if run.budgets.on_unpriced != "stop" or not run.limits.enforced or limit is None:
            return None
        return Trip(
            StopReason.UNPRICED,
            f"The price of {_shown(model)} is unknown, so the limit of {limit} USD cannot be kept. The run was stopped "
            "(on_unpriced: stop); a price can be given in the policy's prices.",
            breach=Breach("spend_usd", limit, run.used().spend_usd, StopReason.UNPRICED),
            run_id=run.run_id,
        )

    def _warn_of_price(self, model: str | None) -> None:
        run = self._run
        with run._lock:
            said, self._warned_of_price = self._warned_of_price, True
        if said or run.silent:
            return
        done = {
            "warn": "nothing is charged for it",
            "estimate": "an estimate is charged for it",
            "stop": "the run is stopped" if run.limits.enforced else "in mode enforce the run would be stopped",
        }[run.budgets.on_unpriced]
        with telemetry_guard("telemetry"):
            telemetry.report_blind_spend(
                run,
                f"the price of {_shown(model)} is unknown: {done}. The limit is {run.budgets.max_spend_usd} USD; "
                "a price can be given in the policy's prices",
                model,
            )

    def _warn_of_usage(self, model: str | None) -> None:
        run = self._run
        with run._lock:
            said, self._warned_of_usage = self._warned_of_usage, True
        if said or run.silent:
            return
        with telemetry_guard("telemetry"):
            telemetry.report_blind_spend(
                run,
                f"a call of {_shown(model)} reported no usage: the limits on tokens and USD do not see it. "
                "Streams often have to be asked for it (stream_options: include_usage)",
                model,
            )

    # --- the tree -------------------------------------------------------------------------------------------------

    def _add(self, usage: Usage, *, is_priced: bool) -> None:
        with self._run._lock:
            given, made, cached = self.tokens
            self.tokens = (
                given + usage.input_tokens,
                made + usage.output_tokens,
                cached + usage.cached_input_tokens,
            )
            self.complete = self.complete and is_priced

    def _lineage(self) -> Iterator[Charging]:
        each: Charging | None = self
        while each is not None:
            yield each
            each = each._parent

    def _policies(self) -> Iterator[Policy]:
        """The policies of the run and its ancestors, each once: a child has its parent's where it has none."""
        last = None
        for each in self._lineage():
            policy = each._run.policy
            if policy is not last:
                yield policy
            last = policy


def _checked(usage: Usage) -> tuple[Usage, bool]:
    """*usage* with what is no number taken as 0 or unknown, and whether there was nothing of that kind.

    A whole is at least as large as its parts. A name that is no text is none.
    """
    model, cost = usage.model, usage.cost_usd
    counts = [token_count(value) for value in usage.counts]
    read, written, cached, stored, thought = (count or 0 for count in counts)
    usd = None if cost is None else amount(cost)
    checked = Usage(
        model[:MAX_NAME] if isinstance(model, str) and model else None,
        max(read, cached + stored),
        max(written, thought),
        cached,
        usd,
        usage.tool,
        stored,
        thought,
    )
    return checked, None not in counts and (cost is None or usd is not None)


def _shown(model: str | None) -> str:
    return "a model without a name" if model is None else f"model {model[:MAX_SHOWN]!r}"
