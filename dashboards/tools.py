"""Tools & loops: which tool loops, in which way, and whether hints help."""

from __future__ import annotations

from dashboards.panels import SCOPE, TOOLS, Query, Row, born, dashboard, graph, stat, table, zero
from otel_loopwatch import semconv

_CALLS = f"{semconv.TOOL_CALLS.prometheus}{{{TOOLS}}}"
_REPEATS = f"{semconv.TOOL_REPEATS.prometheus}{{{TOOLS}}}"

DASHBOARD = dashboard(
    "tools",
    "Tools & loops",
    "Which tool loops, and who stops it. A tool that always answers the same makes a model ask again: "
    "mend the tool first.",
    (
        Row(
            "Now",
            (
                stat(
                    "Loops of the worst tool",
                    "Runs of 10 minutes in which it looped. Past the line its alert fires.",
                    f"max(agent_tool:loopwatch_loops_detected:increase10m{{{TOOLS}}})",
                    limits=("loops_per_tool",),
                    empty="no loops",
                ),
                stat(
                    "Loops that nobody stops",
                    "Of 10 minutes, in observe mode, of the worst agent. Past the line set mode: enforce.",
                    zero(
                        "max(sum by (job, agent)"
                        f' (agent_tool_action:loopwatch_loops_detected:increase10m{{{TOOLS}, action="observe"}}))'
                    ),
                    limits=("unstopped_loops",),
                ),
                stat(
                    "Hints ignored, worst tool",
                    "Of 30 minutes. Past the line the model does not heed the hint: say more in it, or abort at once.",
                    zero(f"max(agent_tool:loopwatch_hints_ignored:increase30m{{{TOOLS}}})"),
                    limits=("hints_ignored",),
                ),
                stat(
                    "Repeated calls",
                    "Share of the calls of the time range that their run had made before. "
                    "A poll has many by right: kind: poll.",
                    f"sum(increase({_REPEATS}[$__range])) / (sum(increase({_CALLS}[$__range])) > 0)",
                    "percentunit",
                    empty="no calls",
                ),
            ),
        ),
        Row(
            "When did it begin?",
            (
                graph(
                    "Loops by tool",
                    "Runs of 10 minutes that looped. Begins with a deploy (blue): the tool or the prompt changed.",
                    Query(f"agent_tool:loopwatch_loops_detected:increase10m{{{TOOLS}}}", "{{agent}} {{tool}}"),
                    limits=("loops_per_tool",),
                    empty="no loops",
                    trace=True,
                ),
                graph(
                    "Loops by action",
                    "What the guard did. observe stops nothing; hint that is followed by abort did not help.",
                    Query(
                        f"sum by (action) (agent_tool_action:loopwatch_loops_detected:increase10m{{{TOOLS}}})",
                        "{{action}}",
                    ),
                    empty="no loops",
                ),
            ),
        ),
        Row(
            "Which, and how often?",
            (
                table(
                    "Loops of the time range",
                    "The first row is the tool to mend. The trace of one of its runs shows what the tool answered.",
                    f"sum by (agent, tool, kind, action) ({born(semconv.LOOPS_DETECTED, TOOLS)}) > 0",
                    "Loops",
                    empty="no loops",
                ),
                table(
                    "Calls of the time range",
                    "Many errors: the model retries what fails. Many hinted or refused: limits too tight, or a loop.",
                    f"sum by (agent, tool, outcome) ({born(semconv.TOOL_CALLS, TOOLS)}) > 0",
                    "Calls",
                    empty="no calls",
                ),
            ),
        ),
        Row(
            "Do models ask again?",
            (
                graph(
                    "Repeated calls by tool",
                    "Calls a second that their run had made before. Rising without loops: "
                    "raise max_repeats only for polls.",
                    Query(
                        f"sum by (agent, tool) (rate({_REPEATS}[$__rate_interval]))",
                        "{{agent}} {{tool}}",
                    ),
                    unit="cps",
                    empty="no repeats",
                    trace=True,
                ),
                graph(
                    "Hints ignored",
                    "Of 30 minutes. Past the line the same call came again after its hint: "
                    "say in it what to do instead.",
                    Query(zero(f"agent_tool:loopwatch_hints_ignored:increase30m{{{TOOLS}}}"), "{{agent}} {{tool}}"),
                    limits=("hints_ignored",),
                ),
                graph(
                    "Tool calls against runs",
                    "Of 30 minutes by agent. Runs without any calls: the decorators were lost.",
                    Query(f"agent:loopwatch_tool_calls:increase30m{{{SCOPE}}}", "{{agent}} calls"),
                    Query(f"agent:loopwatch_runs:increase30m{{{SCOPE}}}", "{{agent}} runs"),
                    limits=("vanished_min_runs",),
                ),
            ),
        ),
    ),
    ("agent", "tool"),
)
