"""The way of one call through the guard, whoever makes it: decorator, gateway or adapter.

bind and hash the arguments -> ask the run for a verdict -> span -> body (or hint, or refusal) -> digest the result ->
settle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_loopwatch import ambient, claims, context, metrics, telemetry, verdict
from otel_loopwatch.calls import ALLOW, Settled, ToolCall, Verdict
from otel_loopwatch.clock import get_clock
from otel_loopwatch.errors import RunAborted, ToolDenied, contain, telemetry_guard, warn_once
from otel_loopwatch.fingerprint import (
    Binder,
    ResultDigest,
    error_digest,
    error_kind,
    fingerprint,
    looks_like_write,
    result_digest,
)
from otel_loopwatch.flow import is_control_flow
from otel_loopwatch.hints import answer, returns_text
from otel_loopwatch.policy import Policy, Rules, ToolRules
from otel_loopwatch.run import Run
from otel_loopwatch.semconv import UNKNOWN_AGENT

__all__ = ["Call", "Tool"]

CHILD_ABORTED = "child_aborted"
_UNGUARDED = Policy()
# A NamedTuple's own constructor is a Python function around this one and takes twice the time.
_new = tuple.__new__


class Tool:
    """What is known of one tool before it is called.

    Args:
        fn: The tool.
        name: Its name for the model; the function's own by default.
        author: What its author wrote at the decorator.
        drop_first: True where the first parameter is ``self`` or ``cls``.
    """

    __slots__ = ("_rules", "_text_allowed", "author", "bind", "fn", "name")

    def __init__(self, fn: Callable[..., Any], name: str, author: ToolRules, *, drop_first: bool = False) -> None:
        self.fn = fn
        self.name = name
        self.author = author
        self.bind = Binder(fn, drop_first=drop_first).bind
        self._text_allowed: bool | None = None
        self._rules: tuple[Policy, tuple[Rules, bool]] | None = None
        with telemetry_guard("metrics"):
            metrics.tool_registered()

    def rules(self, policy: Policy) -> tuple[Rules, bool]:
        """The rules under *policy*, and whether it permits the tool; those of the last policy are kept."""
        kept = self._rules
        if kept is not None and kept[0] is policy:
            return kept[1]
        resolved = policy.rules_for(self.name, self.author), policy.permits(self.name)
        self._rules = (policy, resolved)
        return resolved

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call that is about to be made; ``None`` where the arguments do not fit (the tool itself then says so)."""
        arguments = self.bind(args, kwargs)
        return None if arguments is None else Call(self, arguments)

    def hint(self, judged: Verdict, rules: Rules) -> Any:
        """The value that is returned instead of a result.

        Raises:
            ToolHint: Where the tool's return type has no room for text.
        """
        if self._text_allowed is None:
            self._text_allowed = returns_text(self.fn)
        return answer(judged, self.name, rules.tool.hint, text_allowed=self._text_allowed)


class Call:
    """One call on its way.

    ``admit``, then either return ``answer``, or ``enter``, the body, ``leave`` and one of ``succeed`` and ``fail``.

    Attributes:
        run: The run it counts for; ``None`` outside any run.
        answer: What to return where the body is not to run.
    """

    __slots__ = (
        "_agent",
        "_arguments",
        "_attached",
        "_call",
        "_ours",
        "_repeated",
        "_rules",
        "_span",
        "_tool",
        "answer",
        "run",
    )

    def __init__(self, tool: Tool, arguments: dict[str, Any], call_id: str | None = None) -> None:
        run = context.current_run() or ambient.ambient_run(tool.name)
        policy = _UNGUARDED if run is None else run.policy
        rules, permitted = tool.rules(policy)
        said = rules.tool
        name = tool.name
        kind = said.kind
        if run is None:
            self._agent = UNKNOWN_AGENT
            call_id, now, step = "#0", get_clock()(), 0
        else:
            self._agent = run.agent
            call_id, now, step = call_id or run.next_call_id(), run.clock(), ambient.current_turn(run)
        self.run = run
        self.answer: Any = None
        self._tool = tool
        self._rules = rules
        self._arguments = arguments
        self._repeated = False
        self._attached: context.Attached | None = None
        self._call = _new(
            ToolCall,
            (
                call_id,
                name,
                fingerprint(name, arguments, ignore_args=said.ignore_args or (), loop_key=said.loop_key),
                now,
                step,
                kind,
                kind == "write" or (kind is None and looks_like_write(name, arguments)),
                permitted,
                said.cost_usd,
                rules.exempt,
            ),
        )

    # --- before the body -----------------------------------------------------------------------------------------

    def admit(self) -> bool:
        """True where the body is to run; else :attr:`answer` is what to return.

        Raises:
            RunAborted: Where the run is aborted.
            ToolDenied: Where the policy does not allow the tool.
            ToolHint: Where a hint is due that cannot be returned.
        """
        run = self.run
        return self._act(ALLOW if run is None else run.admit(self._call, self._rules))

    async def aadmit(self) -> bool:
        """:meth:`admit` for an event loop."""
        run = self.run
        if run is None or run.is_local:
            return self.admit()
        return self._act(await run.aadmit(self._call, self._rules))

    def _act(self, judged: Verdict) -> bool:
        run, call = self.run, self._call
        action = judged.action
        runs = action == "allow" or action == "observe"  # noqa: PLR1714 - one comparison, nearly always
        denied = runs and not call.known
        self._repeated = judged.repeats > 1
        try:
            metrics.known_tool(self._agent, call.tool, self._rules.action)
            if run is None:
                metrics.untracked(self._agent)
        except Exception as fault:  # noqa: BLE001 - our own fault, whatever it is
            contain("metrics", fault)
        if run is None:
            warn_once(
                "untracked",
                f"tool {call.tool!r} was called outside any run: it is traced and counted, but never stopped. "
                "Open lw.watch_run() around the agent; carry a run into a thread with lw.bind().",
            )
        try:
            self._span, self._ours = telemetry.start_tool_span(
                run, self._agent, call, judged, "abort" if denied else action
            )
            if run is not None and not self._ours:
                claims.claim_annotated(self._span, call.tool, run.run_id)
        except Exception as fault:  # noqa: BLE001
            self._span, self._ours = trace.INVALID_SPAN, False
            contain("telemetry", fault)
        if denied:
            return self._deny()
        if runs:
            return True
        if action == "hint":
            self._finish("hinted", None)
            self.answer = self._tool.hint(judged, self._rules)
            return False
        self._finish("refused", "aborted")
        if run is None or judged.trip is None:  # pragma: no cover - an abort always has both; this tells mypy
            raise AssertionError
        raise run.refusal(judged.trip, call)

    def _deny(self) -> bool:
        """Refuse a tool that the policy does not allow. The demand is counted: again and again it is a loop."""
        run, tool = self.run, self._call.tool
        if run is not None:
            run.settle(self._call, Settled(None, error="denied", error_class="ToolDenied", at=run.clock()))
        self._finish("refused", "denied")
        text = verdict.denied_text(tool)
        if run is None or run.policy.on_denied == "raise":
            raise ToolDenied(text, tool_name=tool)
        self.answer = self._tool.hint(Verdict("hint", text=text), self._rules)
        return False

    # --- around the body -----------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Make the call's span (and run) current, for the body or for one step of it."""
        current = otel_context.get_current()
        if self._ours:
            current = trace.set_span_in_context(self._span, current)
        self._attached = context.attach(self.run, current)

    def leave(self) -> None:
        """Undo :meth:`enter`."""
        attached = self._attached
        if attached is not None:
            self._attached = None
            context.detach(attached)

    # --- after the body ------------------------------------------------------------------------------------------

    def succeed(self, result: Any) -> None:
        """The body returned *result*."""
        self.succeed_with(result_digest(result))

    def succeed_with(self, digest: ResultDigest) -> None:
        """The body gave results with this digest."""
        run = self.run
        if run is not None:
            settled = _new(Settled, (digest.digest, None, None, False, digest.trivial, run.clock()))
            run.settle(self._call, settled, self._shown())
        self._finish("ok", None)

    def fail(self, error: BaseException) -> None:
        """The body raised *error*, which the caller raises on, unchanged."""
        if is_control_flow(error):
            self._interrupt(error)
            return
        run = self.run
        if run is not None:
            try:
                settled = self._settled_error(error, run)
            except Exception:  # noqa: BLE001 - code of the error's own; it must not take the error's place
                name = type(error).__name__
                settled = Settled(name, error=name, error_class=name, at=run.clock())
            run.settle(self._call, settled, self._shown())
        self._finish("error", type(error).__qualname__)

    def time_out(self) -> BaseException:
        """The run's time is up while the body hangs: trip it, and return what to raise."""
        run = self.run
        if run is None:  # pragma: no cover - only a run has a time limit; this tells mypy
            raise AssertionError
        settled = Settled(None, error="timeout", error_class="TimeoutError", infra=True, at=run.clock())
        run.settle(self._call, settled, self._shown())
        self._finish("error", "TimeoutError")
        trip = run.limits.time_is_up()
        return run.refusal(trip, self._call)

    def abandon(self, digest: ResultDigest) -> None:
        """Nobody waits for the rest of a generator any more."""
        run = self.run
        if run is not None:
            run.settle(self._call, Settled(digest.digest, trivial=digest.trivial, at=run.clock()))
            run.note_attempt(self._call.fingerprint, self._call.tool, self._shown(), "abandoned")
        self._finish("ok", None, abandoned=True)

    def _settled_error(self, error: BaseException, run: Run) -> Settled:
        if isinstance(error, RunAborted) and run.tripped is None:
            # A child run's abort that leaves this tool is this call's error (DESIGN 5.10).
            return Settled(None, error=CHILD_ABORTED, error_class=CHILD_ABORTED, at=run.clock())
        digest = error_digest(error)
        return Settled(
            digest.signature,
            error=error_kind(error),
            error_class=digest.error_class,
            infra=digest.infra,
            at=run.clock(),
        )

    def _interrupt(self, error: BaseException) -> None:
        """A signal of Python's or a framework's passes through: no error, and where the call was put off, no call."""
        run = self.run
        if run is not None:
            if isinstance(error, Exception):
                run.withdraw(self._call)
            else:
                run.settle(self._call, Settled(None, at=run.clock()))
        self._finish("ok" if not isinstance(error, Exception) else None, None)

    def _finish(self, outcome: str | None, error_type: str | None, *, abandoned: bool = False) -> None:
        """Count the call, and end its span."""
        if outcome is not None:
            try:
                metrics.tool_call(self._agent, self._call.tool, outcome, repeated=self._repeated)
            except Exception as fault:  # noqa: BLE001
                contain("metrics", fault)
        try:
            telemetry.end_tool_span(self._span, ours=self._ours, error_type=error_type, abandoned=abandoned)
        except Exception as fault:  # noqa: BLE001
            contain("telemetry", fault)

    def _shown(self) -> dict[str, Any]:
        """What ``run.tried()`` may show of the arguments."""
        return {} if self._rules.tool.sensitive else self._arguments
