"""What the tests run besides the stack: a process of agents, and a receiver in the place of the store of traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

FACTOR = 120
"""Every duration of the shipped files is divided by it: their 5 minutes are 2.5 s."""

END_S = 30


def environment(**env: str) -> dict[str, str]:
    """For a process of ours: nothing that the developer has set for OpenTelemetry or the guard."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOOPWATCH_", "OTEL_"))}
    own = {"LOOPWATCH_STRICT": "1", "PYTHONPATH": str(ROOT), "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    return kept | own | env


class SpanStore:
    """Stands where the store of traces is: an OTLP receiver that keeps what comes."""

    def __init__(self) -> None:
        self._spans: list[tuple[dict, object]] = []
        self._came = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request, context):  # noqa: N802 - the name of the method in the service
        with self._came:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self._spans += [(plain(resource.resource.attributes), span) for span in scope.spans]
            self._came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, chosen, count: int = 1, timeout_s: float = 30) -> list:
        """The spans that *chosen* (service, span, attributes) takes, once there are so many."""

        def found() -> list:
            return [
                span for resource, span in self._spans if chosen(resource["service.name"], span, plain(span.attributes))
            ]

        with self._came:
            assert self._came.wait_for(lambda: len(found()) >= count, timeout_s), (
                f"{len(found())} of {count} spans came"
            )
            return found()

    def close(self) -> None:
        self._server.stop(None).wait()


def plain(attributes) -> dict:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Agents:
    """One process of agents.py."""

    def __init__(self, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "agents.py")],
            env=environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # An exporter says there that its collector is away; nobody reads it.
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        self.page = f"127.0.0.1:{self._answer()['port']}"

    def _answer(self) -> dict:
        return json.loads(self._process.stdout.readline())

    def __call__(self, do: str, **order) -> dict:
        """Have *order* obeyed; what it answers."""
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> int:
        """End it as a program ends.

        Returns:
            Its exit code.
        """
        self._process.stdin.close()
        try:
            return self._process.wait(END_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
