"""Every attribute, event and metric name, with its unit, its labels and its buckets, once.

Names of the OpenTelemetry GenAI conventions are written out here rather than imported: the Python package marks all of
them as moved, and the new repository has no release yet.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

# --- spans: attributes of the GenAI conventions ---
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_WORKFLOW_NAME: Final = "gen_ai.workflow.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_USAGE_COST_AMOUNT: Final = "gen_ai.usage.cost.amount"
GEN_AI_USAGE_COST_CURRENCY: Final = "gen_ai.usage.cost.currency"
MCP_METHOD_NAME: Final = "mcp.method.name"
ERROR_TYPE: Final = "error.type"
EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
OPERATION_INVOKE_WORKFLOW: Final = "invoke_workflow"
MODEL_OPERATIONS: Final = frozenset({"chat", "generate_content", "text_completion"})
MCP_TOOLS_CALL: Final = "tools/call"

# --- spans: older names of the same conventions, and those of single libraries that are still seen ---
GEN_AI_SYSTEM: Final = "gen_ai.system"
GEN_AI_USAGE_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
GEN_AI_USAGE_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
GEN_AI_USAGE_CACHE_READ_OLD: Final = "gen_ai.usage.cache_read_input_tokens"
GEN_AI_USAGE_CACHE_READ_DETAIL: Final = "gen_ai.usage.details.cache_read_tokens"
GEN_AI_USAGE_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"
GEN_AI_USAGE_CACHE_CREATION_OLD: Final = "gen_ai.usage.cache_creation_input_tokens"
GEN_AI_USAGE_CACHE_WRITE_OLD: Final = "gen_ai.usage.cache_write_input_tokens"
GEN_AI_USAGE_CACHE_WRITE_DETAIL: Final = "gen_ai.usage.details.cache_write_tokens"
GEN_AI_USAGE_REASONING_OLD: Final = "gen_ai.usage.reasoning_tokens"
GEN_AI_USAGE_REASONING_DETAIL: Final = "gen_ai.usage.details.reasoning_tokens"
GEN_AI_USAGE_COST: Final = "gen_ai.usage.cost"
GEN_AI_TOOL_STATUS: Final = "gen_ai.tool.status"
GEN_AI_TOOL_MESSAGE_EVENT: Final = "gen_ai.tool.message"
GEN_AI_CHOICE_EVENT: Final = "gen_ai.choice"
EVENT_CONTENT: Final = "content"
EVENT_MESSAGE: Final = "message"
EVENT_ID: Final = "id"
OPERATION_COST: Final = "operation.cost"

ADK_TOOL_CALL_ARGS: Final = "gcp.vertex.agent.tool_call_args"
ADK_TOOL_RESPONSE: Final = "gcp.vertex.agent.tool_response"

# --- spans: OpenInference ---
OPENINFERENCE_SPAN_KIND: Final = "openinference.span.kind"
OPENINFERENCE_TOOL_NAME: Final = "tool.name"
OPENINFERENCE_TOOL_CALL_ID: Final = "tool_call.id"
OPENINFERENCE_AGENT_NAME: Final = "agent.name"
OPENINFERENCE_INPUT: Final = "input.value"
OPENINFERENCE_OUTPUT: Final = "output.value"
OPENINFERENCE_MODEL: Final = "llm.model_name"
OPENINFERENCE_PROVIDER: Final = "llm.provider"
OPENINFERENCE_SYSTEM: Final = "llm.system"
OPENINFERENCE_PROMPT_TOKENS: Final = "llm.token_count.prompt"
OPENINFERENCE_COMPLETION_TOKENS: Final = "llm.token_count.completion"
OPENINFERENCE_CACHE_READ: Final = "llm.token_count.prompt_details.cache_read"
OPENINFERENCE_CACHE_WRITE: Final = "llm.token_count.prompt_details.cache_write"
OPENINFERENCE_REASONING: Final = "llm.token_count.completion_details.reasoning"
OPENINFERENCE_COST: Final = "llm.cost.total"
SESSION_ID: Final = "session.id"

# --- spans: OpenLLMetry (traceloop) ---
TRACELOOP_SPAN_KIND: Final = "traceloop.span.kind"
TRACELOOP_ENTITY_NAME: Final = "traceloop.entity.name"
TRACELOOP_INPUT: Final = "traceloop.entity.input"
TRACELOOP_OUTPUT: Final = "traceloop.entity.output"
TRACELOOP_SESSION_ID: Final = "traceloop.association.properties.session_id"
TRACELOOP_MODEL_NAME: Final = "traceloop.association.properties.ls_model_name"
LLM_REQUEST_TYPE: Final = "llm.request.type"

# --- spans: what the conventions lack ---
RUN_ID: Final = "loopwatch.run.id"
RUN_PARENT_ID: Final = "loopwatch.run.parent_id"
TOOL_CALL_ARGUMENTS_HASH: Final = "loopwatch.tool.call.arguments.hash"
TOOL_CALL_REPEAT_COUNT: Final = "loopwatch.tool.call.repeat.count"
TOOL_CALL_ABANDONED: Final = "loopwatch.tool.call.abandoned"
VERDICT_ACTION: Final = "loopwatch.verdict.action"
LOOP_KIND: Final = "loopwatch.loop.kind"
LOOP_REPEATS: Final = "loopwatch.loop.repeats"
LOOP_MEMBERS: Final = "loopwatch.loop.members"
STOP_REASON: Final = "loopwatch.stop.reason"
BUDGET_NAME: Final = "loopwatch.budget.name"
BUDGET_LIMIT_KEY: Final = "loopwatch.budget.{name}.limit"
BUDGET_USED_KEY: Final = "loopwatch.budget.{name}.used"

EVENT_LOOP_DETECTED: Final = "loopwatch.loop.detected"
EVENT_RUN_ABORTED: Final = "loopwatch.run.aborted"
EVENT_BUDGET_WARNING: Final = "loopwatch.budget.warning"

# --- metrics ---
Instrument = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One instrument.

    Attributes:
        name: OpenTelemetry name.
        unit: UCUM; in braces wherever it must not become a suffix in Prometheus.
        kind: Which instrument.
        labels: Every label it has.
        description: For the instrument and for ``HELP``.
        buckets: Upper bounds of a histogram.
    """

    name: str
    unit: str
    kind: Instrument
    labels: tuple[str, ...]
    description: str
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, without ``_bucket``, ``_sum`` and ``_count``."""
        base = self.name.replace(".", "_")
        if self.unit == "s":
            base += "_seconds"
        return base + ("_total" if self.kind == "counter" else "")


COUNT_BUCKETS: Final = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
USD_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 50.0, 100.0)
TOKEN_BUCKETS: Final = (100.0, 1e3, 5e3, 1e4, 2.5e4, 5e4, 1e5, 1.5e5, 2.5e5, 5e5, 1e6, 5e6, 1e7)
SECOND_BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)

RUN_TOOL_CALLS: Final = Metric(
    "loopwatch.run.tool_calls", "{call}", "histogram", ("agent",), "Tool calls of a run, at its end.", COUNT_BUCKETS
)
RUN_SPEND_USD: Final = Metric(
    "loopwatch.run.spend_usd", "{usd}", "histogram", ("agent",), "USD spent by a run, at its end.", USD_BUCKETS
)
RUN_TOKENS: Final = Metric(
    "loopwatch.run.tokens", "{token}", "histogram", ("agent",), "Tokens used by a run, at its end.", TOKEN_BUCKETS
)
RUN_DURATION: Final = Metric(
    "loopwatch.run.duration", "s", "histogram", ("agent",), "Duration of a run, at its end.", SECOND_BUCKETS
)
RUNS: Final = Metric("loopwatch.runs", "{run}", "counter", ("agent", "stop_reason"), "Runs ended, by stop reason.")
RUNS_ACTIVE: Final = Metric("loopwatch.runs.active", "{run}", "gauge", ("agent",), "Runs that are open now.")
RUN_TOOL_CALLS_MAX: Final = Metric(
    "loopwatch.run.tool_calls.max", "{call}", "gauge", ("agent",), "Most tool calls of a run that is open now."
)
RUN_SPEND_USD_MAX: Final = Metric(
    "loopwatch.run.spend_usd.max", "{usd}", "gauge", ("agent",), "Most USD spent by a run that is open now."
)
RUN_AGE_MAX: Final = Metric("loopwatch.run.age.max", "s", "gauge", ("agent",), "Age of the oldest open run.")
RUN_IDLE_MAX: Final = Metric(
    "loopwatch.run.idle.max", "s", "gauge", ("agent",), "Longest time since a call, a step or a charge of an open run."
)
TOOL_CALLS: Final = Metric(
    "loopwatch.tool.calls", "{call}", "counter", ("agent", "tool", "outcome"), "Tool calls, by outcome."
)
TOOL_REPEATS: Final = Metric(
    "loopwatch.tool.repeats", "{call}", "counter", ("agent", "tool"), "Tool calls their run had made before."
)
LOOPS_DETECTED: Final = Metric(
    "loopwatch.loops.detected", "{loop}", "counter", ("agent", "tool", "kind", "action"), "Findings, each counted once."
)
HINTS_IGNORED: Final = Metric(
    "loopwatch.hints.ignored", "{hint}", "counter", ("agent", "tool"), "Hints after which the model did the same again."
)
SPEND_USD: Final = Metric("loopwatch.spend_usd", "{usd}", "counter", ("agent", "model"), "USD spent, live.")
TOKENS: Final = Metric(
    "loopwatch.tokens",
    "{token}",
    "counter",
    ("agent", "model", "type"),
    "Tokens used, live; those of type cached_input are a part of those of type input.",
)
USAGE_MISSING: Final = Metric(
    "loopwatch.usage.missing", "{call}", "counter", ("model",), "Model calls that reported no usage: spend is blind."
)
USAGE_UNPRICED: Final = Metric(
    "loopwatch.usage.unpriced", "{call}", "counter", ("model",), "Model calls of unknown price: spend is blind."
)
USAGE_DUPLICATE: Final = Metric(
    "loopwatch.usage.duplicate", "{call}", "counter", ("source",), "Reports of usage that another source had made."
)
BUDGET_USED: Final = Metric(
    "loopwatch.budget.used", "", "gauge", ("agent", "budget"), "Largest share of a limit used by an open run."
)
TOOLS_REGISTERED: Final = Metric("loopwatch.tools.registered", "{tool}", "gauge", (), "Tools that are decorated.")
GUARD_ERRORS: Final = Metric(
    "loopwatch.guard.errors", "{error}", "counter", ("stage",), "Faults of the guard itself or of a callback."
)
EXPORT_ERRORS: Final = Metric(
    "loopwatch.export.errors", "{error}", "counter", ("signal",), "Batches that an exporter of configure() lost."
)
SERIES_FOLDED: Final = Metric(
    "loopwatch.series.folded", "{series}", "counter", ("metric",), "Label sets that went into __other__."
)
UNTRACKED_TOOL_CALLS: Final = Metric(
    "loopwatch.untracked.tool_calls", "{call}", "counter", ("agent",), "Decorated calls outside any run: not guarded."
)
SPANS_EVICTED: Final = Metric(
    "loopwatch.spans.evicted", "{span}", "counter", (), "Open spans and runs forgotten because too many were open."
)
BUILD_INFO: Final = Metric("loopwatch.build.info", "", "gauge", ("version", "mode"), "Always 1.")
HEARTBEAT: Final = Metric("loopwatch.heartbeat", "s", "gauge", (), "Unix time of the last collection.")

METRICS: Final[tuple[Metric, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric, in the order above."""

OUTCOMES: Final = ("ok", "error", "hinted", "refused", "cached")
SIGNALS: Final = ("traces", "metrics")
OTHER: Final = "__other__"
UNKNOWN_AGENT: Final = "unknown"
MAX_SERIES: Final = 1500
"""Series an instrument may have; the SDK's own limit is 2,000."""
