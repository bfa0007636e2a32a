"""Policies from YAML, TOML and the environment: the grammar of the file, and errors that name file, line and key.

Imported on first use, by :meth:`otel_loopwatch.policy.Policy.load`: pydantic and PyYAML take longer to import than the
rest of the package.

The typed dictionaries below are the grammar: keys, types, ranges. What a value means is said in
:mod:`otel_loopwatch.policy`, under the same name. ``tools`` has three keys more, defaults for every tool, kept in
``Policy.default_tool``: ``retries``, ``dedupe_window_s`` and ``cache_ttl_s`` (for tools of kind ``read`` only). They
take effect with the gateway, which is not in this release.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Required, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails

# pydantic asks for this one up to Python 3.11.
from typing_extensions import TypedDict, get_type_hints, is_typeddict

from otel_loopwatch.amounts import MAX_COUNT
from otel_loopwatch.calls import ToolKind
from otel_loopwatch.errors import PolicyError
from otel_loopwatch.policy import (
    ENVIRONMENT_VARIABLE,
    NO_RULES,
    PRESETS,
    Budgets,
    LoopAction,
    LoopRules,
    Mode,
    OnUnpriced,
    Policy,
    Retry,
    ToolRules,
)
from otel_loopwatch.policy_syntax import Document, parse, show
from otel_loopwatch.prices import ModelPrice

__all__ = ["from_env", "json_schema", "load", "loads"]

Format = Literal["yaml", "toml"]

MAX_BYTES = 1_000_000
"""A larger file is refused unread. Rules for a hundred tools are about 10 kB."""
_FORMATS: Mapping[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}

Count = Annotated[int, Field(ge=1)]
Period = Annotated[int, Field(ge=2, le=16)]
Status = Annotated[int, Field(ge=100, le=599)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0, lt=MAX_COUNT, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=MAX_COUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]

_closed = with_config(ConfigDict(extra="forbid", strict=True))


@_closed
class BudgetsSection(TypedDict, total=False):
    """Limits of one run. null lifts a limit that the extended preset has."""

    max_steps: Count | None
    max_tool_calls: Count | None
    max_seconds: Positive | None
    max_tokens: Count | None
    max_spend_usd: Limit | None
    max_depth: Count | None
    max_children: Count | None
    warn_at: Share
    on_unpriced: OnUnpriced


@_closed
class LoopsSection(TypedDict, total=False):
    """When repetition is a finding, and what is done about it."""

    max_repeats: Count
    max_rereads: Count
    max_repeats_changing: Count
    max_poll_repeats: Count
    max_error_streak: Count
    max_no_progress: Count
    max_infra_errors: Count
    cycle_period: Period
    cycle_laps: Period
    compare_results: bool
    action: LoopAction
    hints_before_abort: Count
    max_hints: Count


@_closed
class RetriesSection(TypedDict, total=False):
    """How often one call is attempted."""

    max_attempts: Count
    retryable_status: list[Status]


@_closed
class ToolSection(TypedDict, total=False):
    """Rules of one tool."""

    kind: ToolKind
    max_repeats: Count
    max_calls: Count
    action: LoopAction
    ignore_args: list[Name]
    loop_key: list[Name]
    hint: Name
    exempt: bool
    sensitive: bool
    cost_usd: Limit
    idempotent: bool
    cache_ttl_s: Positive
    dedupe_window_s: Positive
    retries: RetriesSection
    timeout_s: Positive
    breaker: bool


@_closed
class ToolsSection(TypedDict, total=False):
    """Rules of tools: of all, of each, and which may be called."""

    cache_ttl_s: Positive
    dedupe_window_s: Positive
    retries: RetriesSection
    default: ToolSection
    per_tool: dict[Name, ToolSection]
    allow: list[Name]
    deny: list[Name]
    on_denied: Literal["raise", "hint"]


@_closed
class PriceSection(TypedDict, total=False):
    """What one model costs, in USD for a million tokens. 0 is a price."""

    input_usd_per_mtok: Required[Rate]
    output_usd_per_mtok: Required[Rate]
    cached_input_usd_per_mtok: Rate
    cache_write_usd_per_mtok: Rate
    reasoning_usd_per_mtok: Rate


@_closed
class PolicySection(TypedDict, total=False):
    """A policy file of otel-loopwatch."""

    extends: Name
    mode: Mode
    budgets: BudgetsSection
    loops: LoopsSection
    tools: ToolsSection
    prices: dict[Name, PriceSection]


_GRAMMAR = TypeAdapter(PolicySection)

_SAYS = {
    "int_type": "must be a whole number, not {input}",
    "float_type": "must be a number, not {input}",
    "finite_number": "must be a finite number, not {input}",
    "greater_than": "must be above {gt}, not {input}",
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than": "must be below {lt}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "bool_type": "must be true or false, not {input}",
    "string_type": "must be text, not {input}",
    "string_too_short": "must not be empty",
    "literal_error": "must be one of {expected}, not {input}",
    "list_type": "must be a list, not {input}",
    "dict_type": "must be a mapping, not {input}",
    "missing": "is missing",
}
_NO_LIMIT = " (leave it out for no limit)"


def load(path: Path) -> Policy:
    """The policy in a file: YAML (``.yaml``, ``.yml``) or TOML (``.toml``), at most 1 MB.

    Raises:
        PolicyError: Names the file, the line and the key, and says what is allowed.
    """
    file = str(path)
    syntax = _FORMATS.get(path.suffix.lower())
    if syntax is None:
        raise PolicyError(f"a policy file ends in {', '.join(_FORMATS)}", file=file)
    try:
        if path.exists() and not path.is_file():
            raise PolicyError("not a file", file=file)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        # ValueError is a NUL in the name.
        raise PolicyError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=file) from error
    if len(raw) > MAX_BYTES:
        raise PolicyError(f"larger than {MAX_BYTES:,} bytes: that is no policy", file=file)
    try:
        # utf-8-sig: editors on Windows put a byte order mark in front.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyError("not UTF-8", file=file, line=raw.count(b"\n", 0, error.start) + 1) from None
    return loads(text, format=syntax, file=file)


def loads(text: str, *, format: Format = "yaml", file: str | None = None) -> Policy:  # noqa: A002 - what it is
    """The policy in *text*.

    Args:
        text: YAML or TOML.
        format: Which of the two.
        file: Named in errors.

    Raises:
        PolicyError: Names the line and the key, and says what is allowed.
    """
    document = parse(text, format, file)
    try:
        said = _GRAMMAR.validate_python(document.data)
    except ValidationError as error:
        raise _first_error(error, document, file) from None
    preset = said.get("extends", "default")
    if preset not in PRESETS:
        raise PolicyError(
            f"no preset {_quote(preset)}{_meant(preset, PRESETS)}: there are {', '.join(sorted(PRESETS))}",
            key="extends",
            file=file,
            line=document.line(("extends",)),
        )
    return _policy(said, PRESETS[preset])


def from_env() -> Policy | None:
    """The policy that ``LOOPWATCH_POLICY`` names, a preset or a file; ``None`` where it is not set or empty.

    A preset wins over a file of the same name: write ``./production`` for the file. A file is read once in a process:
    each run asks for it, and an edit that went wrong must not stop the next one.

    Raises:
        PolicyError: Where it is neither, or the file is not a policy.
    """
    value = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return _named(value) if value else None


@functools.cache
def _named(value: str) -> Policy:
    if value in PRESETS:
        return PRESETS[value]
    path = Path(value)
    if path.suffix.lower() not in _FORMATS:
        raise PolicyError(
            f"must be a preset ({', '.join(sorted(PRESETS))}) or a file that ends in {', '.join(_FORMATS)}, "
            f"not {_quote(value)}{_meant(value, PRESETS)}",
            key=ENVIRONMENT_VARIABLE,
        )
    return load(path)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a policy file, for editors and for checks before a roll-out."""
    schema = _GRAMMAR.json_schema()
    for section, rules in (
        ("BudgetsSection", Budgets),
        ("LoopsSection", LoopRules),
        ("ToolSection", ToolRules),
        ("PriceSection", ModelPrice),
    ):
        properties = schema["$defs"][section]["properties"]
        for name, text in _argument_docs(rules):
            if name in properties:
                properties[name]["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _policy(said: PolicySection, base: Policy) -> Policy:
    tools = said.get("tools", ToolsSection())
    shorthand: dict[str, Any] = {
        key: tools[key] for key in ("cache_ttl_s", "dedupe_window_s", "retries") if key in tools
    }
    per_tool = {
        name: _tool_rules(section).over(base.tools.get(name, NO_RULES))
        for name, section in tools.get("per_tool", {}).items()
    }
    changes: dict[str, Any] = {
        "budgets": replace(base.budgets, **dict[str, Any](said.get("budgets", {}))),
        "loops": replace(base.loops, **said.get("loops", {})),
        "tools": {**base.tools, **per_tool},
        "default_tool": _tool_rules(tools.get("default", {})).over(_tool_rules(shorthand).over(base.default_tool)),
    }
    if "mode" in said:
        changes["mode"] = said["mode"]
    if "prices" in said:
        changes["prices"] = {name: ModelPrice(**dict[str, Any](rates)) for name, rates in said["prices"].items()}
    changes |= {key: tools[key] for key in ("allow", "deny", "on_denied") if key in tools}
    return replace(base, **changes)


def _tool_rules(section: Mapping[str, Any]) -> ToolRules:
    rules: dict[str, Any] = dict(section)
    retries = rules.pop("retries", None)
    if retries is not None:
        statuses = {"statuses": retries["retryable_status"]} if "retryable_status" in retries else {}
        attempts = {"max_attempts": retries["max_attempts"]} if "max_attempts" in retries else {}
        rules["retry"] = Retry(**attempts, **statuses)
    return ToolRules(**rules)


def _first_error(error: ValidationError, document: Document, file: str | None) -> PolicyError:
    """The fault that stands first in the file, and how many there are besides."""

    def place(detail: ErrorDetails) -> int:
        return document.line(_keys(detail)) or 0

    # What is missing stands nowhere, and often is missing because its key is written wrongly.
    details = sorted(error.errors(include_url=False), key=lambda detail: (detail["type"] == "missing", place(detail)))
    detail = details[0]
    message = _unknown_key(detail) if detail["type"] == "extra_forbidden" else _wrong_value(detail)
    if len(details) > 1:
        message += f" [and {len(details) - 1} more]"
    return PolicyError(message, key=show(_keys(detail)), file=file, line=place(detail) or None)


def _keys(detail: ErrorDetails) -> tuple[str, ...]:
    # "[key]" is how pydantic marks a fault of a key itself.
    return tuple(str(part) for part in detail["loc"] if part != "[key]")


def _wrong_value(detail: ErrorDetails) -> str:
    kind = detail["type"]
    # :g, because 1.0 in the grammar is 1 to a reader.
    bounds = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
    }
    facts = {"input": _quote(detail["input"]), **bounds}
    message = _SAYS[kind].format_map(facts) if kind in _SAYS else detail["msg"]
    is_limit = detail["loc"][0] == "budgets" and kind in ("greater_than", "greater_than_equal", "finite_number")
    return message + (_NO_LIMIT if is_limit else "")


def _unknown_key(detail: ErrorDetails) -> str:
    *above, key = detail["loc"]
    section: Any = PolicySection
    for part in above:
        # The key itself, or a name in a mapping of names to sections.
        section = get_type_hints(section)[str(part)] if is_typeddict(section) else get_args(section)[1]
    allowed = list(get_type_hints(section))
    return f"unknown key{_meant(str(key), allowed)}; allowed here: {', '.join(allowed)}"


def _meant(word: str, allowed: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(word, allowed, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _quote(value: object) -> str:
    """*value* for a message. A wrong file may hold anything, so it is not shown at length."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _argument_docs(rules: type) -> Iterator[tuple[str, str]]:
    """(name, description) of each argument in the docstring of *rules*."""
    docs = inspect.getdoc(rules) or ""
    for match in re.finditer(r"^    (\w+): (.+(?:\n {8}.+)*)", docs, re.MULTILINE):
        yield match[1], " ".join(match[2].split())
