"""Runs & aborts: which runs were stopped and why, and which do not end."""

from __future__ import annotations

from dashboards.panels import SCOPE, Query, Row, born, buckets, dashboard, graph, heatmap, stat, table
from otel_loopwatch import semconv

_AGE = f"max by (job, agent) ({semconv.RUN_AGE_MAX.prometheus}{{{SCOPE}}})"
_IDLE = f"max by (job, agent) ({semconv.RUN_IDLE_MAX.prometheus}{{{SCOPE}}})"
_CALLS = f"max by (job, agent) ({semconv.RUN_TOOL_CALLS_MAX.prometheus}{{{SCOPE}}})"

DASHBOARD = dashboard(
    "runs",
    "Runs & aborts",
    "Why runs were stopped, and which runs do not end. What is open is in gauges: "
    "a run that never ends is in no histogram.",
    (
        Row(
            "Now",
            (
                stat(
                    "Aborted, highest share",
                    "Of the runs of 15 minutes. Past the line: limits too tight, or an agent that is ill.",
                    f"clamp_max(max(agent:loopwatch_runs_aborted:ratio_increase15m{{{SCOPE}}}), 1)",
                    "percentunit",
                    limits=("abort_ratio",),
                ),
                stat(
                    "Age of the oldest open run",
                    "Yellow: stuck? Red: endless. Find it by its agent in the traces, abort it.",
                    f"max({_AGE})",
                    "s",
                    limits=("run_age", "run_age_hours"),
                ),
                stat(
                    "Longest without progress",
                    "No call, step or charge of an open run for so long. Past the line a tool or a model hangs: "
                    "time limits.",
                    f"max({_IDLE})",
                    "s",
                    limits=("run_idle",),
                ),
                stat(
                    "Calls of the longest open run",
                    "Past the line it goes on and on: give the agent max_tool_calls.",
                    f"max({_CALLS})",
                    limits=("open_run_tool_calls",),
                ),
                stat(
                    "Highest budget used",
                    "Share of a limit. Past the line the run is about to be aborted.",
                    f"max({semconv.BUDGET_USED.prometheus}{{{SCOPE}}})",
                    "percentunit",
                    limits=("budget_used",),
                    empty="no budget",
                ),
                stat(
                    "Runs open",
                    "Growing without end: runs do not finish.",
                    f"sum({semconv.RUNS_ACTIVE.prometheus}{{{SCOPE}}})",
                ),
            ),
        ),
        Row(
            "Why were they stopped?",
            (
                graph(
                    "Runs by stop reason",
                    "Runs of 15 minutes. loop_detected: Tools & loops. A budget: "
                    "is it too tight, or the agent too busy?",
                    Query(
                        f"sum by (stop_reason) ({born(semconv.RUNS, SCOPE, '15m')}) > 0",
                        "{{stop_reason}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Share of aborted runs",
                    "Of 15 minutes by agent. One agent: its prompt or tools. All: a tool or model that they share.",
                    Query(f"clamp_max(agent:loopwatch_runs_aborted:ratio_increase15m{{{SCOPE}}}, 1)", "{{agent}}"),
                    unit="percentunit",
                    limits=("abort_ratio",),
                    trace=True,
                ),
                table(
                    "Runs of the time range",
                    "By agent and stop reason. Traces of the agent show each run with its reason.",
                    f"sum by (agent, stop_reason) ({born(semconv.RUNS, SCOPE)}) > 0",
                    "Runs",
                ),
            ),
        ),
        Row(
            "Which do not end?",
            (
                graph(
                    "Age of open runs",
                    "Oldest by agent. A line that rises at 45 degrees is one run: find it in the traces, abort it.",
                    Query(_AGE, "{{agent}}"),
                    unit="s",
                    limits=("run_age", "run_age_hours"),
                    trace=True,
                ),
                graph(
                    "Open runs without progress",
                    "Longest by agent. A rising line hangs in a tool or a model: give it a time limit.",
                    Query(_IDLE, "{{agent}}"),
                    unit="s",
                    limits=("run_idle",),
                    trace=True,
                ),
                graph(
                    "Calls of open runs",
                    "Most by agent. Rising while the agent is idle elsewhere: a loop whose arguments differ each time.",
                    Query(_CALLS, "{{agent}}"),
                    limits=("open_run_tool_calls",),
                    trace=True,
                ),
            ),
        ),
        Row(
            "How near is the limit?",
            (
                graph(
                    "Budget used by open runs",
                    "Largest share by agent and budget. Often past the line, and the work is right: raise the budget.",
                    Query(
                        f"max by (job, agent, budget) ({semconv.BUDGET_USED.prometheus}{{{SCOPE}}})",
                        "{{agent}} {{budget}}",
                    ),
                    unit="percentunit",
                    limits=("budget_used",),
                    empty="no budget",
                    trace=True,
                ),
                graph(
                    "Open runs",
                    "By agent. Growing without end: runs are begun and never ended.",
                    Query(f"sum by (agent) ({semconv.RUNS_ACTIVE.prometheus}{{{SCOPE}}})", "{{agent}}"),
                ),
                heatmap(
                    "Duration of a run, spread",
                    "A second band above the first: some runs take far longer. Follow an exemplar to one.",
                    buckets(semconv.RUN_DURATION, SCOPE),
                    "s",
                ),
            ),
        ),
    ),
    ("agent",),
)
