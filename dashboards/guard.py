"""Guard health: does the guard itself see everything, and is it heard."""

from __future__ import annotations

from dashboards.panels import JOBS, Query, Row, born, dashboard, graph, stat, table, zero
from otel_loopwatch import semconv

_BUILD = f"{semconv.BUILD_INFO.prometheus}{{{JOBS}}}"
_AGE = f"time() - max by (job) (last_over_time({semconv.HEARTBEAT.prometheus}{{{JOBS}}}[1h]))"
_UNTRACKED = f"sum by (job) ({born(semconv.UNTRACKED_TOOL_CALLS, JOBS, '30m')})"
_CALLS = f"sum by (job) (agent:loopwatch_tool_calls:increase30m{{{JOBS}}})"


def _faults(title: str, description: str, metric: semconv.Metric, *, by: str, window: str, limit: str) -> object:
    grown = f"sum by ({by}) ({born(metric, JOBS, window)})" if by else f"sum({born(metric, JOBS, window)})"
    return graph(
        title, description, Query(zero(grown), f"{{{{{by}}}}}" if by else "all"), limits=(limit,), empty="no guard"
    )


DASHBOARD = dashboard(
    "guard",
    "Guard health",
    "The guard fails open: what is wrong here is not protected meanwhile. "
    "All lines of the last two rows should be at 0.",
    (
        Row(
            "Is it there?",
            (
                stat(
                    "Processes guarded",
                    "Instances that report. Fewer than you run: the others are not guarded, or not heard.",
                    f"count({_BUILD})",
                    empty="no guard",
                ),
                stat(
                    "Age of the last sign",
                    "Of the job that was silent for longest. Past the line it is dead, or its exporter is.",
                    f"max({_AGE})",
                    "s",
                    limits=("heartbeat_age",),
                    empty="no guard",
                ),
                stat(
                    "Tools decorated",
                    "Fewest of a process. 0, or fewer than in the code: decorators were lost.",
                    f"min({semconv.TOOLS_REGISTERED.prometheus}{{{JOBS}}})",
                    empty="no guard",
                ),
                stat(
                    "Calls outside of a run",
                    "Highest share of a job, of 30 minutes. "
                    "Past the line open watch_run around the agent, or use bind.",
                    f"max({_UNTRACKED} / ({_CALLS} > 0)) or on () vector(0)",
                    "percentunit",
                    limits=("untracked_share",),
                ),
            ),
        ),
        Row(
            "Which version, since when?",
            (
                table(
                    "Versions and modes",
                    "Processes by job. mode observe stops nothing; two versions for long: "
                    "a deploy that did not finish.",
                    f"count by (job, version, mode) ({_BUILD})",
                    "Processes",
                    empty="no guard",
                ),
                graph(
                    "Age of the last sign by job",
                    "A line that rises at 45 degrees: nothing is heard of the job any more.",
                    Query(_AGE, "{{job}}"),
                    unit="s",
                    limits=("heartbeat_age",),
                    empty="no guard",
                ),
                graph(
                    "Calls outside of a run by job",
                    "Calls of 30 minutes that nobody judged. More than the line: a code path has lost its run.",
                    Query(zero(_UNTRACKED), "{{job}}"),
                    limits=("untracked_min_calls",),
                    empty="no guard",
                ),
            ),
        ),
        Row(
            "Does it fail?",
            (
                _faults(
                    "Faults of the guard",
                    "Of 10 minutes, by stage. Each call of them was let through unjudged: "
                    "the log of otel_loopwatch says why.",
                    semconv.GUARD_ERRORS,
                    by="stage",
                    window="10m",
                    limit="guard_errors",
                ),
                _faults(
                    "Batches that exporters lost",
                    "Of 10 minutes, by signal. The collector is away or refuses: alerts come late or never.",
                    semconv.EXPORT_ERRORS,
                    by="signal",
                    window="10m",
                    limit="export_errors",
                ),
                _faults(
                    "Spans forgotten",
                    "Of 30 minutes. Somebody starts spans and never ends them.",
                    semconv.SPANS_EVICTED,
                    by="",
                    window="30m",
                    limit="spans_evicted",
                ),
            ),
        ),
        Row(
            "Is it blind?",
            (
                _faults(
                    "Label sets folded",
                    "Of 30 minutes, by metric. Names of agents or tools are made up: give them fixed names.",
                    semconv.SERIES_FOLDED,
                    by="metric",
                    window="30m",
                    limit="series_folded",
                ),
                _faults(
                    "Model calls of unknown price",
                    "Of an hour, by model. No budget and no alert sees this money: price the model in the policy.",
                    semconv.USAGE_UNPRICED,
                    by="model",
                    window="1h",
                    limit="usage_unpriced",
                ),
                _faults(
                    "Model calls without usage",
                    "Of an hour, by model. Switch usage on for streams.",
                    semconv.USAGE_MISSING,
                    by="model",
                    window="1h",
                    limit="usage_missing",
                ),
            ),
        ),
    ),
    (),
)
