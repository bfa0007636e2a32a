"""What a run is charged for its model calls: by whom, by which price, and what happens where nobody knows."""

from __future__ import annotations

import enum
import itertools
import logging
import math
import threading
from collections.abc import Iterator
from decimal import Decimal, Inexact, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_loopwatch as lw
from otel_loopwatch import charging
from otel_loopwatch.calls import StopReason, Usage
from otel_loopwatch.policy import Budgets, Policy
from otel_loopwatch.prices import ModelPrice
from otel_loopwatch.pricing import FRONTIER, price
from otel_loopwatch.run import Run
from otel_loopwatch.testing import Captured, capture

UNKNOWN = "nobodys-model-9"
MTOK = 10**6


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


def limited(on_unpriced: str = "estimate", usd: float = 100, **more) -> Policy:
    return Policy(budgets=Budgets(max_spend_usd=usd, on_unpriced=on_unpriced), **more)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "unknown:" in record.message or "no usage" in record.message]


_begun: list[Run] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """A run that is begun without ``watch_run`` is open until it is closed."""
    yield
    while _begun:
        _begun.pop().close()


def begin(agent: str, **more) -> Run:
    _begun.append(Run(agent, **more))
    return _begun[-1]


def counted(seen: Captured, metric: str, **labels: str) -> float:
    """Like ``seen.value``, and 0 for a series that nothing has been added to."""
    try:
        return seen.value(metric, **labels)
    except LookupError:
        return 0


# --- whose price ------------------------------------------------------------------------------------------------------


def test_d4_a_run_is_charged_by_the_users_table() -> None:
    table = {"m": ModelPrice(input_usd_per_mtok=1, output_usd_per_mtok=2, cached_input_usd_per_mtok=0.1)}
    with lw.watch_run("a", policy=Policy(prices=table)) as run:
        run.record_usage("m", input_tokens=1000, cached_input_tokens=400, output_tokens=50)
    assert run.outcome.spend_usd == Decimal("0.00074")
    assert run.outcome.spend_complete


def test_d4_cache_writes_and_reasoning_reach_the_price() -> None:
    table = {
        "m": ModelPrice(
            input_usd_per_mtok=1, output_usd_per_mtok=2, cache_write_usd_per_mtok=10, reasoning_usd_per_mtok=100
        )
    }
    with lw.watch_run("a", policy=Policy(prices=table)) as run:
        run.record_usage(
            "m",
            input_tokens=2 * MTOK,
            cache_write_input_tokens=MTOK,
            output_tokens=2 * MTOK,
            reasoning_output_tokens=MTOK,
        )
    assert run.outcome.spend_usd == 1 + 10 + 2 + 100
    assert run.used().tokens == 4 * MTOK, "parts are not counted again"


def test_a_price_that_a_library_has_computed_is_not_computed_twice() -> None:
    asked = []
    with lw.watch_run("a", policy=Policy(price_of=lambda *given: asked.append(given))) as run:
        run.charge(Usage("gpt-4o", 1000, 50, cost_usd=Decimal("0.123")), "spans")
    assert run.outcome.spend_usd == Decimal("0.123")
    assert asked == []


def test_what_is_charged_without_a_price_is_priced() -> None:
    with lw.watch_run("a") as run:
        run.charge(Usage("gpt-4o", 1000, 50), "spans", provider="azure.ai.openai")
    assert run.outcome.spend_usd == price(Usage("gpt-4o", 1000, 50))
    assert run.outcome.spend_complete


def test_a_child_asks_the_table_of_its_parents_policy_after_its_own() -> None:
    parents = {
        "a": ModelPrice(input_usd_per_mtok=1, output_usd_per_mtok=0),
        "b": ModelPrice(input_usd_per_mtok=2, output_usd_per_mtok=0),
    }
    own = {"b": ModelPrice(input_usd_per_mtok=40, output_usd_per_mtok=0)}
    with lw.watch_run("parent", policy=Policy(prices=parents)) as parent:
        with lw.watch_run("child", policy=Policy(prices=own)) as child:
            child.record_usage("a", input_tokens=MTOK)
            child.record_usage("b", input_tokens=MTOK)
        with lw.watch_run("heir") as heir:
            heir.record_usage("b", input_tokens=MTOK)
    assert child.outcome.spend_usd == 41
    assert heir.outcome.spend_usd == 2
    assert parent.outcome.spend_usd == 43


def test_a_broken_price_function_hurts_nobody(seen: Captured) -> None:
    def broken(usage: Usage, provider: str | None) -> Decimal:
        raise KeyError(usage.model)

    with lw.watch_run("a", policy=Policy(price_of=broken)) as run:
        run.record_usage("gpt-4o", input_tokens=1000)
    assert run.outcome.spend_usd == 0
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.guard.errors", stage="price") == 1
    assert seen.value("loopwatch.usage.unpriced", model="gpt-4o") == 1


def test_no_lock_is_held_while_the_users_price_function_runs() -> None:
    def looks(usage: Usage, provider: str | None) -> Decimal:
        other = threading.Thread(target=lambda: run.record_usage("m", cost_usd=1))
        other.start()
        other.join(20)
        assert not other.is_alive()
        return Decimal(1)

    with lw.watch_run("a", policy=Policy(price_of=looks)) as run:
        run.record_usage("m", input_tokens=1)
    assert run.outcome.spend_usd == 2


# --- D-2: a price that nobody knows -----------------------------------------------------------------------------------


def test_d2_without_a_limit_an_unknown_model_is_counted_and_no_more(
    seen: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tokens=10**9))) as run:
        run.record_usage(UNKNOWN, input_tokens=MTOK)
    assert run.outcome.spend_usd == 0
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model=UNKNOWN) == 1
    assert warnings(caplog) == []


@pytest.mark.parametrize("on_unpriced, charged", [("warn", 0), ("estimate", 10)])
def test_d2_under_a_limit_it_is_warned_of_once_a_run(
    seen: Captured, caplog: pytest.LogCaptureFixture, on_unpriced: str, charged: int
) -> None:
    with lw.watch_run("a", policy=limited(on_unpriced, usd=1000)) as run:
        for _ in range(10):
            run.record_usage(UNKNOWN, input_tokens=MTOK)
    assert run.outcome.spend_usd == 10 * charged
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model=UNKNOWN) == 10
    assert seen.value("loopwatch.spend_usd", agent="a", model=UNKNOWN) == 10 * charged
    (said,) = warnings(caplog)
    assert UNKNOWN in said
    assert "1000 USD" in said
    (record,) = (each for each in caplog.records if each.message == said)
    assert record.levelno == logging.WARNING
    assert record.loopwatch["gen_ai.request.model"] == UNKNOWN
    assert record.loopwatch["loopwatch.run.id"] == run.run_id


def test_d2_an_estimate_makes_the_limit_hold() -> None:
    with lw.watch_run("a", policy=limited(usd=1), on_abort="return") as run:
        for _ in range(10):
            run.record_usage("claude-opus-4.1x", input_tokens=10_000)
    assert run.outcome.stop_reason == StopReason.SPEND_BUDGET
    assert run.outcome.spend_usd == 7 * 10_000 * Decimal("0.000015")


def test_d2_stop_aborts_the_run_with_a_message_that_says_what_to_do(
    seen: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    with lw.watch_run("a", policy=limited("stop", usd=2), on_abort="return") as run:
        with pytest.raises(lw.BudgetExceeded) as caught:
            run.record_usage(UNKNOWN, input_tokens=1000)
        with pytest.raises(lw.BudgetExceeded):
            run.check()
    error = caught.value
    assert (error.stop_reason, error.budget, error.limit, error.used) == (StopReason.UNPRICED, "spend_usd", 2, 0)
    assert UNKNOWN in str(error)
    assert "prices" in str(error)
    assert run.outcome.stop_reason == StopReason.UNPRICED
    assert run.outcome.spend_usd == 0
    assert run.outcome.input_tokens == 1000, "the call was made, and is counted"
    assert seen.value("loopwatch.runs", agent="a", stop_reason="unpriced") == 1
    assert len(warnings(caplog)) == 1


def test_d2_stop_in_observe_mode_says_so_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("a", policy=limited("stop", mode="observe")) as run:
        run.record_usage(UNKNOWN, input_tokens=1000)
    assert run.outcome.stop_reason == StopReason.COMPLETED
    assert "would be stopped" in warnings(caplog)[0]


def test_d2_a_known_model_is_none_of_all_that(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("a", policy=limited("stop")) as run:
        run.record_usage("gpt-4o", input_tokens=1000)
        run.record_usage("local", input_tokens=1000, cost_usd=0)
    assert run.outcome.spend_complete
    assert counted(seen, "loopwatch.usage.unpriced") == 0
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "parents, childs, spent, tripped",
    [
        ("estimate", None, 10, None),
        ("estimate", "warn", 10, None),
        ("warn", "estimate", 10, None),
        ("warn", "warn", 0, None),
        ("stop", None, 0, "parent"),
        ("stop", "warn", 0, "parent"),
        ("stop", "estimate", 10, "parent"),
        ("warn", "stop", 0, "child"),
        ("estimate", "stop", 10, "child"),
    ],
)
def test_d2_every_limit_that_is_armed_above_a_call_has_its_say(
    caplog: pytest.LogCaptureFixture, parents: str, childs: str | None, spent: int, tripped: str | None
) -> None:
    policy = None if childs is None else limited(childs)
    parent = begin("parent", policy=limited(parents))
    child = begin("child", policy=policy, parent=parent)
    for _ in range(2):
        child.charge(Usage(UNKNOWN, MTOK // 2), "spans")
    assert parent.outcome.spend_usd == child.outcome.spend_usd == spent
    assert not parent.outcome.spend_complete
    assert (child.tripped is not None) == (tripped is not None)
    assert (parent.tripped is not None) == (tripped == "parent")
    assert len(warnings(caplog)) == 1


def test_d2_many_children_under_one_limit_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("parent", policy=limited()):
        for _ in range(20):
            with lw.watch_run("child") as child:
                child.record_usage(UNKNOWN, input_tokens=10)
    assert len(warnings(caplog)) == 1


def test_d2_two_limits_that_stop_are_both_tripped() -> None:
    parent = begin("parent", policy=limited("stop"))
    child = begin("child", policy=limited("stop"), parent=parent)
    child.charge(Usage(UNKNOWN, 1), "spans")
    assert parent.tripped is not None
    assert parent.outcome.stop_reason == child.outcome.stop_reason == StopReason.UNPRICED


def test_a_silent_run_says_nothing(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    run = Run("replayed", policy=limited(), silent=True)
    run.charge(Usage(UNKNOWN, MTOK), "replay")
    run.charge(Usage(UNKNOWN, MTOK), "another")
    run.usage_missing("m")
    assert run.outcome.spend_usd == 10
    assert not caplog.records
    assert counted(seen, "loopwatch.usage.unpriced") == 0
    assert counted(seen, "loopwatch.usage.duplicate") == 0


def test_a_reported_price_that_is_none_is_estimated_too(seen: Captured) -> None:
    with lw.watch_run("a", policy=limited()) as run:
        run.record_usage("gpt-4o", input_tokens=MTOK, cost_usd=math.nan)
    assert run.outcome.spend_usd == price(Usage("gpt-4o", MTOK))
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model="gpt-4o") == 1


def test_a_model_without_a_name_is_estimated_by_the_frontier_rate(caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("a", policy=limited()) as run:
        run.record_usage(input_tokens=MTOK, output_tokens=MTOK)
    assert run.outcome.spend_usd == FRONTIER.price(Usage(None, MTOK, MTOK))
    assert "a model without a name" in warnings(caplog)[0]


def test_what_is_held_is_given_back_where_the_price_is_unknown() -> None:
    with lw.watch_run("a", policy=limited("warn")) as run, run.reserve(1):
        run.record_usage(UNKNOWN, input_tokens=1)
        assert run.used().held_usd == 0


# --- D-6: usage that is not reported ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budgets, said",
    [
        (Budgets(max_tokens=1000), 1),
        (Budgets(max_spend_usd=1), 1),
        (Budgets(max_tokens=1000, max_spend_usd=1), 1),
        (Budgets(max_steps=3), 0),
        (Budgets(), 0),
    ],
)
def test_d6_usage_that_is_missing_is_counted_and_warned_of_once(
    seen: Captured, caplog: pytest.LogCaptureFixture, budgets: Budgets, said: int
) -> None:
    with lw.watch_run("a", policy=Policy(budgets=budgets)) as run:
        for _ in range(3):
            run.usage_missing("gpt-4o")
    assert seen.value("loopwatch.usage.missing", model="gpt-4o") == 3
    assert not run.outcome.spend_complete
    assert len(warnings(caplog)) == said


def test_d6_a_limit_of_an_ancestor_counts_as_well(caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("parent", policy=Policy(budgets=Budgets(max_tokens=1000))) as parent:
        for _ in range(3):
            with lw.watch_run("child") as child:
                child.usage_missing(None)
    assert not parent.outcome.spend_complete
    assert not child.outcome.spend_complete
    (said,) = warnings(caplog)
    assert "a model without a name" in said


# --- D-3: numbers that are none ---------------------------------------------------------------------------------------

BAD_COUNTS = [-1, math.nan, math.inf, -math.inf, 2**63, 10**400, True, "7", None, [1], Decimal(3)]
COUNTS = ["input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", BAD_COUNTS, ids=range(len(BAD_COUNTS)))
def test_d3_a_bad_count_of_any_source_poisons_nothing(seen: Captured, name: str, value: object) -> None:
    with lw.watch_run("a", policy=limited(usd=1), on_abort="return") as run:
        assert run.charge(Usage("gpt-4o", **{name: value}), "adapter")
        assert run.used() == run.used()._replace(tokens=0, spend_usd=Decimal(0))
        run.charge(Usage("gpt-4o", 10, cost_usd=Decimal("0.5")), "adapter")
        assert run.tripped is None
        run.charge(Usage("gpt-4o", 10, cost_usd=Decimal("0.5")), "adapter")
        assert run.tripped is not None, "spent >= limit is still true of it"
    assert run.outcome.spend_usd == 1
    assert run.outcome.input_tokens == 20
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model="gpt-4o") == 1


@pytest.mark.parametrize(
    "cost", [math.nan, math.inf, -1, 2**63, "0.1", True, Decimal("sNaN"), Decimal("-0.1"), [1]], ids=range(9)
)
def test_d3_a_bad_cost_of_any_source_poisons_nothing(cost: object) -> None:
    with lw.watch_run("a", policy=limited("warn", usd=1), on_abort="return") as run:
        run.charge(Usage("m", 10, cost_usd=cost), "adapter")
        run.charge(Usage("m", 10, cost_usd=Decimal(1)), "adapter")
    assert run.outcome.spend_usd == 1
    assert run.outcome.stop_reason == StopReason.SPEND_BUDGET


def test_a_whole_is_at_least_its_parts() -> None:
    with lw.watch_run("a") as run:
        run.record_usage(
            "m",
            input_tokens=1,
            cached_input_tokens=5,
            cache_write_input_tokens=4,
            reasoning_output_tokens=3,
            cost_usd=0,
        )
    assert (run.outcome.input_tokens, run.outcome.output_tokens, run.used().tokens) == (9, 3, 12)


# --- names ------------------------------------------------------------------------------------------------------------


class Model(enum.StrEnum):
    BIG = "gpt-4o"


@pytest.mark.parametrize("model", [["x"], {"gpt-4o"}, 7, b"gpt-4o", object()], ids=range(5))
def test_a_model_that_is_no_text_is_refused_and_nothing_is_charged(model: object) -> None:
    with lw.watch_run("a") as run:
        with pytest.raises(TypeError, match="model must be a name or None, not a "):
            run.record_usage(model, input_tokens=10, cost_usd=1)
        with pytest.raises(TypeError, match="provider must be a name or None, not a int"):
            run.record_usage("gpt-4o", input_tokens=10, provider=7)
    assert run.outcome.input_tokens == 0
    assert run.outcome.spend_usd == 0


@pytest.mark.parametrize("model", [["x"], 7, b"x", ""], ids=range(4))
def test_an_adapter_that_names_no_text_is_charged_without_a_name(seen: Captured, model: object) -> None:
    with lw.watch_run("a") as run:
        assert run.charge(Usage(model, 10), "adapter")
    assert run.outcome.input_tokens == 10
    assert seen.value("loopwatch.usage.unpriced", model="unknown") == 1


def test_an_enum_of_names_is_a_name(seen: Captured) -> None:
    with lw.watch_run("a") as run:
        run.record_usage(Model.BIG, input_tokens=1000)
    assert run.outcome.spend_usd == price(Usage("gpt-4o", 1000))
    assert seen.value("loopwatch.tokens", model="gpt-4o", type="input") == 1000


def test_a_long_name_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with lw.watch_run("a", policy=limited()) as run:
        run.record_usage("x" * 1_000_000, input_tokens=10)
        run.record_usage("x" * 1_000_001, input_tokens=10)
    assert run.outcome.input_tokens == 20
    assert len(warnings(caplog)[0]) < 500


# --- one fact, one charge ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reports",
    [
        # (model, source, counts)
        [("m", "record_usage", True), ("m", "spans", False), ("m", "record_usage", True)],
        [("m", "spans", True), ("m", "record_usage", False), ("m", "adapter", False)],
        [("m", "spans", True), ("n", "record_usage", True), ("m", "record_usage", False), ("n", "spans", False)],
        # The request's name and the answer's.
        [("gpt-5", "record_usage", True), ("gpt-5-2025-08-07", "spans", False)],
        [("gpt-5-2025-08-07", "spans", True), ("openai/gpt-5", "record_usage", False)],
        [("us.anthropic.claude-sonnet-4-20250514-v1:0", "spans", True), ("claude-sonnet-4", "adapter", False)],
        [("gpt-5", "spans", True), ("gpt-5-mini", "record_usage", True)],
        # Without a name it may be any.
        [(None, "record_usage", True), ("m", "spans", False), ("n", "spans", False), (None, "record_usage", True)],
        [("m", "spans", True), (None, "record_usage", False), ("m", "spans", True)],
        [(None, "spans", True), ("m", "spans", True), ("m", "record_usage", False)],
        [("m", "record_usage", True), ("n", "spans", True), (None, "record_usage", True), (None, "spans", False)],
        [(None, "spans", True), (None, "record_usage", False)],
    ],
)
def test_for_each_model_the_first_source_counts(seen: Captured, reports: list[tuple[str | None, str, bool]]) -> None:
    run = begin("a")
    for model, source, counts in reports:
        assert run.charge(Usage(model, 1, cost_usd=Decimal(1)), source) is counts, (model, source)
    charged = sum(counts for _, _, counts in reports)
    assert run.outcome.input_tokens == run.outcome.spend_usd == charged
    assert counted(seen, "loopwatch.usage.duplicate") == len(reports) - charged


def test_the_money_of_a_tool_is_that_of_no_model() -> None:
    run = begin("a")
    assert run.charge(Usage(None, cost_usd=Decimal(1), tool="search"), "adapter")
    assert run.charge(Usage("m", 1, cost_usd=Decimal(1)), "spans")
    assert run.charge(Usage(None, cost_usd=Decimal(1), tool="search"), "adapter")
    assert run.outcome.spend_usd == 3


def test_a_childs_source_of_record_is_its_own() -> None:
    with lw.watch_run("parent") as parent:
        with lw.watch_run("child") as child:
            child.charge(Usage("m", 1, cost_usd=Decimal(1)), "adapter")
            assert not child.charge(Usage("m", 1, cost_usd=Decimal(1)), "spans")
        assert parent.charge(Usage("m", 1, cost_usd=Decimal(1)), "spans")
    assert parent.outcome.spend_usd == 2
    assert child.outcome.spend_usd == 1


def test_the_models_of_a_run_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "MAX_MODELS", 3)
    run = begin("a")
    for number in range(10):
        assert run.charge(Usage(f"model-{number}", 1, cost_usd=Decimal(1)), "spans")
        assert not run.charge(Usage(f"model-{number}", 1, cost_usd=Decimal(1)), "record_usage")
    assert run.outcome.spend_usd == 10
    assert len(run._charging._sources) <= 4


def test_two_sources_at_once_are_one_charge_each_time() -> None:
    for _ in range(50):
        run = begin("a")
        start = threading.Barrier(4)

        def report(source: str, run: Run = run, start: threading.Barrier = start) -> None:
            start.wait(20)
            run.charge(Usage("m", 1, cost_usd=Decimal(1)), source)

        threads = [threading.Thread(target=report, args=(f"source-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert run.outcome.spend_usd == 1


# --- sums -------------------------------------------------------------------------------------------------------------

amounts = st.decimals(0, 10**6, places=12)


@given(st.lists(amounts, max_size=6), st.randoms())
def test_the_order_of_charges_never_changes_the_sum(costs: list[Decimal], random) -> None:
    shuffled = random.sample(costs, len(costs))
    sums = []
    for order in (costs, shuffled):
        run = Run("a", silent=True)
        for cost in order:
            run.charge(Usage("m", cost_usd=cost), "spans")
        sums.append(run.outcome.spend_usd)
    assert sums[0] == sums[1] == sum(costs)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
def test_floats_are_summed_as_they_are_written(costs: list[float]) -> None:
    run = Run("a", silent=True)
    for cost in costs:
        run.record_usage("m", cost_usd=cost)
    exact = sum(Decimal(str(cost)) for cost in costs)
    assert abs(run.outcome.spend_usd - exact) < Decimal("1e-20")


def test_a_tenth_ten_times_is_one() -> None:
    run = begin("a")
    for _ in itertools.repeat(None, 10):
        run.record_usage("m", cost_usd=0.1)
    assert run.outcome.spend_usd == 1


def test_the_applications_decimal_context_changes_no_sum() -> None:
    with localcontext() as context:
        context.prec = 3
        context.traps[Inexact] = True
        with lw.watch_run("a", policy=limited(usd=Decimal("1.00001")), on_abort="return") as run:
            for _ in range(9):
                with run.reserve(Decimal("0.111111")):
                    run.record_usage("m", cost_usd=Decimal("0.111111"))
            with pytest.raises(lw.BudgetExceeded):
                run.reserve(Decimal("0.000012"))
            assert run.used().spend_usd == Decimal("0.999999")
            assert run.used().held_usd == 0
