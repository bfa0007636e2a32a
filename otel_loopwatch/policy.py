"""What is allowed: budgets, loop rules and per-tool rules, as frozen values. No behaviour, no I/O.

Whose rule wins (field by field, set fields only) is decided here, once: :meth:`Policy.rules_for`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from otel_loopwatch.calls import ToolKind, Usage
from otel_loopwatch.errors import PolicyError
from otel_loopwatch.policy_checks import boolean, names, one_of, positive_int, positive_money, positive_number, table
from otel_loopwatch.prices import ModelPrice

__all__ = ["PRESETS", "Budgets", "LoopRules", "Policy", "Retry", "Rules", "ToolRules", "operators_policy", "policy_of"]

ENVIRONMENT_VARIABLE = "LOOPWATCH_POLICY"

LoopAction = Literal["hint", "abort", "observe"]
Mode = Literal["enforce", "observe"]
OnUnpriced = Literal["warn", "estimate", "stop"]
PriceOf = Callable[[Usage, str | None], Decimal | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of one run and all of its descendants. ``None`` means no limit.

    A counted thing is admitted while ``used + 1 <= limit``; tokens, USD and seconds trip at ``used >= limit``.

    Args:
        max_steps: Model turns.
        max_tool_calls: Tool calls (retries are attempts of one call).
        max_seconds: Wall-clock seconds of a monotonic clock. Ends a hanging *async* tool; after a synchronous one the
            next guarded call is refused.
        max_tokens: Input plus output tokens; cached input counts.
        max_spend_usd: USD, kept as :class:`~decimal.Decimal`.
        max_depth: How deep runs may nest below this one.
        max_children: How many runs may be opened directly below this one.
        warn_at: Share of a limit at which one warning is given, above 0 and at most 1.
        on_unpriced: What is done about a model call whose price nobody knows, where ``max_spend_usd`` is set. In each
            case it is counted, ``spend_complete`` is False, and one warning is logged. ``warn`` charges nothing for it;
            ``estimate`` charges what the nearest model by name costs (a limit that silently does not hold is worse than
            a rough one); ``stop`` aborts the run.

    Raises:
        PolicyError: For zero, negative, NaN, infinite or mistyped limits.
    """

    max_steps: int | None = None
    max_tool_calls: int | None = None
    max_seconds: float | None = None
    max_tokens: int | None = None
    max_spend_usd: Decimal | None = None
    max_depth: int | None = None
    max_children: int | None = None
    warn_at: float = 0.8
    on_unpriced: OnUnpriced = "estimate"

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tool_calls", "max_tokens", "max_depth", "max_children"):
            positive_int(self, name)
        positive_number(self, "max_seconds")
        positive_money(self, "max_spend_usd")
        positive_number(self, "warn_at", optional=False)
        if self.warn_at > 1:
            raise PolicyError(f"must be a share of the limit, at most 1, not {self.warn_at!r}", key="warn_at")
        one_of(self, "on_unpriced", get_args(OnUnpriced))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRules:
    """When repetition becomes a finding, and what is done about it. ``docs/defaults.md`` has the figures behind it.

    Args:
        max_repeats: N identical calls with the same outcome run; call N+1 is acted on.
        max_rereads: The same for a call that changes nothing, succeeded, and has other calls in between: looking
            something up again is normal work. Has no effect below ``max_repeats``, nor where a tool sets a
            ``max_repeats`` of its own.
        max_repeats_changing: The same for identical calls in a row whose outcome changes each time.
        max_poll_repeats: The same for ``kind="poll"`` tools: unchanged answers in a row.
        max_error_streak: Errors in a row, whatever the arguments, with at most two messages in turn.
        max_no_progress: Same outcomes in spite of writes in between, or for ever-new arguments; for errors, the same
            kind, where the messages differ only in what they quote of the call.
        max_infra_errors: Errors of the infrastructure in a row, a fingerprint and a tool.
        cycle_period: Longest cycle looked for, in calls (2 to 16).
        cycle_laps: Laps that run before the next call is acted on (at least 2).
        compare_results: False counts (tool, arguments) alone, as the seeds do: no results, no epochs.
        action: What is done about a finding.
        hints_before_abort: Ignored hints on one subject before the run is aborted.
        max_hints: Hints a run; the next finding aborts.

    Raises:
        PolicyError: For values out of range.
    """

    max_repeats: int = 2
    max_rereads: int = 3
    max_repeats_changing: int = 12
    max_poll_repeats: int = 20
    max_error_streak: int = 4
    max_no_progress: int = 6
    max_infra_errors: int = 8
    cycle_period: int = 6
    cycle_laps: int = 3
    compare_results: bool = True
    action: LoopAction = "hint"
    hints_before_abort: int = 2
    max_hints: int = 10

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.type == "int":
                positive_int(self, item.name, optional=False)
        for name, low, high in (("cycle_period", 2, 16), ("cycle_laps", 2, 16)):
            if not low <= getattr(self, name) <= high:
                raise PolicyError(f"must be from {low} to {high}, not {getattr(self, name)!r}", key=name)
        boolean(self, "compare_results")
        one_of(self, "action", get_args(LoopAction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often one call is attempted.

    Args:
        max_attempts: Attempts in all, the first included.
        statuses: HTTP statuses that are worth another attempt.
    """

    max_attempts: int = 2
    statuses: tuple[int, ...] = (408, 429, 500, 502, 503, 504)

    def __post_init__(self) -> None:
        positive_int(self, "max_attempts", optional=False)
        if not isinstance(self.statuses, Collection):
            raise PolicyError(f"must be a list of HTTP statuses, not {self.statuses!r}", key="statuses")
        statuses = tuple(self.statuses)
        for status in statuses:
            if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
                raise PolicyError(f"must be HTTP statuses from 100 to 599, not {status!r}", key="statuses")
        object.__setattr__(self, "statuses", statuses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """Rules of one tool. ``None`` means: not said here, ask the next in line (see :meth:`Policy.rules_for`).

    From ``idempotent`` on they are for the gateway, which is not in this release: read and checked, without effect.

    Args:
        kind: ``read`` changes nothing, ``write`` does, ``poll`` is asked again until its answer changes.
        max_repeats: As in :class:`LoopRules`; for a poll, the limit of unchanged answers.
        max_calls: Calls of this tool a run, whatever the arguments; the next one aborts with ``tool_budget``.
        action: What is done about a finding on this tool.
        ignore_args: Arguments left out of the hash, as dotted paths (``meta.trace_id``).
        loop_key: Names of the only arguments that are hashed, or a function of the bound arguments (a dict) that
            returns what is hashed.
        hint: What the model is answered instead of the hint text: a value, or a function of the :class:`Verdict`.
            Needed where the tool promises a typed result.
        exempt: True leaves the tool out of loop detection; budgets still hold.
        sensitive: True keeps its arguments out of ``run.tried()``.
        cost_usd: The tool's own price of one call in USD, held before the body runs.
        idempotent: True where running a write twice does no harm.
        cache_ttl_s: Seconds for which a result is served again.
        dedupe_window_s: Seconds within which an identical call is answered with the first result.
        retry: Attempts of one call.
        timeout_s: Seconds after which a call is given up.
        breaker: False switches the tool's circuit breaker off.

    Raises:
        PolicyError: For values out of range.
    """

    kind: ToolKind | None = None
    max_repeats: int | None = None
    max_calls: int | None = None
    action: LoopAction | None = None
    ignore_args: tuple[str, ...] | None = None
    loop_key: tuple[str, ...] | Callable[[dict[str, Any]], Any] | None = None
    hint: Any = None
    exempt: bool | None = None
    sensitive: bool | None = None
    cost_usd: Decimal | None = None
    idempotent: bool | None = None
    cache_ttl_s: float | None = None
    dedupe_window_s: float | None = None
    retry: Retry | None = None
    timeout_s: float | None = None
    breaker: bool | None = None

    def __post_init__(self) -> None:
        one_of(self, "kind", get_args(ToolKind), optional=True)
        for name in ("max_repeats", "max_calls"):
            positive_int(self, name)
        one_of(self, "action", get_args(LoopAction), optional=True)
        names(self, "ignore_args", optional=True)
        if self.loop_key is not None and not callable(self.loop_key):
            names(self, "loop_key")
        for name in ("exempt", "sensitive", "idempotent", "breaker"):
            boolean(self, name, optional=True)
        positive_money(self, "cost_usd")
        for name in ("cache_ttl_s", "dedupe_window_s", "timeout_s"):
            positive_number(self, name)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise PolicyError(f"must be a Retry, not {self.retry!r}", key="retry")

    def over(self, other: ToolRules) -> ToolRules:
        """These rules where they say something, *other*'s where they do not."""
        said = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}
        return replace(other, **said) if said else other


NO_RULES = ToolRules()


class Rules(NamedTuple):
    """The rules that hold for one tool, resolved: what detectors and verdict are given."""

    loops: LoopRules
    tool: ToolRules
    max_repeats: int
    max_poll_repeats: int
    action: LoopAction
    exempt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that is allowed in a run. Immutable: to change it, make another (``dataclasses.replace``).

    Args:
        mode: ``observe`` disarms loops and budgets: everything is reported, nothing is stopped.
        budgets: Limits of the run.
        loops: When repetition is a finding.
        tools: Rules by tool name; they win over what the tool's author wrote at the decorator.
        default_tool: Rules of every tool that says nothing itself.
        allow: Names or patterns (``*``, ``?``) of the only tools that may be called; empty means all.
        deny: Names or patterns of tools that may not be called; wins over ``allow``.
        on_denied: ``raise`` raises ToolDenied, ``hint`` answers the model instead.
        prices: What models cost, by name or pattern (``*``, ``?``, without regard to case; the first that fits). Comes
            before every other price, and where it says nothing the table of an ancestor's policy is asked.
        price_of: Function of (:class:`Usage`, provider or None) that returns USD for a call, or None where it does not
            know. Asked after ``prices``; what it raises or returns wrongly is counted, and the price is then unknown.

    Raises:
        PolicyError: Names the key and says what is allowed.
    """

    mode: Mode = "enforce"
    budgets: Budgets = field(default_factory=Budgets)
    loops: LoopRules = field(default_factory=LoopRules)
    tools: Mapping[str, ToolRules] = field(default_factory=dict)
    default_tool: ToolRules = NO_RULES
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    on_denied: Literal["raise", "hint"] = "raise"
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    price_of: PriceOf | None = None

    def __post_init__(self) -> None:
        one_of(self, "mode", get_args(Mode))
        one_of(self, "on_denied", ("raise", "hint"))
        for name, kind in (("budgets", Budgets), ("loops", LoopRules), ("default_tool", ToolRules)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(f"must be a {kind.__name__}, not {getattr(self, name)!r}", key=name)
        table(self, "tools", ToolRules)
        table(self, "prices", ModelPrice)
        if self.price_of is not None and (not callable(self.price_of) or inspect.iscoroutinefunction(self.price_of)):
            raise PolicyError(f"must be a function that is not async, not {self.price_of!r}", key="price_of")
        names(self, "allow")
        names(self, "deny")

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy can neither be pickled nor copied.
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        return partial(Policy, **said | {"tools": dict(self.tools), "prices": dict(self.prices)}), ()

    def rules_for(self, tool: str, author: ToolRules | None = None) -> Rules:
        """The rules that hold for *tool*.

        Field by field: ``tools[tool]``, then *author*'s, then ``default_tool``, then ``loops``.

        Args:
            tool: Name of the tool.
            author: What was written at the decorator.
        """
        merged = self.tools.get(tool, NO_RULES).over((author or NO_RULES).over(self.default_tool))
        return Rules(
            loops=self.loops,
            tool=merged,
            max_repeats=merged.max_repeats or self.loops.max_repeats,
            max_poll_repeats=merged.max_repeats or self.loops.max_poll_repeats,
            action="observe" if self.mode == "observe" else merged.action or self.loops.action,
            exempt=bool(merged.exempt),
        )

    def permits(self, tool: str) -> bool:
        """True where *tool* may be called at all."""
        if any(fnmatchcase(tool, pattern) for pattern in self.deny):
            return False
        return not self.allow or any(fnmatchcase(tool, pattern) for pattern in self.allow)

    @classmethod
    def preset(cls, name: str) -> Policy:
        """A policy by name; see :data:`PRESETS`.

        Raises:
            PolicyError: For a name that is not there.
        """
        try:
            return PRESETS[name]
        except KeyError:
            raise PolicyError(f"no preset {name!r}: there are {', '.join(sorted(PRESETS))}", key="preset") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a YAML or TOML file.

        Raises:
            PolicyError: Names the file, the line and the key, and says what is allowed.
        """
        from otel_loopwatch.policy_file import load  # noqa: PLC0415 - pydantic and PyYAML are imported on first use

        return load(Path(path))


PRESETS: Mapping[str, Policy] = MappingProxyType(
    {
        # Chosen on recorded runs: docs/defaults.md.
        "default": Policy(),
        # First seed, "Recommended settings".
        "most_agents": Policy(loops=LoopRules(max_repeats=3, action="hint")),
        "production": Policy(loops=LoopRules(max_repeats=2, max_rereads=2, action="abort")),
        "debug": Policy(loops=LoopRules(max_repeats=1, max_rereads=1, action="abort")),
        "exploratory": Policy(loops=LoopRules(max_repeats=10, action="hint")),
        # Third seed, "Config segura por defecto"; the token and USD caps are the second seed's.
        "safe": Policy(
            budgets=Budgets(
                max_steps=25, max_tool_calls=12, max_seconds=60, max_tokens=150_000, max_spend_usd=Decimal("0.50")
            )
        ),
    }
)
"""The bundled policies by name."""


def policy_of(value: Policy | str | os.PathLike[str] | None) -> Policy | None:
    """*value* itself, or what is in the file that it names.

    Raises:
        PolicyError: For anything else, and for a file that is not a policy.
    """
    if isinstance(value, str | os.PathLike):
        return Policy.load(value)
    if value is None or isinstance(value, Policy):
        return value
    raise PolicyError(f"must be a Policy or the path of one, not a {type(value).__name__}", key="policy")


def operators_policy() -> Policy | None:
    """The policy that ``LOOPWATCH_POLICY`` names, a preset or a file; ``None`` where it names none.

    Raises:
        PolicyError: Where it is neither, or the file is not a policy.
    """
    if not os.environ.get(ENVIRONMENT_VARIABLE):
        return None
    from otel_loopwatch.policy_file import from_env  # noqa: PLC0415 - as in Policy.load

    return from_env()
