"""``loopwatch run``: what the program sees, what is said of its runs, and everything that a command can be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
import venv
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_loopwatch.calls import Finding, RunOutcome, StopReason
from otel_loopwatch.launch.command import CommandError, prepare
from otel_loopwatch.launch.record import MAX_KEPT, MAX_ROWS, Record, report, table, write_report
from otel_loopwatch.launch.settings import VARIABLE, Settings
from otel_loopwatch.run import Run

LOOPWATCH = [sys.executable, "-m", "otel_loopwatch"]
ROOT = Path(__file__).parent.parent

# An agent of a library that knows OpenTelemetry, and no word of the guard.
AGENT = """
from opentelemetry import trace

tracer = trace.get_tracer("some.library")
def agent(name, calls):
    what = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    with tracer.start_as_current_span(f"invoke_agent {name}", attributes=what):
        for number in range(calls):
            model = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
            with tracer.start_as_current_span("chat gpt-4o", attributes=model) as span:
                span.set_attributes({"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 100})
            tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"} | SHOWN
            with tracer.start_as_current_span("execute_tool search", attributes=tool) as span:
                span.set_attribute("gen_ai.tool.call.result", "nothing found")
SHOWN = {"gen_ai.tool.call.arguments": '{"q": "same"}'}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty current directory, and a function that writes a script into it."""
    monkeypatch.chdir(tmp_path)

    def write(code: str, name: str = "agent.py", agent: str = AGENT) -> Path:
        path = tmp_path / name
        path.write_text(agent + textwrap.dedent(code))
        return path

    return write


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LOOPWATCH_POLICY")}
    return kept | more


def loopwatch(
    *words: object, env: dict[str, str] | None = None, timeout: float = 50, **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOOPWATCH, "run", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment() if env is None else env,
        **options,
    )


def rows_of(stderr: str) -> list[list[str]]:
    """The cells of the table's rows, without its head and its sum."""
    lines = stderr.partition("loopwatch: runs\n")[2].splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("---")]
    end = rules[1] if len(rules) > 1 else len(lines)
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[rules[0] + 1 : end]]
    return [row for row in rows if len(row) > 4]


# --- a program that knows nothing of it -------------------------------------------------------------------------------


def test_an_agent_without_a_word_of_the_guard_is_counted_and_told(place):
    place("agent('bob', 2)")
    ran = loopwatch("--", sys.executable, "agent.py")
    assert ran.returncode == 0
    assert ran.stdout == ""
    (row,) = rows_of(ran.stderr)
    assert row[:5] == ["bob", "completed", "2", "2,200", "0.0070"]


def test_a_loop_is_named_in_the_table_and_in_the_report(place):
    place("agent('bob', 6)\nagent('ann', 1)")
    ran = loopwatch("--report", "out.json", "--", sys.executable, "agent.py")
    first, second = rows_of(ran.stderr)
    assert first[:4] == ["bob", "loop_detected", "6", "search x5"]
    assert second[0] == "ann"
    assert "2 runs" in ran.stderr
    said = json.loads(Path("out.json").read_text())
    assert said["schema"] == 1
    assert said["totals"] | {"spend_complete": True} == said["totals"]
    assert said["totals"]["tool_calls"] == 7
    assert said["totals"]["input_tokens"] == 7_000
    assert said["totals"]["stop_reasons"] == {"completed": 1, "loop_detected": 1}
    assert Decimal(said["totals"]["spend_usd"]) == Decimal("0.0245")
    bob = next(run for run in said["runs"] if run["agent"] == "bob")
    assert [(found["kind"], found["tool"], found["repeats"]) for found in bob["findings"]] == [("repeat", "search", 5)]
    assert "same" not in json.dumps(said)
    assert [path.name for path in Path().iterdir() if "out.json" in path.name] == ["out.json"]


def test_tools_whose_arguments_nobody_shows_are_named(place):
    place("SHOWN = {}\nagent('bob', 5)")
    ran = loopwatch("--report", "out.json", "--", sys.executable, "agent.py")
    assert rows_of(ran.stderr)[0][1] == "completed"
    assert "spans of search show no arguments" in ran.stderr
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in ran.stderr
    assert json.loads(Path("out.json").read_text())["tools_without_arguments"] == ["search"]


def test_a_guarded_tool_is_refused_by_the_policy_of_the_command_line(place):
    Path("p.yaml").write_text("budgets: {max_tool_calls: 2}\n")
    place(
        """
        import otel_loopwatch as lw
        @lw.watch_tool
        def read(n): return n
        with tracer.start_as_current_span("invoke_agent a", attributes={"gen_ai.operation.name": "invoke_agent"}):
            try:
                for n in range(5): print(read(n))
            except lw.BudgetExceeded as error: print("stopped:", error.budget)
        """
    )
    ran = loopwatch("--policy", "p.yaml", "--", sys.executable, "agent.py")
    assert ran.stdout.split() == ["0", "1", "stopped:", "tool_calls"]
    assert "tool_call_budget" in ran.stderr


def test_the_policy_of_the_command_line_wins_over_that_of_the_environment(place):
    Path("p.yaml").write_text("budgets: {max_tool_calls: 1}\n")
    Path("broken.yaml").write_text("budgets: {max_tool_calls: no}\n")
    place("agent('bob', 2)")
    ran = loopwatch("--policy", "p.yaml", "--", sys.executable, "agent.py", env=environment(LOOPWATCH_POLICY="default"))
    assert rows_of(ran.stderr)[0][1] == "tool_call_budget"
    refused = loopwatch("--", sys.executable, "agent.py", env=environment(LOOPWATCH_POLICY="./broken.yaml"))
    assert refused.returncode == 2
    assert "broken.yaml:1" in refused.stderr


def test_a_program_without_an_agent_is_told_so(place):
    place("print('hello')", agent="")
    ran = loopwatch("--", sys.executable, "agent.py")
    assert (ran.returncode, ran.stdout) == (0, "hello\n")
    assert "none was seen" in ran.stderr


def test_switched_off_it_is_not_there(place):
    place("agent('bob', 6); print('done')")
    ran = loopwatch("--", sys.executable, "agent.py", env=environment(LOOPWATCH_DISABLED="1"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


# --- what the program sees --------------------------------------------------------------------------------------------


def test_the_program_finds_its_world_unchanged(place):
    place(
        """
        import json, os, sys
        mine = {k: v for k, v in os.environ.items() if k not in ("_", "SHLVL")}
        print(json.dumps([sys.argv, sys.path, mine, __file__, __name__, sys.stdin.read()]))
        """,
        agent="",
    )
    command = [sys.executable, "agent.py", "--report", "x", "--", "-y", ""]
    for env in (environment(), environment(PYTHONPATH=""), environment(PYTHONPATH=f"/some{os.pathsep}/where")):
        plain = subprocess.run(command, capture_output=True, text=True, input="words\n", env=env)
        ran = loopwatch("--", *command, input="words\n", env=env)
        assert json.loads(ran.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "agent"],
        ["-c", "import agent"],
        ["-X", "dev", "agent.py"],
        ["-Wignore", "-uB", "agent.py"],
        ["-W", "error", "-P", "agent.py"],
        ["--check-hash-based-pycs", "default", "agent.py"],
        ["-"],
        [],
    ],
    ids=" ".join,
)
def test_every_way_to_call_python(place, arguments):
    path = place("agent('bob', 1)")
    env = environment(PYTHONPATH=str(path.parent)) if "-m" in arguments else None
    with path.open() as script:
        ran = loopwatch("--", sys.executable, *arguments, stdin=script, env=env)
    assert ran.returncode == 0
    assert rows_of(ran.stderr)[0][0] == "bob"


def test_the_dashes_may_be_left_out(place):
    place("agent('bob', 1); import sys; print(sys.argv)")
    ran = loopwatch("--service-name", "s", sys.executable, "agent.py", "--policy", "mine")
    assert ran.stdout == "['agent.py', '--policy', 'mine']\n"
    assert rows_of(ran.stderr)


@pytest.mark.parametrize(
    "line",
    [
        f"#!{sys.executable} -u",
        "#!/usr/bin/env python",
        "#!/usr/bin/env -S python -u",
        f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''",
    ],
    ids=["plain", "env", "split", "long"],
)
def test_a_script_with_a_shebang_is_a_python_program(place, line):
    place("agent('bob', 1)", name="script", agent=f"{line}\n{AGENT}").chmod(0o755)
    path_variable = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = loopwatch("--", "./script", env=environment(PATH=path_variable))
    assert rows_of(ran.stderr)[0][0] == "bob"


def test_a_console_script_of_a_package_is_one_too(place):
    place("def test_agent(): agent('bob', 1)", name="test_it.py")
    pytest_command = Path(sysconfig.get_path("scripts")) / "pytest"
    if not pytest_command.exists():
        pytest.skip("pytest is not installed as a command")
    ran = loopwatch("--", pytest_command, "-q", "-p", "no:cacheprovider", "test_it.py")
    assert ran.returncode == 0
    assert "1 passed" in ran.stdout
    assert rows_of(ran.stderr)[0][0] == "bob"


def test_the_users_sitecustomize_is_imported(place):
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'\n")
    place("import sitecustomize; print(mine, sitecustomize.__file__)", agent="")
    ran = loopwatch("--", sys.executable, "agent.py", env=environment(PYTHONPATH="site"))
    assert ran.stdout.split() == ["mine", str(Path("site/sitecustomize.py").absolute())] or ran.stdout.startswith(
        "mine site"
    )


def test_a_broken_sitecustomize_is_as_broken_as_before(place):
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    place("agent('bob', 1)")
    env = environment(PYTHONPATH="site")
    plain = subprocess.run([sys.executable, "agent.py"], capture_output=True, text=True, env=env)
    ran = loopwatch("--", sys.executable, "agent.py", env=env)
    assert "RuntimeError: mine" in plain.stderr
    assert ran.stderr.startswith(plain.stderr)
    assert rows_of(ran.stderr)


def test_processes_that_the_program_starts_are_not_guarded(place):
    place("agent('child', 1)", name="child.py")
    place(
        """
        import multiprocessing, os, subprocess, sys
        subprocess.run([sys.executable, "child.py"], check=True)
        if __name__ == "__main__":
            agent("parent", 1)
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=agent, args=("other", 1))
                process.start(); process.join()
            if os.fork() == 0:
                sys.exit()
            os.wait()
        """,
    )
    ran = loopwatch("--", sys.executable, "-W", "ignore", "agent.py")
    assert ran.stderr.count("loopwatch: runs") == 1
    assert [row[0] for row in rows_of(ran.stderr)] == ["parent"]


def test_inside_of_another_one_it_is_the_inner_one_that_reports(place):
    place("agent('bob', 1)")
    ran = loopwatch(
        "--report", "outer.json", "--", *LOOPWATCH, "run", "--service-name", "s", "--", sys.executable, "agent.py"
    )
    assert ran.returncode == 0
    assert ran.stderr.count("loopwatch: runs") == 1
    said = json.loads(Path("outer.json").read_text())
    assert said["service_name"] == "s"
    assert [run["agent"] for run in said["runs"]] == ["bob"]


# --- a program with OpenTelemetry of its own --------------------------------------------------------------------------

OWN = """
from opentelemetry import metrics, trace
from opentelemetry.trace import set_tracer_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
early = trace.get_tracer("early")
with early.start_as_current_span("before"): pass
spans = InMemorySpanExporter()
provider = TracerProvider(resource=Resource({"service.name": "mine"}))
provider.add_span_processor(SimpleSpanProcessor(spans))
"""


def test_a_tracer_provider_of_the_programs_own_gets_every_span_and_is_guarded(place):
    place(
        """
        set_tracer_provider(provider)
        agent("bob", 6)
        with early.start_as_current_span("after"): pass
        assert trace.get_tracer_provider() is provider
        set_tracer_provider(TracerProvider())
        assert trace.get_tracer_provider() is provider
        found = spans.get_finished_spans()
        print(len(found), found[-1].name, {span.resource.attributes["service.name"] for span in found})
        """,
        agent=OWN + AGENT,
    )
    ran = loopwatch("--", sys.executable, "agent.py")
    assert ran.stdout == "14 after {'mine'}\n"
    # The second one is turned away by OpenTelemetry, as it is without us.
    assert ran.stderr.count("Overriding of current TracerProvider is not allowed") == 1
    assert rows_of(ran.stderr)[0][1] == "loop_detected"


def test_a_provider_that_takes_no_processors_is_the_programs_choice(place):
    place(
        """
        from opentelemetry.trace import NoOpTracerProvider
        set_tracer_provider(NoOpTracerProvider())
        agent("bob", 6)
        print(type(trace.get_tracer_provider()).__name__)
        """,
        agent=OWN + AGENT,
    )
    ran = loopwatch("--", sys.executable, "agent.py")
    assert ran.stdout == "NoOpTracerProvider\n"
    assert "the program's own tracer provider is not watched" in ran.stderr
    assert "none was seen" in ran.stderr


def test_a_meter_provider_of_the_programs_own_has_our_metrics(place):
    place(
        """
        reader = InMemoryMetricReader()
        mine = MeterProvider([reader])
        metrics.set_meter_provider(mine)
        assert metrics.get_meter_provider() is mine
        agent("bob", 2)
        names = {m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics}
        print("loopwatch.tool.calls" in names)
        """,
        agent=OWN + AGENT,
    )
    ran = loopwatch("--", sys.executable, "agent.py")
    assert ran.stdout == "True\n"
    assert "Overriding" not in ran.stderr


INSTRUMENTATION = """
from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
class Some(BaseInstrumentor):
    tracer = None
    def instrumentation_dependencies(self): return ()
    def _instrument(self, **options):
        type(self).tracer = trace.get_tracer("some", tracer_provider=options.get("tracer_provider"))
    def _uninstrument(self, **options): type(self).tracer = None
class Broken(BaseInstrumentor):
    def instrumentation_dependencies(self): return ()
    def _uninstrument(self, **options): pass
    def _instrument(self, **options): raise RuntimeError
def act():
    if Some.tracer is None: return
    with Some.tracer.start_as_current_span("invoke_agent x", attributes={"gen_ai.operation.name": "invoke_agent"}):
        what = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"}
        with Some.tracer.start_as_current_span("execute_tool t", attributes=what): pass
"""


@pytest.fixture
def instrumented(place):
    """A library and its instrumentation, installed; returns the environment in which they are."""
    installed = Path("installed").absolute()
    info = installed / "some-1.0.dist-info"
    info.mkdir(parents=True)
    (installed / "some.py").write_text(INSTRUMENTATION)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    points = "[opentelemetry_instrumentor]\nsome = some:Some\nbroken = some:Broken\ngone = some.gone:Gone\n"
    (info / "entry_points.txt").write_text(points)
    return environment(PYTHONPATH=str(installed))


def test_installed_instrumentations_are_switched_on(place, instrumented):
    place("import some; some.act()", agent="")
    ran = loopwatch("--", sys.executable, "agent.py", env=instrumented)
    assert rows_of(ran.stderr)[0][2] == "1"
    assert "instrumentation 'broken' is left out: RuntimeError" in ran.stderr
    assert "gone" not in ran.stderr


@pytest.mark.parametrize("names", ["some, broken", "*"])
def test_instrumentations_that_are_switched_off_stay_off(place, instrumented, names):
    place("import some; some.act()", agent="")
    env = instrumented | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": names}
    ran = loopwatch("--", sys.executable, "agent.py", env=env)
    assert "none was seen" in ran.stderr
    assert "broken" not in ran.stderr


def test_a_program_that_instruments_by_itself_gets_its_way(place, instrumented):
    place(
        """
        import some
        some.Some().instrument(tracer_provider=provider)
        some.act()
        print(len(spans.get_finished_spans()))
        """,
        agent=OWN,
    )
    ran = loopwatch("--", sys.executable, "agent.py", env=instrumented)
    assert ran.stdout == "2\n"
    assert "already instrumented" not in ran.stderr
    assert len(rows_of(ran.stderr)) == 1


# --- how a program ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending, code",
    [("sys.exit(3)", 3), ("sys.exit('words')", 1), ("raise ValueError('mine')", 1), ("1 +", 1), ("", 0)],
)
def test_the_exit_code_and_the_traceback_are_the_programs(place, ending, code):
    path = place("")
    path.write_text(AGENT + f"import sys\nagent('bob', 1)\n{ending}\n")
    plain = subprocess.run([sys.executable, "agent.py"], capture_output=True, text=True, env=environment())
    ran = loopwatch("--", sys.executable, "agent.py")
    assert ran.returncode == plain.returncode == code
    assert ran.stderr.startswith(plain.stderr)
    assert "loopwatch: runs" in ran.stderr


def test_after_os_exit_there_is_nothing_to_say(place):
    place("agent('bob', 1); import os; os._exit(7)")
    ran = loopwatch("--", sys.executable, "agent.py")
    assert (ran.returncode, ran.stderr) == (7, "")


WAITING = """
import sys, time
with tracer.start_as_current_span("invoke_agent bob", attributes={"gen_ai.operation.name": "invoke_agent"}):
    what = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t", "gen_ai.tool.call.arguments": "{}"}
    with tracer.start_as_current_span("execute_tool t", attributes=what): pass
    try:
        print("ready", flush=True)
        time.sleep(40)
    except KeyboardInterrupt: sys.exit("interrupted")
"""


def signalled(number: int, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Start agent.py, and send it a signal when it is ready."""
    with subprocess.Popen(
        [*LOOPWATCH, "run", "--report", "out.json", "--", sys.executable, "agent.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() if env is None else env,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        err = process.communicate(timeout=40)[1]
        return process.returncode, err


def test_sigterm_ends_the_program_as_ever_and_the_runs_are_told(place):
    place(WAITING)
    code, err = signalled(signal.SIGTERM)
    assert code == -signal.SIGTERM
    (row,) = rows_of(err)
    assert row[1] == "cancelled"
    assert json.loads(Path("out.json").read_text())["totals"]["stop_reasons"] == {"cancelled": 1}


def test_a_handler_of_the_programs_own_is_left_alone(place):
    place("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" + WAITING)
    code, err = signalled(signal.SIGTERM)
    assert code == 9
    assert rows_of(err)


def test_sigint_reaches_the_program(place):
    place(WAITING)
    code, err = signalled(signal.SIGINT)
    assert code == 1
    assert err.startswith("interrupted\n")
    assert rows_of(err)


def test_a_signal_that_was_ignored_still_is(place):
    place("import signal; print(signal.getsignal(signal.SIGTERM).name)", agent="")
    command = [*LOOPWATCH, "run", "--", sys.executable, "agent.py"]
    program = (
        f"import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.execv({sys.executable!r}, {command!r})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert ran.stdout == "SIG_IGN\n"


def test_a_report_that_cannot_be_written_any_more_does_not_change_the_exit_code(place):
    Path("gone").mkdir()
    place("import shutil; agent('bob', 1); shutil.rmtree('gone')")
    ran = loopwatch("--report", "gone/out.json", "--", sys.executable, "agent.py")
    assert ran.returncode == 0
    assert "the report cannot be written" in ran.stderr
    assert rows_of(ran.stderr)


# --- where the telemetry goes -----------------------------------------------------------------------------------------


@pytest.fixture
def collector():
    """An OTLP receiver: (environment that sends to it, the requests it got by path)."""
    got: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        yield environment(**settings), got
        server.shutdown()


def exported(got: list[tuple[str, bytes]]) -> tuple[set[str], list[str], set[str]]:
    """The services, the names of spans and those of metrics that a collector got."""
    services, spans, metrics = set(), [], set()
    for path, body in got:
        if path.endswith("/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                spans += [span.name for scope in resource.scope_spans for span in scope.spans]
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                metrics |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    return services, spans, metrics


def test_spans_and_metrics_leave_by_otlp_where_it_is_set_up(place, collector):
    env, got = collector
    place("agent('bob', 2)")
    ran = loopwatch("--service-name", "support", "--", sys.executable, "agent.py", env=env)
    assert ran.returncode == 0
    services, spans, metrics = exported(got)
    assert services == {"support"}
    assert sorted(spans) == [
        "chat gpt-4o",
        "chat gpt-4o",
        "execute_tool search",
        "execute_tool search",
        "invoke_agent bob",
    ]
    assert {"loopwatch.runs", "loopwatch.run.tool_calls", "loopwatch.tool.calls"} <= metrics


def test_they_do_on_sigterm_as_well(place, collector):
    env, got = collector
    place(WAITING)
    code, _ = signalled(signal.SIGTERM, env)
    assert code == -signal.SIGTERM
    _, spans, metrics = exported(got)
    assert "execute_tool t" in spans
    assert "loopwatch.runs" in metrics


def test_metrics_are_served_while_the_program_runs(place):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place(
        f"""
        import urllib.request
        agent("bob", 2)
        page = urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode()
        print([line for line in page.splitlines() if line.startswith("loopwatch_runs_total")])
        """
    )
    ran = loopwatch("--prometheus-port", port, "--", sys.executable, "agent.py")
    assert 'agent="bob"' in ran.stdout


def test_a_port_that_is_taken_is_said_before_anything_runs(place):
    place("print('ran')", agent="")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = loopwatch("--prometheus-port", port, "--", sys.executable, "agent.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert str(port) in ran.stderr
    assert "Traceback" not in ran.stderr


# --- commands that cannot be run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, code, said",
    [
        ([], 2, "nothing to run"),
        (["ls", "-l"], 2, "ls is not a Python program"),
        (["no-such-program"], 127, "command not found: no-such-program"),
        (["./agent.py"], 126, "put python before it"),
        (["./words"], 126, "not an executable file"),
        ([sys.executable, "-I", "agent.py"], 2, "-I ignores PYTHONPATH"),
        ([sys.executable, "-sE", "agent.py"], 2, "-E ignores PYTHONPATH"),
        ([sys.executable, "-W", "ignore", "-S", "agent.py"], 2, "-S imports no sitecustomize"),
        (["./shebang"], 2, "-I ignores PYTHONPATH"),
        (["./python"], 126, "does not run"),
    ],
)
def test_a_command_that_cannot_be_guarded_is_not_run(place, command, code, said):
    place("print('ran')", agent="")
    place("", name="words", agent="")
    place("print('ran')", name="shebang", agent=f"#!{sys.executable} -I\n").chmod(0o755)
    place("", name="python", agent="#!/bin/sh\nexit 3\n").chmod(0o755)
    ran = loopwatch("--", *command)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "flags", [["-W", "I", "x"], ["-XI", "x"], ["-c", "-I"], ["-m", "-I"], ["x", "-I"], ["-uc", "-E"]]
)
def test_what_only_looks_like_such_a_flag_is_none(flags):
    assert prepare([sys.executable, *flags], Settings(), environment()).argv == [sys.executable, *flags]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--policy", "broken.yaml"], "broken.yaml:1"),
        (["--policy", "no-such-preset"], "no-such-preset"),
        (["--report", "no/such/folder/out.json"], "cannot be written"),
        (["--report", "."], "cannot be written"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_a_wrong_option_is_said_before_anything_runs(place, options, said):
    Path("broken.yaml").write_text("budgets: {max_tool_calls: no}\n")
    place("print('ran')", agent="")
    ran = loopwatch(*options, "--", sys.executable, "agent.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_a_python_that_has_not_got_the_package_is_named(tmp_path):
    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other" / "bin" / "python"
    with pytest.raises(CommandError, match=r"not installed for .*other/bin/python.*pip install"):
        prepare([str(python), "agent.py"], Settings(), environment())


def test_of_another_version_the_program_runs_all_the_same(place):
    place("print('ran')", agent="")
    launch = prepare([sys.executable, "agent.py"], Settings(), environment(LOOPWATCH_STRICT=""))
    told = json.loads(launch.environment[VARIABLE]) | {"of_tomorrow": 1}
    ran = subprocess.run(
        launch.argv, env=launch.environment | {VARIABLE: json.dumps(told)}, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "ran\n")
    assert ran.stderr == "loopwatch: could not start (ValueError): the program runs without it\n"


# --- the record -------------------------------------------------------------------------------------------------------


def ended(record: Record, agent: str, parent: Run | None = None, **facts) -> None:
    run = Run(agent, parent=parent, silent=True)
    record.add(run, RunOutcome(run.run_id, agent, facts.pop("stop_reason", StopReason.COMPLETED), **facts))


def test_what_a_child_used_is_summed_once():
    record, parent = Record(), Run("parent", silent=True)
    ended(record, "child", parent=parent, tool_calls=2, input_tokens=10, spend_usd=Decimal("0.1"))
    record.add(parent, RunOutcome("p", "parent", StopReason.COMPLETED, 5, 3, 30, 4, 0, Decimal("0.3"), False))
    said = report(record, {})
    assert said["totals"]["runs"] == 2
    assert (said["totals"]["tool_calls"], said["totals"]["input_tokens"]) == (5, 30)
    assert (said["totals"]["spend_usd"], said["totals"]["spend_complete"]) == ("0.3", False)
    assert said["runs"][0]["parent_id"] == parent.run_id
    assert ">= 0.3000" in table(record)[-1]


def test_the_table_shows_the_stopped_and_the_dear_ones_first():
    record = Record()
    for number in range(30):
        ended(record, f"a{number}", spend_usd=Decimal(number))
    ended(record, "stopped", stop_reason=StopReason.SPEND_BUDGET)
    lines = table(record)
    assert len(lines) == MAX_ROWS + 4
    assert lines[2].startswith("stopped")
    assert lines[3].startswith("a29")
    assert lines[-1].startswith("31 runs, 20 shown")


def test_a_long_life_takes_a_bounded_record():
    record = Record()
    for _ in range(MAX_KEPT + 5):
        ended(record, "a", tool_calls=1)
    said = report(record, {})
    assert (len(said["runs"]), said["runs_left_out"]) == (MAX_KEPT, 5)
    assert said["totals"]["tool_calls"] == said["totals"]["runs"] == MAX_KEPT + 5


def test_a_name_cannot_drive_the_terminal():
    record = Record()
    found = Finding("repeat", "\x1b[2Jsearch", "s", 4, "h")
    ended(record, "evil\x1b]0;x\x07\n" + "x" * 100, findings=(found, found))
    line = table(record)[2]
    assert line.isprintable()
    assert "?[2Jsearch x4 +1" in line


def test_partial_results_and_exceptions_are_not_kept_alive():
    record = Record()
    ended(record, "a", partial=object(), cause=ValueError())
    (row,) = record.taken()[0]
    assert (row.outcome.partial, row.outcome.cause) == (None, None)


def test_a_report_goes_to_a_device_as_to_any_file(place):
    place("agent('bob', 1)")
    for name in ("/dev/stdout", "/dev/null"):
        ran = loopwatch("--report", name, "--", sys.executable, "agent.py")
        assert ran.returncode == 0
        assert (json.loads(ran.stdout)["totals"]["runs"] if name == "/dev/stdout" else 1) == 1
    assert not Path("/dev/null").is_file()


def test_a_report_behind_a_link_replaces_the_file_and_not_the_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_report(str(tmp_path / "link"), {"a": 1})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "file").read_text()) == {"a": 1}


def test_of_many_findings_the_longest_are_kept():
    record = Record()
    found = [Finding("repeat", f"t{number}", str(number), number, "h") for number in range(100)]
    ended(record, "a", findings=tuple(found))
    (run,) = report(record, {})["runs"]
    assert run["findings_total"] == 100
    assert [one["repeats"] for one in run["findings"]] == list(range(99, 89, -1))
    assert "t99 x99 +99" in table(record)[2]


def test_a_report_is_there_as_a_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out.json"
    target.write_text("before")
    with pytest.raises(TypeError):
        write_report(str(target), {"no": object()})
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


# --- the examples, with the real libraries ----------------------------------------------------------------------------

RECORDED = {
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
}


def example(name: str, library: str, **more: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Run an example in the environment of its library; returns the process and its report."""
    made = subprocess.run([sys.executable, ROOT / ".ci" / "libraries", library], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(made.stderr.strip())
    python = made.stdout.split()[1]
    # This package is not installed there.
    env = environment(PYTHONPATH=str(ROOT), **more)
    script = ROOT / "examples" / "zero_code" / f"{name}.py"
    ran = loopwatch("--report", "out.json", "--", python, script, env=env, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran, json.loads(Path("out.json").read_text())


@pytest.mark.parametrize("name", ["pydantic_ai", "openai_agents", "langgraph"])
def test_the_examples_know_nothing_of_us(name):
    text = (ROOT / "examples" / "zero_code" / f"{name}_agent.py").read_text()
    code = text.partition("# ///\n")[2].lower()
    assert "loopwatch" not in text
    assert "opentelemetry" not in code
    assert "otel" not in code


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(900)
def test_example_pydantic_ai_loops(place):
    ran, said = example("pydantic_ai_agent", "pydantic_ai", **RECORDED)
    assert ran.stdout == "I cannot find this customer.\n"
    (run,) = said["runs"]
    assert (run["agent"], run["stop_reason"]) == ("support", "loop_detected")
    assert (run["tool_calls"], run["steps"], run["input_tokens"], run["output_tokens"]) == (7, 8, 8_880, 200)
    assert (run["spend_usd"], run["spend_complete"]) == ("0.0242", True)
    assert [(found["kind"], found["tool"]) for found in run["findings"]] == [("repeat", "find_customer")]


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(900)
def test_example_pydantic_ai_records_no_content_unless_told_to(place):
    ran, said = example("pydantic_ai_agent", "pydantic_ai")
    (run,) = said["runs"]
    assert (run["stop_reason"], run["tool_calls"], run["spend_usd"]) == ("completed", 7, "0.0242")
    assert said["tools_without_arguments"] == ["find_customer"]
    assert "spans of find_customer show no arguments" in ran.stderr


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(900)
def test_example_openai_agents_spends(place):
    Path("p.yaml").write_text("budgets: {max_spend_usd: 0.10}\n")
    ran, said = example("openai_agents_agent", "openai_agents", LOOPWATCH_POLICY=str(Path("p.yaml").absolute()))
    assert ran.stdout == "Everything that they say.\n"
    (run,) = said["runs"]
    assert (run["stop_reason"], run["tool_calls"], run["findings"]) == ("spend_budget", 6, [])
    assert (run["input_tokens"], run["output_tokens"]) == (203_000, 1_050)
    assert (run["spend_usd"], run["spend_complete"]) == ("0.518", True)


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(900)
def test_example_langgraph_is_healthy(place):
    ran, said = example("langgraph_agent", "langchain")
    assert ran.stdout == "Sun all day; the next train leaves at 9:12.\n"
    (run,) = said["runs"]
    assert (run["agent"], run["stop_reason"], run["tool_calls"], run["steps"]) == ("traveller", "completed", 2, 3)
    assert (run["input_tokens"], run["output_tokens"], run["findings"]) == (1_440, 90, [])
    assert (run["spend_usd"], run["spend_complete"]) == ("0.00027", True)
