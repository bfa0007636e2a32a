"""Five agents with scripted models, to see the guard at work: no network, no keys.

The models are scripted, the guard is not. Each model answers to what it has been given, a hint included, and each run
goes through the same decorators, boundaries and budgets as an application's.
"""

from otel_loopwatch.demo.agents import AGENTS, Agent
from otel_loopwatch.demo.loop import Report, work

__all__ = ["AGENTS", "Agent", "Report", "work"]
