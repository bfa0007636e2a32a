"""How libraries that make spans of agents name what they show. Data alone; :mod:`otel_loopwatch.foreign` reads by it.

Measured on pydantic-ai, the official GenAI instrumentations (LangChain, OpenAI Agents, OpenAI, Google GenAI),
OpenInference (LangChain, OpenAI Agents, decorators), OpenLLMetry, Google ADK, Microsoft Agent Framework, Strands, the
MCP SDK, FastMCP and logfire; tests/libraries runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_loopwatch import semconv

if TYPE_CHECKING:
    from otel_loopwatch.spans import Kind

__all__ = [
    "AGENT_NAME",
    "ARGUMENTS",
    "BY_CALLBACK",
    "CALL_ID",
    "CONVERSATION",
    "COST",
    "ENVELOPES",
    "EVENT_ARGUMENTS",
    "EVENT_RESULT",
    "KINDS",
    "MODEL",
    "NAMINGS",
    "NOT_SHOWN",
    "NO_CALL_IDS",
    "NO_MODELS",
    "NO_TOOLS",
    "PROVIDER",
    "REDACTED",
    "RESULT",
    "TOKENS",
    "TOOL_NAME",
    "TRANSPORTS",
    "Naming",
    "Tokens",
]

# --- what a span is ---------------------------------------------------------------------------------------------------

_OPERATIONS: Final[dict[str, Kind]] = {
    semconv.OPERATION_EXECUTE_TOOL: "tool",
    **dict.fromkeys(semconv.MODEL_OPERATIONS, "model"),
    semconv.OPERATION_INVOKE_AGENT: "agent",
    semconv.OPERATION_INVOKE_WORKFLOW: "agent",
}

KINDS: Final[dict[str, dict[str, Kind]]] = {
    semconv.GEN_AI_OPERATION_NAME: _OPERATIONS,
    semconv.OPENINFERENCE_SPAN_KIND: {"TOOL": "tool", "LLM": "model", "AGENT": "agent"},
    semconv.TRACELOOP_SPAN_KIND: {"tool": "tool", "agent": "agent", "workflow": "agent"},
    semconv.MCP_METHOD_NAME: {semconv.MCP_TOOLS_CALL: "tool"},
    semconv.LLM_REQUEST_TYPE: {"chat": "model", "completion": "model"},
}
"""Attribute -> value -> what the span is."""


class Naming(NamedTuple):
    """What the name of a span says of it, where its attributes come at its end only.

    Attributes:
        scope: The instrumentation scope whose spans are meant; "" is any.
        prefix: How the name begins.
        suffix: How it ends; what is between is the name of the tool, the agent or the model.
        kind: What the span is.
    """

    scope: str
    prefix: str
    suffix: str
    kind: Kind


NAMINGS: Final = (
    # The conventions; what other software could name so by chance is looked for in the scopes of agent libraries only.
    Naming("", "execute_tool ", "", "tool"),
    Naming("", "invoke_agent ", "", "agent"),
    Naming("", "invoke_workflow ", "", "agent"),
    Naming("gcp.vertex.agent", "generate_content ", "", "model"),
    Naming("agent_framework", "chat ", "", "model"),
    Naming("strands.telemetry.tracer", "chat", "", "model"),
    Naming("mcp-python-sdk", "MCP send tools/call ", "", "tool"),
    Naming("fastmcp", "tools/call", "", "tool"),
    Naming("fastmcp", "delegate ", "", "tool"),
    Naming("traceloop.tracer", "", ".tool", "tool"),
    Naming("traceloop.tracer", "", ".agent", "agent"),
    Naming("traceloop.tracer", "", ".workflow", "agent"),
)

BY_CALLBACK: Final = frozenset({"openinference.instrumentation.langchain"})
"""Scopes whose spans are never current and say nothing at their start but a name: that of the agent (of a local root),
the tool or the model that they show."""

TRANSPORTS: Final = frozenset({"fastmcp", "mcp-python-sdk"})
"""Scopes whose tool spans show how a call travels: client, server, and servers mounted in it, each by its own name."""

NO_CALL_IDS: Final = frozenset({"", "<not specified>"})
"""What stands in the place of a call's id and is none."""

NO_TOOLS: Final = frozenset({"(merged tools)"})
"""Names under which a library sums up the calls of a turn in one more tool span (Google ADK)."""

ENVELOPES: Final = ('"tool_call_id"', '"response"')
"""What is found in a result around which a framework has put a message with an id (LangChain, Google ADK)."""

# --- what it shows: the names that carry each fact, in order ---------------------------------------------------------

TOOL_NAME: Final = (semconv.GEN_AI_TOOL_NAME, semconv.OPENINFERENCE_TOOL_NAME, semconv.TRACELOOP_ENTITY_NAME)
AGENT_NAME: Final = (
    semconv.GEN_AI_AGENT_NAME,
    semconv.GEN_AI_WORKFLOW_NAME,
    semconv.OPENINFERENCE_AGENT_NAME,
    semconv.TRACELOOP_ENTITY_NAME,
)
ARGUMENTS: Final = (
    semconv.GEN_AI_TOOL_CALL_ARGUMENTS,
    semconv.OPENINFERENCE_INPUT,
    semconv.TRACELOOP_INPUT,
    semconv.ADK_TOOL_CALL_ARGS,
)
RESULT: Final = (
    semconv.GEN_AI_TOOL_CALL_RESULT,
    semconv.OPENINFERENCE_OUTPUT,
    semconv.TRACELOOP_OUTPUT,
    semconv.ADK_TOOL_RESPONSE,
)
NOT_SHOWN: Final = {semconv.ADK_TOOL_RESPONSE: "{}"}
"""Attributes that have this value, which they have never else, where the user lets nothing be recorded."""
CALL_ID: Final = (semconv.GEN_AI_TOOL_CALL_ID, semconv.OPENINFERENCE_TOOL_CALL_ID)
CONVERSATION: Final = (semconv.GEN_AI_CONVERSATION_ID, semconv.SESSION_ID, semconv.TRACELOOP_SESSION_ID)
MODEL: Final = (
    semconv.GEN_AI_RESPONSE_MODEL,
    semconv.GEN_AI_REQUEST_MODEL,
    semconv.OPENINFERENCE_MODEL,
    semconv.TRACELOOP_MODEL_NAME,
)
NO_MODELS: Final = frozenset({"", "unknown"})
"""What stands in the place of a model's name and is none."""
PROVIDER: Final = (
    semconv.GEN_AI_PROVIDER_NAME,
    semconv.GEN_AI_SYSTEM,
    semconv.OPENINFERENCE_PROVIDER,
    semconv.OPENINFERENCE_SYSTEM,
)
COST: Final = (
    semconv.OPERATION_COST,
    semconv.GEN_AI_USAGE_COST_AMOUNT,
    semconv.OPENINFERENCE_COST,
    semconv.GEN_AI_USAGE_COST,
)
EVENT_ARGUMENTS: Final = {semconv.GEN_AI_TOOL_MESSAGE_EVENT: semconv.EVENT_CONTENT}
EVENT_RESULT: Final = {semconv.GEN_AI_CHOICE_EVENT: semconv.EVENT_MESSAGE}


class Tokens(NamedTuple):
    """The names by which one family of conventions says what a model call used; of each, the newest first."""

    input: tuple[str, ...]
    output: tuple[str, ...]
    cache_read: tuple[str, ...]
    cache_write: tuple[str, ...]
    reasoning: tuple[str, ...]


TOKENS: Final = (
    Tokens(
        input=(semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_PROMPT_TOKENS),
        output=(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, semconv.GEN_AI_USAGE_COMPLETION_TOKENS),
        cache_read=(
            semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
            semconv.GEN_AI_USAGE_CACHE_READ_OLD,
            semconv.GEN_AI_USAGE_CACHE_READ_DETAIL,
        ),
        cache_write=(
            semconv.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS,
            semconv.GEN_AI_USAGE_CACHE_CREATION,
            semconv.GEN_AI_USAGE_CACHE_WRITE_OLD,
            semconv.GEN_AI_USAGE_CACHE_CREATION_OLD,
            semconv.GEN_AI_USAGE_CACHE_WRITE_DETAIL,
        ),
        reasoning=(
            semconv.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS,
            semconv.GEN_AI_USAGE_REASONING_OLD,
            semconv.GEN_AI_USAGE_REASONING_DETAIL,
        ),
    ),
    Tokens(
        input=(semconv.OPENINFERENCE_PROMPT_TOKENS,),
        output=(semconv.OPENINFERENCE_COMPLETION_TOKENS,),
        cache_read=(semconv.OPENINFERENCE_CACHE_READ,),
        cache_write=(semconv.OPENINFERENCE_CACHE_WRITE,),
        reasoning=(semconv.OPENINFERENCE_REASONING,),
    ),
)
"""The families, in order; a span is read by the first one of which it has a number."""

REDACTED: Final = ("__REDACTED__", "[Scrubbed due to")
"""What stands in a value from which OpenInference or logfire have taken something out."""
