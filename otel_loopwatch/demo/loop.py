"""The agent loop of the demo: as plain as most, and like most it hands an error of a tool to the model as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import otel_loopwatch as lw
from otel_loopwatch.demo.agents import USUAL_TEMPERATURE, Agent
from otel_loopwatch.demo.script import Ask, Exchange, Say
from otel_loopwatch.demo.tools import TOOLS

__all__ = ["Report", "work"]

PROMPT_TOKENS = 900
"""System prompt and tool descriptions, which every turn sends again."""
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Report:
    """How one agent fared.

    Attributes:
        outcome: How its run ended.
        hinted: Calls that were answered with a hint.
        refused: Calls that were refused.
    """

    outcome: lw.RunOutcome
    hinted: int
    refused: int

    def as_dict(self) -> dict[str, Any]:
        """What ``loopwatch demo --json`` prints of it."""
        outcome = self.outcome
        return {
            "agent": outcome.agent,
            "stop_reason": outcome.stop_reason.value,
            "steps": outcome.steps,
            "calls_made": outcome.tool_calls,
            "calls_hinted": self.hinted,
            "calls_refused": self.refused,
            "input_tokens": outcome.input_tokens,
            "output_tokens": outcome.output_tokens,
            "spend_usd": float(outcome.spend_usd),
            "spend_complete": outcome.spend_complete,
            "seconds": round(outcome.duration_s, 3),
            "findings": [
                {"kind": finding.kind, "tool": finding.tool, "repeats": finding.repeats, "action": finding.action}
                for finding in outcome.findings
            ],
            "partial": outcome.partial,
        }


def work(agent: Agent, *, turn: Callable[[str, int], object] | None = None) -> Report:
    """Let *agent* do its task.

    Args:
        agent: The agent.
        turn: Called in each model turn with the agent's name and the number of the turn: it may show them, and take the
            time that a model would.
    """
    seen: list[Exchange] = []
    hinted = refused = 0
    with lw.watch_run(agent.name, policy=agent.policy, on_abort="return") as run:
        while True:
            step = run.step()
            reply = agent.model(seen, run.sampling(USUAL_TEMPERATURE))
            if turn is not None:
                turn(agent.name, step)
            run.record_usage(
                model=agent.model_name,
                input_tokens=PROMPT_TOKENS
                + _tokens(agent.task, *(part for exchange in seen for part in _texts(exchange))),
                output_tokens=_tokens(*_texts(reply)),
            )
            if isinstance(reply, Say):
                run.partial = reply.text
                break
            try:
                answer = TOOLS[reply.tool](**reply.arguments)
            except lw.RunAborted as stopped:
                refused += 1
                answer = stopped.result_text
            else:
                if lw.is_hint(answer):
                    hinted += 1
                else:
                    run.partial = answer
            seen.append(Exchange(reply, answer))
    return Report(run.outcome, hinted, refused)


def _texts(turn: Ask | Say | Exchange) -> list[str]:
    match turn:
        case Exchange(ask, answer):
            return [*_texts(ask), answer]
        case Ask(tool, arguments):
            return [tool, *map(str, arguments.values())]
        case Say(text):
            return [text]


def _tokens(*texts: str) -> int:
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN + 1
