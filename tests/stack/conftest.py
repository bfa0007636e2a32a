"""The real collector, Prometheus and Alertmanager, for the tests of this folder.

``stack`` runs the shipped configuration with every duration divided by ``FACTOR``. ``make stack`` makes the programs;
without them these tests are skipped, and on CI they fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "stack"))

from local_stack import LocalStack, MissingError, programs
from stack_parts import FACTOR, Agents, SpanStore


@pytest.fixture(scope="session")
def has_programs() -> None:
    try:
        programs()
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def span_store() -> Iterator[SpanStore]:
    store = SpanStore()
    yield store
    store.close()


@pytest.fixture(scope="session")
def stack(has_programs, span_store, tmp_path_factory) -> Iterator[LocalStack]:
    """One for all tests of a worker: each test has agents of its own names."""
    with LocalStack(tmp_path_factory.mktemp("stack"), factor=FACTOR, traces=span_store.address) as running:
        yield running


@pytest.fixture
def start_agents(stack):
    """``start_agents(service)``: a process that sends to the collector; ended with the test."""
    started = []

    def start(service: str, **env: str) -> Agents:
        sends = {"OTEL_SERVICE_NAME": service, "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_grpc}
        started.append(Agents(**(sends | env)))
        return started[-1]

    yield start
    for agents in started:
        agents.end()
