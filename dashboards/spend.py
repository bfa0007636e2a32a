"""Spend: which agent and model costs what, and which part of it nobody sees."""

from __future__ import annotations

from dashboards.panels import (
    JOBS,
    MODELS,
    SCOPE,
    Query,
    Row,
    born,
    buckets,
    dashboard,
    graph,
    heatmap,
    stat,
    table,
    zero,
)
from otel_loopwatch import semconv

_BLIND = JOBS + ', model=~"$model"'

DASHBOARD = dashboard(
    "spend",
    "Spend",
    "Who spends, on which model, and since when. Model calls without a price or usage are in none of the sums: "
    "the last row.",
    (
        Row(
            "Now",
            (
                stat(
                    "USD an hour, highest agent",
                    "At the pace of 5 minutes. Red pages without any budget: "
                    "lower max_spend_usd of the agent, or stop it.",
                    f"max(agent:loopwatch_spend_usd:hourly5m{{{SCOPE}}})",
                    "currencyUSD",
                    limits=("spend_jump_floor", "spend_per_hour"),
                    empty="no spend",
                ),
                stat(
                    "USD in 24 hours, highest agent",
                    "Red pages without any budget. More runs, dearer runs, or a dearer model: below.",
                    f"max(agent:loopwatch_spend_usd:increase1d{{{SCOPE}}})",
                    "currencyUSD",
                    limits=("spend_day_floor", "spend_per_day"),
                    empty="no spend",
                ),
                stat(
                    "USD a run, highest agent",
                    "Mean of 15 minutes. Past the line and three times its median it alerts: open Agent.",
                    f"max(agent:loopwatch_run_spend_usd:mean15m{{{SCOPE}}})",
                    "currencyUSD",
                    limits=("spend_per_run_floor",),
                ),
                stat(
                    "Dearest open run",
                    "USD spent so far by a run that has not ended. No histogram has it yet.",
                    f"max({semconv.RUN_SPEND_USD_MAX.prometheus}{{{SCOPE}}})",
                    "currencyUSD",
                ),
                stat(
                    "USD of the time range",
                    "All agents and models that are chosen above.",
                    f"sum({born(semconv.SPEND_USD, MODELS)})",
                    "currencyUSD",
                    empty="no spend",
                ),
                stat(
                    "Calls without a price",
                    "Of an hour. Each is money that no sum here and no budget sees: "
                    "give the model a price in the policy.",
                    zero(f"sum({born(semconv.USAGE_UNPRICED, _BLIND, '1h')})"),
                    limits=("usage_unpriced",),
                ),
            ),
        ),
        Row(
            "Since when?",
            (
                graph(
                    "USD an hour against the day",
                    "Pace of 5 minutes, and the mean of the day. Steep: a loop, open Tools & loops. A step: a deploy.",
                    Query(f"agent:loopwatch_spend_usd:hourly5m{{{SCOPE}}}", "{{agent}}"),
                    Query(f"agent:loopwatch_spend_usd:mean1d_hourly5m{{{SCOPE}}}", "{{agent}} mean of the day"),
                    unit="currencyUSD",
                    limits=("spend_jump_floor", "spend_per_hour"),
                    empty="no spend",
                    trace=True,
                ),
                graph(
                    "USD in 24 hours",
                    "The sum of the day before each moment. Compare with the same hour of last week.",
                    Query(f"agent:loopwatch_spend_usd:increase1d{{{SCOPE}}}", "{{agent}}"),
                    unit="currencyUSD",
                    limits=("spend_day_floor", "spend_per_day"),
                    empty="no spend",
                ),
            ),
        ),
        Row(
            "On what?",
            (
                table(
                    "USD by agent and model",
                    "Of the time range. A model that nobody chose is a fallback, or a new default.",
                    f"sum by (agent, model) ({born(semconv.SPEND_USD, MODELS)}) > 0",
                    "USD",
                    "currencyUSD",
                    empty="no spend",
                ),
                graph(
                    "Tokens by type",
                    "Tokens a second. cached_input is a part of input: a share that falls makes the same work dearer.",
                    Query(
                        f"sum by (type) (rate({semconv.TOKENS.prometheus}{{{MODELS}}}[$__rate_interval]))", "{{type}}"
                    ),
                    empty="no tokens",
                ),
                heatmap(
                    "USD a run, spread",
                    "A second band above the first: some runs are far dearer. Follow an exemplar to one.",
                    buckets(semconv.RUN_SPEND_USD, SCOPE),
                    "currencyUSD",
                ),
            ),
        ),
        Row(
            "What is not in these sums?",
            (
                graph(
                    "Calls without a price, by model",
                    "Of an hour. Give each model a price in the policy (docs/spend.md).",
                    Query(zero(f"sum by (model) ({born(semconv.USAGE_UNPRICED, _BLIND, '1h')})"), "{{model}}"),
                    limits=("usage_unpriced",),
                ),
                graph(
                    "Calls without usage, by model",
                    "Of an hour. Streams need include_usage or its like; a few are streams that were broken off.",
                    Query(zero(f"sum by (model) ({born(semconv.USAGE_MISSING, _BLIND, '1h')})"), "{{model}}"),
                    limits=("usage_missing",),
                ),
                graph(
                    "Usage that was reported twice",
                    "Of 10 minutes, by source. Not charged again; switch one of the sources off to make it quiet.",
                    Query(zero(f"sum by (source) ({born(semconv.USAGE_DUPLICATE, JOBS, '10m')})"), "{{source}}"),
                ),
            ),
        ),
    ),
    ("agent", "model"),
)
