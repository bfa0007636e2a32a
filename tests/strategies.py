"""What the tests of detection share: a run played through the ledger's state and the detectors, and random runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

from otel_loopwatch.calls import Finding, Settled, ToolCall
from otel_loopwatch.detectors import inspect
from otel_loopwatch.history import History
from otel_loopwatch.policy import LoopRules, Policy, Rules, ToolRules
from otel_loopwatch.run_state import RunState


class Play:
    """One run, call by call, without a Run around it.

    A finding is answered by ``answer``: ``run`` lets the body run all the same (observe), ``hint`` does not, and
    ``refuse`` gives the reservation back as an abort does.
    """

    def __init__(self, *, answer: str = "run", tools: Mapping[str, ToolRules] | None = None, **loops: Any) -> None:
        self.state = RunState()
        self.answer = answer
        self.policy = Policy(loops=LoopRules(**loops), tools=tools or {})
        self.bodies = 0
        self._ids = 0

    def rules(self, tool: str) -> Rules:
        return self.policy.rules_for(tool)

    def ask(self, tool: str = "t", args: Any = "a", **facts: Any) -> tuple[ToolCall, History, Finding | None]:
        """Reserve and judge, nothing more."""
        self._ids += 1
        facts.setdefault("id", f"c{self._ids}")
        rules = self.rules(tool)
        call = ToolCall(tool=tool, fingerprint=f"{tool}:{args}", at=float(self._ids), exempt=rules.exempt, **facts)
        history = self.state.look(call) if self.state.knows(call.id) else self.state.reserve(call)
        return call, history, inspect(history, call, rules)

    def settle(self, call: ToolCall, result: Any = "r", **facts: Any) -> None:
        self.bodies += 1
        error = facts.get("error")
        digest = facts.pop("digest", None) or (
            f"error:{error}" if error else None if result is None else f"result:{result}"
        )
        self.state.settle(call, Settled(digest, error_class="E" if error else None, **facts))

    def call(self, tool: str = "t", args: Any = "a", result: Any = "r", **facts: Any) -> Finding | None:
        """One whole call; returns what was found before its body."""
        settled = {name: facts.pop(name) for name in ("digest", "error", "infra", "trivial") if name in facts}
        call, _, finding = self.ask(tool, args, **facts)
        if finding is None or self.answer == "run":
            self.settle(call, result, **settled)
        elif self.answer == "hint":
            self.state.release(call, finding.subject)
        else:
            self.state.release(call)
        return finding

    def calls(self, count: int, *args: Any, **facts: Any) -> list[Finding | None]:
        return [self.call(*args, **facts) for _ in range(count)]

    def entry(self, tool: str = "t", args: Any = "a") -> Any:
        """What is known of a fingerprint now, without leaving a trace."""
        call, history, _ = self.ask(tool, args)
        self.state.release(call)
        return history.entry


def kinds(findings: list[Finding | None]) -> list[str | None]:
    return [None if finding is None else finding.kind for finding in findings]


def limits(**changed: Any) -> dict[str, Any]:
    """Loop rules of which only those in *changed* can be reached."""
    rules = {item.name: 10_000 for item in dataclasses.fields(LoopRules) if item.name.startswith("max_")}
    return rules | changed


class Made(NamedTuple):
    """One call of a random run."""

    tool: str
    args: int
    result: int | None
    error: bool
    writes: bool


made_calls = st.builds(
    Made,
    tool=st.sampled_from(["a", "b"]),
    args=st.integers(0, 2),
    result=st.one_of(st.none(), st.integers(0, 1)),
    error=st.booleans(),
    writes=st.booleans(),
)
runs = st.lists(made_calls, max_size=40)
