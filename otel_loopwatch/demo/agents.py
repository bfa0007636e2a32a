"""The five agents: what each is given to do, and how its model goes about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import otel_loopwatch as lw
from otel_loopwatch.demo.script import Ask, Exchange, Model, Say

__all__ = ["AGENTS", "Agent"]

USUAL_TEMPERATURE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One demo agent.

    Attributes:
        name: Its name in the table and in the metrics.
        task: What it is asked.
        model: How its model behaves.
        model_name: The model whose prices are charged.
        policy: Its rules.
    """

    name: str
    task: str
    model: Model
    model_name: str
    policy: lw.Policy = field(default_factory=lw.Policy)


def healthy(seen: Sequence[Exchange], temperature: float) -> Ask | Say:  # noqa: ARG001 - never stuck
    """Looks up three things, each with what the one before said, and answers."""
    if not seen:
        return Ask("find_customer", {"name": "Acme"})
    last = seen[-1]
    match last.ask.tool:
        case "find_customer":
            return Ask("find_orders", {"customer": last.answer.split()[0]})
        case "find_orders":
            return Ask("track_parcel", {"parcel": last.answer.split()[-1]})
        case _:
            return Say(f"Your {last.answer}.")


def identical_retry(seen: Sequence[Exchange], temperature: float) -> Ask | Say:  # noqa: ARG001 - only a hint moves it
    """Has the customer's number wrong and asks again and again, until it is told to try something else."""
    if not seen:
        return Ask("find_orders", {"customer": "ACME-42"})
    last = seen[-1]
    if lw.is_hint(last.answer):
        return Ask("find_customer", {"name": "Acme"})
    if last.ask.tool == "find_customer":
        return Ask("find_orders", {"customer": last.answer.split()[0]})
    if last.answer == "no orders found":
        return last.ask
    return Say(f"Found it: {last.answer}.")


def ping_pong(seen: Sequence[Exchange], temperature: float) -> Ask | Say:
    """Follows each page to the one that it points at, and takes no hint. Stuck, it tries another, which leads back."""
    if temperature > USUAL_TEMPERATURE:
        return Ask("read_page", {"page": "archive"})
    pages = [exchange for exchange in seen if "[" in exchange.answer and not lw.is_hint(exchange.answer)]
    if not pages:
        return Ask("read_page", {"page": "refunds"})
    if seen[-1] is not pages[-1]:
        other = "escalation" if seen[-1].ask.arguments["page"] == "refunds" else "refunds"
        return Ask("read_page", {"page": other})
    return Ask("read_page", {"page": pages[-1].answer.split("[")[1].split("]")[0]})


def runaway(seen: Sequence[Exchange], temperature: float) -> Ask | Say:  # noqa: ARG001 - it is not stuck, it never ends
    """Finds a further question in each answer. Nothing repeats: only a budget ends it."""
    return Ask("search", {"query": seen[-1].answer.split("leaves open: ")[-1] if seen else "sleep and memory"})


def poller(seen: Sequence[Exchange], temperature: float) -> Ask | Say:  # noqa: ARG001 - waiting is not being stuck
    """Begins an export and asks how far it is until it is done."""
    if not seen:
        return Ask("start_export", {"report": "orders of the month"})
    if seen[-1].answer.startswith("done"):
        return Say(f"The export is {seen[-1].answer}.")
    return Ask("export_status", {"job": seen[0].answer.split()[-1]})


AGENTS: tuple[Agent, ...] = (
    Agent(name="healthy", task="Where is the order of Acme?", model=healthy, model_name="gpt-5-mini"),
    Agent(
        name="identical-retry",
        task="What has customer ACME-42 (Acme) ordered?",
        model=identical_retry,
        model_name="claude-haiku-4-5",
    ),
    Agent(name="ping-pong", task="Who may grant a refund?", model=ping_pong, model_name="gpt-5-mini"),
    Agent(
        name="runaway",
        task="Write a complete survey of sleep and memory.",
        model=runaway,
        model_name="claude-sonnet-4-5",
        # The steps hold whatever the model costs.
        policy=lw.Policy(budgets=lw.Budgets(max_spend_usd=Decimal("0.15"), max_steps=60)),
    ),
    Agent(name="poller", task="Export the orders of the month.", model=poller, model_name="gemini-2.5-flash"),
)
"""In the order in which they run."""
