"""Metrics: one table of cells, read alike by OpenTelemetry and by Prometheus; capped, and at 0 from the start."""

from __future__ import annotations

import gc
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import otel_loopwatch
from otel_loopwatch import cells, errors, metrics, semconv
from otel_loopwatch.calls import LoopKind, RunOutcome, StopReason, Usage, Used
from otel_loopwatch.policy import Budgets
from otel_loopwatch.semconv import METRICS, OTHER
from otel_loopwatch.testing import FakeClock


class FakeRun:
    """What the gauges read of a run."""

    def __init__(self, agent: str = "a", budgets: Budgets | None = None, clock: FakeClock | None = None) -> None:
        self.agent = agent
        self.budgets = budgets or Budgets()
        self.clock = clock or FakeClock()
        self.started_at = self.last_active_at = self.clock()
        self.usage = Used()

    def used(self) -> Used:
        return self.usage


def outcome(agent: str = "a", **facts) -> RunOutcome:
    return RunOutcome("r", agent, facts.pop("stop_reason", StopReason.COMPLETED), **facts)


def values(metric: semconv.Metric) -> dict[tuple[str, ...], cells.Value]:
    return {tuple(labels.values()): value for found, labels, value in metrics.samples() if found is metric}


def exposed(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a page that is ours, without the time-dependent one and the exporter's labels of the scope."""
    return {
        (sample.name, frozenset(pair for pair in sample.labels.items() if "otel_scope" not in pair[0])): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name.startswith("loopwatch_") and not sample.name.startswith("loopwatch_heartbeat")
    }


def points(provider_reader: InMemoryMetricReader) -> list[tuple[str, dict, object]]:
    data = provider_reader.get_metrics_data()
    assert data is not None
    return [
        (metric.name, dict(point.attributes), getattr(point, "value", point))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


# --- the table ---


def test_h7_no_name_or_unit_changes_on_the_way():
    for metric in METRICS:
        assert metric.unit in ("", "s") or re.fullmatch(r"\{[a-z]+\}", metric.unit), metric
        assert not {"total", "seconds", "ratio"} & set(re.split(r"[._]", metric.name)), metric
        assert bool(metric.buckets) == (metric.kind == "histogram")
    assert len({metric.prometheus for metric in METRICS}) == len(METRICS)


def test_every_stage_at_which_a_fault_is_counted_begins_at_zero():
    sources = "".join(path.read_text() for path in Path(otel_loopwatch.__file__).parent.rglob("*.py"))
    stages = set(re.findall(r'(?:telemetry_guard|report_fault)\("([a-z_.]+)"', sources))
    assert stages
    assert stages == set(cells.GUARD_STAGES)
    assert values(semconv.GUARD_ERRORS) == {(stage,): 0 for stage in cells.GUARD_STAGES}


# --- counters ---


def test_h1_the_series_of_a_pair_are_there_before_anything_is_counted():
    metrics.known_tool("a", "search", "hint")
    assert values(semconv.TOOL_CALLS) == {("a", "search", out): 0 for out in semconv.OUTCOMES}
    assert values(semconv.LOOPS_DETECTED) == {("a", "search", kind, "hint"): 0 for kind in get_args(LoopKind)}
    assert values(semconv.TOOL_REPEATS) == {("a", "search"): 0}
    assert values(semconv.HINTS_IGNORED) == {("a", "search"): 0}


def test_a_pair_seen_again_keeps_its_counts():
    metrics.known_tool("a", "t", "hint")
    metrics.tool_call("a", "t", "ok", repeated=False)
    metrics.known_tool("a", "t", "hint")
    metrics.known_tool("a", "t", "abort")
    assert values(semconv.TOOL_CALLS)["a", "t", "ok"] == 1
    assert values(semconv.LOOPS_DETECTED)["a", "t", "cycle", "abort"] == 0


def test_calls_repeats_loops_and_ignored_hints_are_counted_apart():
    metrics.tool_call("a", "t", "ok", repeated=False)
    metrics.tool_call("a", "t", "error", repeated=True)
    metrics.tool_call("a", "t", "hinted", repeated=True)
    metrics.loop_detected("a", "t", "repeat", "hint")
    metrics.hint_ignored("a", "t")
    assert values(semconv.TOOL_CALLS) == {("a", "t", "ok"): 1, ("a", "t", "error"): 1, ("a", "t", "hinted"): 1}
    assert values(semconv.TOOL_REPEATS) == {("a", "t"): 2}
    assert values(semconv.LOOPS_DETECTED) == {("a", "t", "repeat", "hint"): 1}
    assert values(semconv.HINTS_IGNORED) == {("a", "t"): 1}


def test_tokens_are_counted_by_type_and_cached_ones_are_part_of_the_input():
    metrics.charged("a", Usage("m", 100, 20, 60, Decimal("0.1")))
    metrics.charged("a", Usage("m", 10, 2, 0, Decimal("0.2")))
    assert values(semconv.TOKENS) == {
        ("a", "m", "input"): 110,
        ("a", "m", "output"): 22,
        ("a", "m", "cached_input"): 60,
    }
    # 0.1 + 0.2 of binary floats is not this.
    assert values(semconv.SPEND_USD) == {("a", "m"): 0.3}


@pytest.mark.parametrize("cost", [None, Decimal("NaN"), Decimal("Infinity")])
def test_d3_a_price_that_is_none_adds_nothing_and_spoils_nothing(cost):
    metrics.charged("a", Usage("m", 1, 1, 0, cost))
    metrics.charged("a", Usage("m", 1, 1, 0, Decimal(2)))
    assert values(semconv.SPEND_USD) == {("a", "m"): 2}


def test_money_of_a_tool_has_no_model_and_no_tokens():
    metrics.charged("a", Usage(None, cost_usd=Decimal("0.5"), tool="search"))
    assert values(semconv.SPEND_USD) == {("a", ""): 0.5}
    assert values(semconv.TOKENS) == {}


def test_blind_spend_is_counted_by_model():
    metrics.usage_missing(None)
    metrics.usage_unpriced("claude-opus-4.1x")
    metrics.usage_duplicate("spans")
    assert values(semconv.USAGE_MISSING) == {("unknown",): 1}
    assert values(semconv.USAGE_UNPRICED) == {("claude-opus-4.1x",): 1}
    assert values(semconv.USAGE_DUPLICATE) == {("spans",): 1}


def test_every_reported_fault_is_counted_under_its_stage():
    errors.report_fault("on_verdict", ValueError())
    errors.report_fault("on_verdict", ValueError())
    assert values(semconv.GUARD_ERRORS)["on_verdict",] == 2
    assert values(semconv.GUARD_ERRORS)["telemetry",] == 0


def test_h9_what_says_that_the_guard_is_alive_is_always_there(monkeypatch):
    monkeypatch.setattr(metrics._registry, "wall_clock", lambda: 1234.5)
    assert values(semconv.HEARTBEAT) == {(): 1234.5}
    assert values(semconv.BUILD_INFO) == {(otel_loopwatch.__version__, "enforce"): 1}
    metrics.set_mode("observe")
    assert values(semconv.BUILD_INFO) == {(otel_loopwatch.__version__, "observe"): 1}
    before = values(semconv.TOOLS_REGISTERED)[()]
    metrics.tool_registered()
    assert values(semconv.TOOLS_REGISTERED) == {(): before + 1}


def test_f2_calls_of_many_threads_are_all_counted():
    def count() -> None:
        for _ in range(2000):
            metrics.tool_call("a", "t", "ok", repeated=True)
            metrics.charged("a", Usage("m", 1))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(semconv.TOOL_CALLS) == {("a", "t", "ok"): 16_000}
    assert values(semconv.TOOL_REPEATS) == {("a", "t"): 16_000}
    assert values(semconv.TOKENS)["a", "m", "input"] == 16_000


# --- caps ---


def test_f7_made_up_tool_names_leave_a_bounded_number_of_series():
    for run in range(10_000):
        for tool in range(5):
            name = f"tool_{run}_{tool}"
            metrics.known_tool("a", name, "hint")
            metrics.tool_call("a", name, "ok", repeated=False)
    for metric in METRICS:
        assert len(values(metric)) <= semconv.MAX_SERIES
    calls = values(semconv.TOOL_CALLS)
    assert sum(calls.values()) == 50_000
    assert calls["a", OTHER, "ok"] == 50_000 - cells.MAX_TOOLS_PER_AGENT
    assert calls["a", "tool_0_0", "ok"] == 1
    folded = values(semconv.SERIES_FOLDED)
    assert folded[semconv.TOOL_CALLS.name,] == 50_000 - cells.MAX_TOOLS_PER_AGENT
    assert folded[semconv.SPEND_USD.name,] == 0


def test_f7_an_agent_that_makes_up_names_leaves_room_for_the_others():
    for number in range(1000):
        metrics.tool_call("wild", f"t{number}", "ok", repeated=False)
    metrics.tool_call("tame", "search", "ok", repeated=False)
    assert values(semconv.TOOL_CALLS)["tame", "search", "ok"] == 1


def test_f7_no_instrument_passes_its_bound_whatever_the_labels():
    for number in range(200):
        agent = f"agent{number}"
        metrics.run_closed(FakeRun(agent), outcome(agent))
        metrics.untracked(agent)
        metrics.guard_error(f"stage{number}")
        metrics.usage_missing(f"model{number}")
        for other in range(20):
            metrics.charged(agent, Usage(f"model{number}.{other}", 1, cost_usd=Decimal(1)))
            for action in ("hint", "abort", "observe"):
                metrics.known_tool(agent, f"t{other}", action)
                for kind in get_args(LoopKind):
                    metrics.loop_detected(agent, f"t{other}", kind, action)
            metrics.tool_call(agent, f"t{other}", "ok", repeated=True)
            metrics.hint_ignored(agent, f"t{other}")
    counted = {metric.name: values(metric) for metric in METRICS}
    for name, series in counted.items():
        assert len(series) <= semconv.MAX_SERIES, name
    assert sum(counted[semconv.LOOPS_DETECTED.name].values()) == 200 * 20 * 3 * 7
    assert sum(counted[semconv.SPEND_USD.name].values()) == 200 * 20
    assert sum(counted[semconv.TOKENS.name].values()) == 200 * 20
    assert sum(counted[semconv.TOOL_CALLS.name].values()) == 200 * 20
    assert sum(counted[semconv.RUNS.name].values()) == 200
    assert sum(sum(value.counts) for value in counted[semconv.RUN_TOKENS.name].values()) == 200
    # "unknown" takes a place of the agents' and ended no run; "__other__" takes none.
    assert len({labels[0] for labels in counted[semconv.RUN_TOKENS.name]}) == cells.MAX_AGENTS - 1 + 1
    assert len({labels[1] for labels in counted[semconv.SPEND_USD.name]}) <= cells.MAX_MODELS + 1


def test_a_folded_label_set_is_counted_once():
    for _ in range(3):
        for number in range(cells.MAX_AGENTS + 2):
            metrics.untracked(f"agent{number}")
    # "unknown" is there from the start and takes a place.
    assert values(semconv.SERIES_FOLDED)[semconv.UNTRACKED_TOOL_CALLS.name,] == 3
    assert values(semconv.UNTRACKED_TOOL_CALLS)[OTHER,] == 9


def test_the_memory_of_folded_label_sets_is_bounded():
    for number in range(3 * cells.MAX_FOLDED):
        metrics.tool_call("a", f"t{number}", "ok", repeated=False)
    assert len(metrics._registry._folded) <= cells.MAX_FOLDED
    assert len(metrics._registry._known) <= cells.MAX_PAIRS


# --- runs ---


def test_h6_gauges_show_the_largest_of_the_open_runs():
    clock = FakeClock()
    old, new = FakeRun(clock=clock), FakeRun(clock=clock)
    old.usage = Used(tool_calls=3, spend_usd=Decimal("0.25"))
    metrics.run_opened(old)
    clock.advance(60)
    new.started_at = new.last_active_at = clock()
    new.usage = Used(tool_calls=9)
    metrics.run_opened(new)
    clock.advance(5)
    old.last_active_at = clock() - 1
    assert values(semconv.RUNS_ACTIVE) == {("a",): 2}
    assert values(semconv.RUN_TOOL_CALLS_MAX) == {("a",): 9}
    assert values(semconv.RUN_SPEND_USD_MAX) == {("a",): 0.25}
    assert values(semconv.RUN_AGE_MAX) == {("a",): 65}
    assert values(semconv.RUN_IDLE_MAX) == {("a",): 5}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gauges_do_not_depend_on_which_run_was_opened_first(order):
    clock = FakeClock()
    budgets = Budgets(max_steps=10, max_tool_calls=10, max_tokens=10, max_spend_usd=10, max_seconds=100)
    runs = [FakeRun(budgets=budgets, clock=clock) for _ in range(2)]
    runs[0].usage = Used(steps=8, tool_calls=1, tokens=6, spend_usd=Decimal(1))
    runs[1].usage = Used(steps=1, tool_calls=7, tokens=1, spend_usd=Decimal(5))
    runs[0].started_at = clock() - 40
    runs[0].last_active_at, runs[1].last_active_at = clock() - 2, clock() - 3
    for index in order:
        metrics.run_opened(runs[index])
    assert values(semconv.BUDGET_USED) == {
        ("a", "steps"): 0.8,
        ("a", "tool_calls"): 0.7,
        ("a", "tokens"): 0.6,
        ("a", "spend_usd"): 0.5,
        ("a", "seconds"): 0.4,
    }
    assert values(semconv.RUN_AGE_MAX) == {("a",): 40}
    assert values(semconv.RUN_IDLE_MAX) == {("a",): 3}


def test_an_agent_without_an_open_run_reads_zero():
    run = FakeRun(budgets=Budgets(max_tool_calls=10))
    run.usage = Used(tool_calls=5)
    metrics.run_opened(run)
    assert values(semconv.BUDGET_USED) == {("a", "tool_calls"): 0.5}
    metrics.run_closed(run, outcome())
    assert values(semconv.RUNS_ACTIVE) == {("a",): 0}
    assert values(semconv.RUN_TOOL_CALLS_MAX) == {("a",): 0}
    assert values(semconv.BUDGET_USED) == {("a", "tool_calls"): 0}


def test_a_run_that_is_dropped_without_an_end_leaves_the_gauges():
    metrics.run_opened(FakeRun())
    gc.collect()
    assert values(semconv.RUNS_ACTIVE) == {("a",): 0}


def test_the_share_of_a_budget_is_the_largest_over_runs_with_different_limits():
    runs = [FakeRun(budgets=Budgets(max_tool_calls=limit, max_spend_usd=limit)) for limit in (10, 100, 10)]
    for run, calls in zip(runs, (2, 90, 4), strict=True):
        run.usage = Used(tool_calls=calls, spend_usd=Decimal(1))
        metrics.run_opened(run)
    assert values(semconv.BUDGET_USED) == {("a", "tool_calls"): 0.9, ("a", "spend_usd"): 0.1}


def test_a_run_that_cannot_be_read_hides_no_other(monkeypatch, caplog):
    monkeypatch.delenv("LOOPWATCH_STRICT")
    bad, good = FakeRun(), FakeRun()
    bad.used = lambda: 1 / 0
    good.usage = Used(tool_calls=2)
    metrics.run_opened(bad)
    metrics.run_opened(good)
    assert values(semconv.RUN_TOOL_CALLS_MAX) == {("a",): 2}
    assert values(semconv.GUARD_ERRORS)["metrics.collect",] == 1
    assert "ZeroDivisionError in metrics.collect" in caplog.text


def test_the_end_of_a_run_is_counted_by_reason_and_measured():
    run = FakeRun()
    metrics.run_opened(run)
    assert values(semconv.RUNS) == {("a", reason.value): 0 for reason in StopReason}
    metrics.run_closed(
        run,
        outcome(
            stop_reason=StopReason.LOOP_DETECTED,
            tool_calls=12,
            input_tokens=900,
            output_tokens=101,
            cached_input_tokens=500,
            spend_usd=Decimal("0.0011"),
            duration_s=0.1,
        ),
    )
    assert values(semconv.RUNS)["a", "loop_detected"] == 1
    assert values(semconv.RUNS)["a", "completed"] == 0

    def bucket(metric: semconv.Metric) -> float:
        (distribution,) = values(metric).values()
        return metric.buckets[distribution.counts.index(1)]

    # A bound belongs to the bucket below it.
    assert bucket(semconv.RUN_TOOL_CALLS) == 12
    assert bucket(semconv.RUN_TOKENS) == 5e3
    assert bucket(semconv.RUN_SPEND_USD) == 0.005
    assert bucket(semconv.RUN_DURATION) == 0.1
    assert values(semconv.RUN_SPEND_USD)["a",].total == pytest.approx(0.0011)


def test_a_value_above_the_last_bound_is_kept():
    metrics.run_closed(FakeRun(), outcome(tool_calls=10**6))
    assert values(semconv.RUN_TOOL_CALLS)["a",].counts[-1] == 1


# --- OpenTelemetry and Prometheus ---


def test_both_ways_out_show_the_same_names_labels_and_values():
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    metrics.instrument(provider)
    clock = FakeClock()
    run = FakeRun(budgets=Budgets(max_tool_calls=3, max_seconds=100), clock=clock)
    run.usage = Used(tool_calls=1, spend_usd=Decimal("0.5"))
    metrics.run_opened(run)
    clock.advance(30)
    metrics.known_tool("a", 'say "hi"\n', "hint")
    metrics.tool_call("a", 'say "hi"\n', "ok", repeated=True)
    metrics.charged("a", Usage("m", 7, 5, 1, Decimal("0.1")))
    metrics.charged("a", Usage(None, cost_usd=Decimal("0.2"), tool="t"))
    metrics.usage_missing("m")
    metrics.usage_unpriced("m")
    metrics.usage_duplicate("spans")
    for calls in (1, 4, 4, 5000):
        ended = FakeRun()
        metrics.run_closed(ended, outcome(tool_calls=calls, spend_usd=Decimal("0.07"), duration_s=2.5, input_tokens=9))
    registry = CollectorRegistry()
    registry.register(metrics.prometheus_collector())
    ours, theirs = exposed(generate_latest(registry)), exposed(generate_latest(reader._collector))
    assert ours == theirs
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name, _ in ours}
    assert shown == {metric.prometheus for metric in METRICS if metric is not semconv.HEARTBEAT}
    provider.shutdown()


def test_the_page_says_type_and_help_of_every_metric():
    registry = CollectorRegistry()
    registry.register(metrics.prometheus_collector())
    metrics.run_opened(FakeRun())
    page = generate_latest(registry).decode()
    assert "# HELP loopwatch_runs_total Runs ended, by stop reason.\n# TYPE loopwatch_runs_total counter\n" in page
    assert "# TYPE loopwatch_heartbeat_seconds gauge" in page


def test_f5_instruments_are_made_once_a_provider(monkeypatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    made = []
    get_meter = provider.get_meter
    monkeypatch.setattr(provider, "get_meter", lambda *args: made.append(args) or get_meter(*args))
    metrics.instrument(provider)
    metrics.instrument(provider)
    assert made == [("otel_loopwatch", otel_loopwatch.__version__)]
    metrics.tool_call("a", "t", "ok", repeated=False)
    metrics.run_closed(FakeRun(), outcome(tool_calls=3))
    seen = points(reader)
    assert [value for name, _, value in seen if name == semconv.TOOL_CALLS.name] == [1]
    (histogram,) = [point for name, _, point in seen if name == semconv.RUN_TOOL_CALLS.name]
    assert (histogram.count, histogram.sum) == (1, 3)
    assert tuple(histogram.explicit_bounds) == semconv.COUNT_BUCKETS
    provider.shutdown()


def test_f5_the_global_provider_is_instrumented_once_under_either_name(monkeypatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "_global_done", False)
    monkeypatch.setattr(metrics.otel, "get_meter_provider", lambda: provider)
    metrics.run_opened(run := FakeRun())
    metrics.instrument()
    metrics.instrument(provider)
    metrics.tool_call("a", "t", "ok", repeated=False)
    assert [value for name, _, value in points(reader) if name == semconv.TOOL_CALLS.name] == [1]
    assert run is not None
    provider.shutdown()


def test_two_readers_and_two_providers_each_see_everything_each_time():
    readers = [InMemoryMetricReader() for _ in range(3)]
    providers = [MeterProvider(readers[:2]), MeterProvider(readers[2:])]
    for provider in providers:
        metrics.instrument(provider)
    for calls in (1, 2):
        metrics.tool_call("a", "t", "ok", repeated=False)
        for reader in readers:
            assert (semconv.TOOL_CALLS.name, {"agent": "a", "tool": "t", "outcome": "ok"}, calls) in points(reader)
    for provider in providers:
        provider.shutdown()


def test_a_collection_looks_at_the_cells_once(monkeypatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=[View(instrument_name=semconv.RUNS.name, aggregation=DropAggregation())])
    metrics.instrument(provider)
    looks = []
    read = metrics._registry.read
    monkeypatch.setattr(metrics._registry, "read", lambda: looks.append(1) or read())
    for collections in (1, 2, 3):
        points(reader)
        assert len(looks) == collections
    provider.shutdown()


def test_a_fault_while_collecting_is_counted_and_goes_no_further(monkeypatch):
    monkeypatch.delenv("LOOPWATCH_STRICT")
    read = metrics._registry.read
    monkeypatch.setattr(metrics._registry, "read", lambda: 1 / 0)
    assert list(metrics.prometheus_collector().collect()) == []
    monkeypatch.setattr(metrics._registry, "read", read)
    assert values(semconv.GUARD_ERRORS)["metrics.collect",] == 1


def test_a_provider_that_cannot_make_instruments_stops_nothing(monkeypatch):
    class Broken(MeterProvider):
        def get_meter(self, *args, **kwargs):
            raise RuntimeError

    monkeypatch.delenv("LOOPWATCH_STRICT")
    provider = Broken()
    metrics.instrument(provider)
    provider.shutdown()
    assert values(semconv.GUARD_ERRORS)["metrics.instrument",] == 1


def test_callbacks_come_before_each_look(monkeypatch):
    monkeypatch.setattr(metrics._registry, "before_reading", [])
    metrics.before_collection(lambda: metrics.tool_call("a", "t", "ok", repeated=False))
    assert values(semconv.TOOL_CALLS) == {("a", "t", "ok"): 1}
    assert values(semconv.TOOL_CALLS) == {("a", "t", "ok"): 2}
