"""Overview: is any agent looping, overspending or stuck, and is the guard awake."""

from __future__ import annotations

from dashboards.panels import FIRING, JOBS, SCOPE, Query, Row, dashboard, graph, stat, table, zero
from otel_loopwatch import semconv

DASHBOARD = dashboard(
    "overview",
    "Overview",
    "Start here. A coloured number is past the limit of its alert; the other dashboards (top right) say why.",
    (
        Row(
            "Is something wrong now?",
            (
                stat(
                    "Alerts firing",
                    "Alerts of Loopwatch that fire now. Each links to its runbook in Alertmanager.",
                    zero(f"count({FIRING})"),
                ),
                stat(
                    "Tool calls a run, highest agent",
                    "Mean of 5 minutes. Past the line and three times the day's median it pages: open Agent.",
                    f"max(agent:loopwatch_run_tool_calls:mean5m{{{SCOPE}}})",
                    limits=("tool_calls_jump_floor",),
                ),
                stat(
                    "Loops in 10 minutes, worst tool",
                    "Runs in which this tool looped. Past the line open Tools & loops.",
                    f"max(agent_tool:loopwatch_loops_detected:increase10m{{{SCOPE}}})",
                    limits=("loops_per_tool",),
                    empty="no loops",
                ),
                stat(
                    "Aborted runs, highest share",
                    "Of the runs of 15 minutes. Past the line open Runs & aborts: the stop reason decides.",
                    f"clamp_max(max(agent:loopwatch_runs_aborted:ratio_increase15m{{{SCOPE}}}), 1)",
                    "percentunit",
                    limits=("abort_ratio",),
                ),
            ),
        ),
        Row(
            "What does it cost, and is it alive?",
            (
                stat(
                    "USD an hour, dearest agent",
                    "At the pace of 5 minutes. Red pages without any budget: open Spend.",
                    f"max(agent:loopwatch_spend_usd:hourly5m{{{SCOPE}}})",
                    "currencyUSD",
                    limits=("spend_jump_floor", "spend_per_hour"),
                    empty="no spend",
                ),
                stat(
                    "USD in 24 hours, dearest agent",
                    "Red pages without any budget: open Spend.",
                    f"max(agent:loopwatch_spend_usd:increase1d{{{SCOPE}}})",
                    "currencyUSD",
                    limits=("spend_day_floor", "spend_per_day"),
                    empty="no spend",
                ),
                stat(
                    "Oldest open run",
                    "Past the line a run is stuck or endless: open Runs & aborts.",
                    f"max({semconv.RUN_AGE_MAX.prometheus}{{{SCOPE}}})",
                    "s",
                    limits=("run_age", "run_age_hours"),
                ),
                stat(
                    "Last sign of the guard",
                    "Age of the last collection. Past the line nothing is seen: open Guard health.",
                    f"time() - max({semconv.HEARTBEAT.prometheus}{{{JOBS}}})",
                    "s",
                    limits=("heartbeat_age",),
                    empty="no guard",
                ),
            ),
        ),
        Row(
            "Which agent?",
            (
                graph(
                    "Tool calls a run",
                    "Mean of 5 minutes by agent. A step up right after a deploy is the deploy: "
                    "compare with the blue lines.",
                    Query(f"agent:loopwatch_run_tool_calls:mean5m{{{SCOPE}}}", "{{agent}}"),
                    limits=("tool_calls_jump_floor",),
                    trace=True,
                ),
                graph(
                    "USD an hour",
                    "At the pace of 5 minutes by agent. One agent alone: its model or its loop. All: the traffic.",
                    Query(f"agent:loopwatch_spend_usd:hourly5m{{{SCOPE}}}", "{{agent}}"),
                    unit="currencyUSD",
                    limits=("spend_jump_floor", "spend_per_hour"),
                    empty="no spend",
                    trace=True,
                ),
            ),
        ),
        Row(
            "What happened?",
            (
                graph(
                    "Runs ended in 5 minutes",
                    "By agent. None at all, with open runs above: they do not end.",
                    Query(f"agent:loopwatch_runs:increase5m{{{SCOPE}}}", "{{agent}}"),
                    stacked=True,
                ),
                graph(
                    "Loops in 10 minutes",
                    "Runs that looped, by agent and tool. A tool that loops in every run is broken: "
                    "look at its results.",
                    Query(f"agent_tool:loopwatch_loops_detected:increase10m{{{SCOPE}}}", "{{agent}} {{tool}}"),
                    limits=("loops_per_tool",),
                    empty="no loops",
                    trace=True,
                ),
                table(
                    "Alerts that fire",
                    "By alert and agent. Read the runbook of the alert before its dashboard.",
                    f"sum by (alertname, severity, agent, tool, model) ({FIRING})",
                    "Instances",
                    empty="no alerts",
                ),
            ),
        ),
    ),
    ("agent",),
)
