"""``configure()`` and ``shutdown()``. Global providers can be set once in a process, so each case has a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from otlp_receiver import Receiver

TESTS = Path(__file__).parent
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}

CALLS = """
@lw.watch_tool
def search(q): return q * 2
def calls(n=3):
    with lw.watch_run("a"):
        for i in range(n): search(f"question {i}")
"""


def script(code: str, *, timeout: float = 40, **env: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process of its own, with warnings as errors in our own part."""
    return subprocess.run(
        [sys.executable, "-c", f"import otel_loopwatch as lw\n{CALLS}\n{code}"],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "LOOPWATCH_STRICT": "1", **env},
    )


def output(code: str, **env: str) -> str:
    done = script(code, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_with_no_endpoint_nothing_is_exported_and_nothing_waits():
    began = time.monotonic()
    said = output("""
lw.configure("support")
calls()
from opentelemetry import trace, metrics
import threading
print(type(trace.get_tracer_provider()).__name__, type(metrics.get_meter_provider()).__name__)
print([t.name for t in threading.enumerate() if t.name.startswith("Otel")])
""")
    assert said.splitlines() == ["TracerProvider _ProxyMeterProvider", "[]"]
    assert time.monotonic() - began < 10


def test_spans_and_metrics_leave_at_the_end_with_name_and_instance():
    with Receiver() as receiver:
        output('lw.configure("support")\ncalls()', OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, **HTTP)
    assert receiver.names() == ["execute_tool search"] * 3 + ["invoke_agent a"]
    assert {each["service.name"] for each in receiver.resources} == {"support"}
    assert list(receiver.sums("loopwatch.tool.calls").values()) == [3]
    assert len({each["service.instance.id"] for each in receiver.resources}) == 1


def test_f5_twice_is_once_also_after_a_reload_of_the_module():
    with Receiver() as receiver:
        output(
            """
import importlib, sys
lw.configure("support"); lw.configure("support"); lw.configure()
module = importlib.reload(sys.modules["otel_loopwatch.configure"])
module.configure("support")
calls()
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            **HTTP,
        )
    assert receiver.names() == ["execute_tool search"] * 3 + ["invoke_agent a"]
    assert list(receiver.sums("loopwatch.tool.calls").values()) == [3]


OWN = """
from opentelemetry import trace, metrics
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
own, reader = TracerProvider(), InMemoryMetricReader()
meters = MeterProvider([reader])
trace.set_tracer_provider(own); metrics.set_meter_provider(meters)
"""


def test_f5_it_attaches_to_the_providers_that_are_there_and_shutdown_leaves_them_alive():
    said = output(
        OWN
        + """
lw.configure("support", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
print(trace.get_tracer_provider() is own, metrics.get_meter_provider() is meters)
span = trace.get_tracer("x").start_as_current_span
def ambient():
    with span("root"):
        for i in range(3):
            try: search(f"question {i}")
            except lw.BudgetExceeded: print("refused", i)
ambient()
print(lw.shutdown())
ambient()
print(reader.get_metrics_data() is not None)
lw.configure(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=1)))
ambient()
"""
    )
    assert said.splitlines() == ["True True", "refused 2", "True", "True", "refused 1", "refused 2"]


def test_shutdown_takes_away_no_processor_that_somebody_else_has_attached():
    said = output(
        OWN
        + """
from otel_loopwatch import processor
theirs = processor.attach(own)
lw.configure(); lw.shutdown()
print(theirs.is_active)
"""
    )
    assert said == "True"


def test_the_policy_comes_after_the_operators_and_before_that_of_a_processor():
    code = (
        OWN
        + """
own.add_span_processor(lw.LoopwatchSpanProcessor(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=9))))
lw.configure(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
with lw.watch_run("a") as run: print(run.policy.budgets.max_tool_calls)
with lw.watch_run("a", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=1))) as run:
    print(run.policy.budgets.max_tool_calls)
lw.configure(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=3)))
with lw.watch_run("a") as run: print(run.policy.budgets.max_tool_calls)
lw.shutdown()
with lw.watch_run("a") as run: print(run.policy.budgets.max_tool_calls)
"""
    )
    assert output(code).split() == ["2", "1", "3", "9"]


def test_the_operators_policy_wins_over_the_argument(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("budgets: {max_tool_calls: 7}\n")
    said = output(
        """
lw.configure(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
with lw.watch_run("a") as run: print(run.policy.budgets.max_tool_calls)
""",
        LOOPWATCH_POLICY=str(file),
    )
    assert said == "7"


def test_another_service_name_holds_for_what_is_exported_from_then_on():
    with Receiver() as receiver:
        output(
            'lw.configure("launcher"); lw.configure("support"); calls()',
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            **HTTP,
        )
    assert {resource["service.name"] for resource, _ in receiver.spans} == {"support"}


@pytest.mark.parametrize(
    "variable, value, says",
    [
        ("OTEL_TRACES_EXPORTER", "otlpp", "OTEL_TRACES_EXPORTER=otlpp: there is no such exporter"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json: must be grpc or"),
    ],
)
def test_an_exporter_that_is_not_there_is_named_and_nothing_is_set(variable, value, says):
    said = output(
        """
try: lw.configure(prometheus_port=0)
except lw.LoopwatchError as error: print(error)
from opentelemetry import trace
from otel_loopwatch.configure import _state
print(type(trace.get_tracer_provider()).__name__, _state.page)
""",
        **{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", variable: value},
    )
    assert says in said
    assert said.endswith("ProxyTracerProvider None")


def test_none_exports_nothing_though_there_is_an_endpoint_and_console_prints():
    with Receiver() as receiver:
        said = output(
            'lw.configure("s"); calls(1)',
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_TRACES_EXPORTER="console",
            OTEL_METRICS_EXPORTER="none",
        )
    assert receiver.resources == []
    assert '"name": "execute_tool search"' in said


EXPORT_ERRORS = """
from otel_loopwatch import metrics
print({l["signal"]: v for m, l, v in metrics.samples() if m.name == "loopwatch.export.errors"})
"""


def test_lost_batches_are_counted_once_and_a_signal_that_lost_none_is_0():
    with socket.create_server(("127.0.0.1", 0)) as refused:
        port = refused.getsockname()[1]
    said = output(
        "lw.configure()\ncalls()\nlw.shutdown(15)" + EXPORT_ERRORS,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{port}/v1/traces",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
        **HTTP,
    )
    assert said.splitlines()[-1] == "{'traces': 1, 'metrics': 0}"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("kind", ["dead", "black hole"])
def test_f6_an_endpoint_that_does_not_answer_holds_up_neither_calls_nor_the_exit(kind, protocol):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = 9 if kind == "dead" else silent.getsockname()[1]
        *said, ended = output(
            """
import threading, time
from otel_loopwatch import exporting
threads = set()
for exporter in (exporting._CountedSpans, exporting._CountedMetrics):
    def export(self, *args, _inner=exporter.export, **kwargs):
        threads.add(threading.current_thread())
        return _inner(self, *args, **kwargs)
    exporter.export = export
lw.configure("s")
calls(600)
print(lw.flush(0.2), len(threads) > 0, threading.main_thread() in threads)
print(time.time())
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        ).split()
        took = time.time() - float(ended)
    # Of a batch that was refused at once, older exporters say that nothing of it is left.
    assert said[1:] == ["True", "False"]
    assert said[0] == "False" or kind == "dead"
    # 5 s are the bound; the rest is the end of Python on a machine that is busy.
    assert took < 9


def test_f6_shutdown_keeps_to_its_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = output(
            "import time\nlw.configure()\ncalls()\nt=time.monotonic()\nprint(lw.shutdown(0.5), time.monotonic()-t < 2)",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            **HTTP,
        )
    assert said == "False True"


def test_switched_off_it_does_nothing():
    said = output(
        """
print(lw.configure("s", prometheus_port=0)); calls()
from opentelemetry import trace
print(type(trace.get_tracer_provider()).__name__, lw.shutdown())
""",
        LOOPWATCH_DISABLED="1",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert said.splitlines() == ["Configured(prometheus_port=None)", "ProxyTracerProvider True"]


def test_with_the_sdk_switched_off_the_guard_guards_and_the_page_counts():
    said = output(
        """
import urllib.request
c = lw.configure(prometheus_port=0, policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
try: calls()
except lw.BudgetExceeded: print("stopped")
page = urllib.request.urlopen(f"http://127.0.0.1:{c.prometheus_port}/metrics").read().decode()
print('loopwatch_tool_calls_total{agent="a",outcome="ok",tool="search"} 2.0' in page)
""",
        OTEL_SDK_DISABLED="true",
    )
    assert said.splitlines() == ["stopped", "True"]


def test_a_provider_that_takes_no_processors_is_said_and_decorated_tools_are_guarded():
    done = script("""
import logging; logging.basicConfig()
from opentelemetry import trace
trace.set_tracer_provider(trace.NoOpTracerProvider())
lw.configure(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
try: calls()
except lw.BudgetExceeded: print("stopped")
""")
    assert done.stdout.strip() == "stopped", done.stderr
    assert "the tracer provider is a NoOpTracerProvider and takes no span processors" in done.stderr


def test_from_threads_at_once_it_is_configured_once():
    with Receiver() as receiver:
        output(
            """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool: ports = set(pool.map(lambda _: lw.configure("s", prometheus_port=0), range(8)))
assert len(ports) == 1, ports
calls()
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            **HTTP,
        )
    assert receiver.names() == ["execute_tool search"] * 3 + ["invoke_agent a"]
