"""Agent: one agent's runs, how long, how dear, by which tools."""

from __future__ import annotations

from dashboards.panels import SCOPE, Query, Row, born, buckets, dashboard, graph, heatmap, quantile, stat
from otel_loopwatch import semconv

DASHBOARD = dashboard(
    "agent",
    "Agent",
    "What changed about this agent: compare with the day's median, then with the deploys (blue lines).",
    (
        Row(
            "Now",
            (
                stat(
                    "Runs in an hour",
                    "Runs ended. Few runs make the means below jumpy.",
                    f"sum(agent:loopwatch_runs:increase1h{{{SCOPE}}})",
                ),
                stat(
                    "Open runs",
                    "Runs that are under way. Growing without end: runs do not finish, open Runs & aborts.",
                    f"sum({semconv.RUNS_ACTIVE.prometheus}{{{SCOPE}}})",
                ),
                stat(
                    "Most calls of an open run",
                    "Past the line a run goes on and on: find it in the traces, abort it.",
                    f"max({semconv.RUN_TOOL_CALLS_MAX.prometheus}{{{SCOPE}}})",
                    limits=("open_run_tool_calls",),
                ),
                stat(
                    "Budget used, highest",
                    "Largest share of a limit that an open run used. Past the line it is about to be aborted.",
                    f"max({semconv.BUDGET_USED.prometheus}{{{SCOPE}}})",
                    "percentunit",
                    limits=("budget_used",),
                    empty="no budget",
                ),
            ),
        ),
        Row(
            "More calls than usual?",
            (
                graph(
                    "Calls a run against its median",
                    "Mean of 5 minutes and of an hour, and the day's median. Far above the median: "
                    "which tool grew, below.",
                    Query(f"agent:loopwatch_run_tool_calls:mean5m{{{SCOPE}}}", "{{agent}} 5 minutes"),
                    Query(f"agent:loopwatch_run_tool_calls:mean1h{{{SCOPE}}}", "{{agent}} 1 hour"),
                    Query(f"agent:loopwatch_run_tool_calls:median1d_mean5m{{{SCOPE}}}", "{{agent}} median of the day"),
                    limits=("tool_calls_jump_floor",),
                    trace=True,
                ),
                graph(
                    "Calls a run, 95th percentile",
                    "The long runs. Follow an exemplar (a dot) to the trace of one of them.",
                    Query(quantile(0.95, semconv.RUN_TOOL_CALLS, SCOPE), "{{agent}}"),
                    trace=True,
                ),
                heatmap(
                    "Calls a run, spread",
                    "A second band above the first is a second kind of run: a loop, or a new task. Follow an exemplar.",
                    buckets(semconv.RUN_TOOL_CALLS, SCOPE),
                    "short",
                ),
            ),
        ),
        Row(
            "By which tool, and how do calls end?",
            (
                graph(
                    "Calls by tool",
                    "Calls a second. The tool whose line rises with the calls a run is the one that loops.",
                    Query(
                        f"sum by (agent, tool) (rate({semconv.TOOL_CALLS.prometheus}{{{SCOPE}}}[$__rate_interval]))",
                        "{{agent}} {{tool}}",
                    ),
                    unit="cps",
                    trace=True,
                ),
                graph(
                    "Calls by outcome",
                    "Calls a second. Hinted and refused calls did not run; errors that grow with the calls are "
                    "retries.",
                    Query(
                        f"sum by (outcome) (rate({semconv.TOOL_CALLS.prometheus}{{{SCOPE}}}[$__rate_interval]))",
                        "{{outcome}}",
                    ),
                    unit="cps",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Slower or dearer than usual?",
            (
                graph(
                    "Duration of a run against its median",
                    "95th percentile of 15 minutes and the day's median. With more calls: a loop. Without: "
                    "a slow tool or model.",
                    Query(f"agent:loopwatch_run_duration_seconds:p95_15m{{{SCOPE}}}", "{{agent}} 95th percentile"),
                    Query(
                        f"agent:loopwatch_run_duration_seconds:median1d_p95_15m{{{SCOPE}}}",
                        "{{agent}} median of the day",
                    ),
                    unit="s",
                    limits=("duration_floor",),
                    trace=True,
                ),
                graph(
                    "USD a run against its median",
                    "Mean of 15 minutes and the day's median. With more tokens: longer context. Without: "
                    "a dearer model.",
                    Query(f"agent:loopwatch_run_spend_usd:mean15m{{{SCOPE}}}", "{{agent}} 15 minutes"),
                    Query(f"agent:loopwatch_run_spend_usd:median1d_mean15m{{{SCOPE}}}", "{{agent}} median of the day"),
                    unit="currencyUSD",
                    limits=("spend_per_run_floor",),
                    trace=True,
                ),
                graph(
                    "Tokens of a run, 95th percentile",
                    "The large runs. Growing while calls do not: the context is not cut.",
                    Query(quantile(0.95, semconv.RUN_TOKENS, SCOPE), "{{agent}}"),
                    trace=True,
                ),
            ),
        ),
        Row(
            "Did it loop?",
            (
                graph(
                    "Loops by kind",
                    "Findings of 10 minutes, each counted once a run. What each kind is: docs/how-it-works.md.",
                    Query(f"sum by (agent, kind) ({born(semconv.LOOPS_DETECTED, SCOPE, '10m')})", "{{agent}} {{kind}}"),
                    empty="no loops",
                    trace=True,
                ),
                graph(
                    "Calls outside of any run",
                    "These are not guarded. Open watch_run around the agent, or bind the callable that a thread gets.",
                    Query(
                        f"sum by (agent) ({born(semconv.UNTRACKED_TOOL_CALLS, SCOPE, '30m')}) or on () vector(0)",
                        "{{agent}}",
                    ),
                ),
            ),
        ),
    ),
    ("agent",),
)
