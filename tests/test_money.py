"""Amounts that may be counted, and money held for a call."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_loopwatch as lw
from otel_loopwatch.amounts import amount, token_count
from otel_loopwatch.policy import Budgets, Policy
from otel_loopwatch.testing import Captured, capture

BAD = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.01,
    "0.1",
    True,
    False,
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("-0.1"),
    [1],
]


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@pytest.mark.parametrize("value", [*BAD, None])
def test_d3_what_is_no_amount(value: object) -> None:
    assert amount(value) is None


@pytest.mark.parametrize("value, usd", [(0, "0"), (1, "1"), (0.1, "0.1"), (Decimal("0.1"), "0.1"), (1e-9, "1E-9")])
def test_d3_what_is_an_amount(value: object, usd: str) -> None:
    assert amount(value) == Decimal(usd)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "7", True, None, 1j])
def test_what_is_no_number_of_tokens(value: object) -> None:
    assert token_count(value) is None


@pytest.mark.parametrize("value", BAD)
def test_d3_a_bad_cost_poisons_nothing(seen: Captured, value: object) -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1)), on_abort="return") as run:
        run.record_usage("m", cost_usd=value)
        run.record_usage("m", cost_usd=Decimal("0.5"))
        assert run.outcome.spend_usd == Decimal("0.5")
        with pytest.raises(lw.BudgetExceeded):
            run.record_usage("m", cost_usd=0.5)
    assert run.outcome.spend_usd == Decimal("1.0")
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model="m") == 1


@pytest.mark.parametrize("value", [-5, math.nan, "12", True])
def test_a_bad_number_of_tokens_is_none_and_makes_spend_incomplete(value: object) -> None:
    with lw.watch_run("a") as run:
        run.record_usage("gpt-4o", input_tokens=value, output_tokens=3)
    assert (run.outcome.input_tokens, run.outcome.output_tokens) == (0, 3)
    assert not run.outcome.spend_complete


def test_d2_an_unknown_model_is_not_free(seen: Captured) -> None:
    with lw.watch_run("a") as run:
        for _ in range(10):
            run.record_usage("nobodys-model-9", input_tokens=1000, output_tokens=50)
    assert run.outcome.spend_usd == 0, "without a limit nothing is made up"
    assert not run.outcome.spend_complete
    assert run.outcome.input_tokens == 10_000
    assert seen.value("loopwatch.usage.unpriced", model="nobodys-model-9") == 10


def test_a_known_price_of_zero_is_complete() -> None:
    with lw.watch_run("a") as run:
        run.record_usage("local", input_tokens=5, cost_usd=0)
    assert run.outcome.spend_usd == Decimal(0)
    assert run.outcome.spend_complete


def test_nothing_charged_is_zero_and_complete() -> None:
    with lw.watch_run("a") as run:
        pass
    assert run.outcome.spend_usd == Decimal(0)
    assert isinstance(run.outcome.spend_usd, Decimal)
    assert run.outcome.spend_complete


def test_d4_cached_tokens_are_part_of_the_input(seen: Captured) -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tokens=10_000))) as run:
        run.record_usage("gpt-4o", input_tokens=1000, cached_input_tokens=400, output_tokens=50)
    outcome = run.outcome
    assert (outcome.input_tokens, outcome.cached_input_tokens, outcome.output_tokens) == (1000, 400, 50)
    assert run.used().tokens == 1050, "the token budget counts cached tokens once"
    with lw.watch_run("a") as dear:
        dear.record_usage("gpt-4o", input_tokens=1000, output_tokens=50)
    assert 0 < outcome.spend_usd < dear.outcome.spend_usd
    assert seen.value("loopwatch.tokens", model="gpt-4o", type="cached_input") == 400


def test_the_first_source_of_a_model_is_the_one_of_record(seen: Captured) -> None:
    from otel_loopwatch.calls import Usage

    with lw.watch_run("a") as run:
        run.record_usage("m", input_tokens=10, cost_usd=0.1)
        assert not run.charge(Usage("m", 10, cost_usd=Decimal("0.1")), "spans")
        assert run.charge(Usage("other", 5, cost_usd=Decimal("0.2")), "spans")
    assert run.outcome.input_tokens == 15
    assert run.outcome.spend_usd == Decimal("0.3")
    assert seen.value("loopwatch.usage.duplicate", source="spans") == 1


# --- reservations -----------------------------------------------------------------------------------------------------


def test_what_is_charged_takes_the_place_of_what_was_held() -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1))) as run:
        with run.reserve(0.4):
            assert run.used().held_usd == Decimal("0.4")
            run.record_usage("m", cost_usd=0.1)
            assert run.used().held_usd == 0
            assert run.used().spend_usd == Decimal("0.1")
        assert run.used().held_usd == 0


def test_what_is_left_is_given_back_also_after_an_error() -> None:
    with lw.watch_run("a") as run:
        with pytest.raises(ZeroDivisionError), run.reserve(0.4):
            1 / 0  # noqa: B018
        assert run.used().held_usd == 0
        kept = run.reserve(0.2)
        kept.release()
        kept.release()
        assert run.used().held_usd == 0


def test_a_report_that_counts_for_nothing_gives_the_held_money_back() -> None:
    from otel_loopwatch.calls import Usage

    with lw.watch_run("a") as run:
        run.charge(Usage("m", cost_usd=Decimal("0.1")), "spans")
        with run.reserve(0.4):
            run.record_usage("m", cost_usd=0.1)
        assert run.used().held_usd == 0
        assert run.used().spend_usd == Decimal("0.1")


def test_nested_reservations_each_cover_their_own_call() -> None:
    with lw.watch_run("a") as run, run.reserve(0.5):
        with run.reserve(0.1):
            run.record_usage("m", cost_usd=0.05)
        assert run.used().held_usd == Decimal("0.5")


def test_after_an_inner_reservation_the_outer_one_holds_again() -> None:
    with lw.watch_run("a") as run, run.reserve(0.5):
        with run.reserve(0.1):
            pass
        run.record_usage("m", cost_usd=0.2)
        assert run.used().held_usd == 0


def test_a_reservation_may_be_left_in_another_context() -> None:
    with lw.watch_run("a") as run:
        reservation = run.reserve(0.5)
        reservation.__enter__()
        contextvars.Context().run(reservation.__exit__, None, None, None)
        assert run.used().held_usd == 0


@pytest.mark.parametrize("value", [value for value in BAD if value is not None])
def test_nothing_that_is_no_amount_can_be_reserved(value: object) -> None:
    with lw.watch_run("a") as run, pytest.raises(ValueError, match="finite amount"):
        run.reserve(value)


def test_a_refused_reservation_holds_nothing() -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1)), on_abort="return") as run:
        with pytest.raises(lw.BudgetExceeded) as caught:
            run.reserve(1.01)
        assert run.used().held_usd == 0
    assert caught.value.used == Decimal("1.01")
    assert run.outcome.stop_reason == "spend_budget"


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20))
def test_no_sequence_of_reservations_leaves_money_held(cents: list[tuple[int, int]]) -> None:
    with lw.watch_run(
        "a", policy=Policy(budgets=Budgets(max_spend_usd=1)), on_abort="return", insist_after=None
    ) as run:
        for held, cost in cents:
            try:
                with run.reserve(Decimal(held) / 100):
                    run.record_usage("m", cost_usd=Decimal(min(held, cost)) / 100)
            except lw.BudgetExceeded:
                pass
        assert run.used().held_usd == 0
        assert run.used().spend_usd <= 1
