"""The entry point: by hand, under ``opentelemetry-instrument``, and from a declarative configuration file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from otel_loopwatch.instrumentor import LoopwatchInstrumentor
from otel_loopwatch.version import __version__

ROOT = Path(__file__).parent.parent

AGENT = """
import otel_loopwatch as lw
from opentelemetry import trace

tracer = trace.get_tracer("some.library")
with tracer.start_as_current_span("invoke_agent bob", attributes={"gen_ai.operation.name": "invoke_agent"}):
    for number in range(5):
        what = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t", "gen_ai.tool.call.arguments": "{}"}
        with tracer.start_as_current_span("execute_tool t", attributes=what) as span:
            span.set_attribute("gen_ai.tool.call.result", "nothing")
    for run in lw.runs():
        print(run.outcome.tool_calls, run.outcome.stop_reason.value)
print("done")
"""


@pytest.fixture
def provider():
    made = TracerProvider()
    yield made
    LoopwatchInstrumentor().uninstrument()
    made.shutdown()


def calls_seen(provider: TracerProvider, calls: int = 1) -> int | None:
    """What the guard counts of a run of *calls* calls on *provider*; ``None`` where there is no guard."""
    tracer = provider.get_tracer("some.library")
    with tracer.start_as_current_span("invoke_agent a", attributes={"gen_ai.operation.name": "invoke_agent"}):
        for number in range(calls):
            what = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"}
            shown = {"gen_ai.tool.call.arguments": f'{{"n": {number}}}'}
            with tracer.start_as_current_span("execute_tool t", attributes=what | shown):
                pass
        runs = lw.runs()
        return runs[0].outcome.tool_calls if runs else None


def test_it_guards_from_instrument_to_uninstrument(provider):
    instrumentor = LoopwatchInstrumentor()
    assert calls_seen(provider) is None
    instrumentor.instrument(tracer_provider=provider)
    assert calls_seen(provider, 3) == 3
    instrumentor.uninstrument()
    assert calls_seen(provider) is None
    instrumentor.instrument(tracer_provider=provider)
    assert calls_seen(provider, 2) == 2


def test_twice_is_once(provider, caplog):
    LoopwatchInstrumentor().instrument(tracer_provider=provider)
    LoopwatchInstrumentor().instrument(tracer_provider=provider)
    assert calls_seen(provider, 2) == 2
    assert "already instrumented" in caplog.text


def test_it_takes_the_options_of_the_processor(provider, tmp_path):
    (tmp_path / "p.yaml").write_text("budgets: {max_tool_calls: 2}\n")
    LoopwatchInstrumentor().instrument(
        tracer_provider=provider, policy=str(tmp_path / "p.yaml"), raise_on_start=True, idle_limit_s=60
    )
    with pytest.raises(lw.BudgetExceeded):
        calls_seen(provider, 5)


def test_a_preset_is_a_policy(provider):
    LoopwatchInstrumentor().instrument(tracer_provider=provider, policy="safe")
    tracer = provider.get_tracer("some.library")
    what = {"gen_ai.operation.name": "invoke_agent"}
    with tracer.start_as_current_span("invoke_agent a", attributes=what):
        calls_seen(provider)
        assert [run.policy for run in lw.runs()] == [lw.Policy.preset("safe")]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"max_repeats": 3}, "max_repeats: no option of loopwatch; it has idle_limit_s, policy, raise_on_start"),
        ({"policy": "no/such.yaml"}, "no/such.yaml"),
        ({"policy": 3}, "policy"),
        ({"idle_limit_s": -1}, "idle_limit_s"),
        ({"idle_limit_s": "long"}, "not guarding"),
    ],
)
def test_wrong_options_are_an_error_in_the_log_and_nothing_else(provider, caplog, options, said):
    LoopwatchInstrumentor().instrument(tracer_provider=provider, **options)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("otel-loopwatch: not guarding: ")
    assert said in record.getMessage()
    assert calls_seen(provider) is None


def test_without_a_provider_that_takes_processors_it_says_so(provider, caplog):
    LoopwatchInstrumentor().instrument(tracer_provider=object())
    assert "takes no span processors" in caplog.text


# --- as the tools of OpenTelemetry load it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python() -> str:
    """A Python with OpenTelemetry's distribution and its declarative configuration."""
    made = subprocess.run([sys.executable, ROOT / ".ci" / "libraries", "zero_code"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(made.stderr.strip())
    return made.stdout.split()[1]


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """One in which this checkout is installed: importable, and with the entry points that pyproject.toml declares."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "opentelemetry_instrumentor"
    ]
    info = tmp_path / "installed" / f"otel_loopwatch-{__version__}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: otel-loopwatch\nVersion: {__version__}\n")
    lines = ["[opentelemetry_instrumentor]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
    exporters = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    return kept | exporters | {"PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{ROOT}"}


def instrumented(python: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = Path(python).with_name("opentelemetry-instrument")
    return subprocess.run([command, python, "agent.py"], capture_output=True, text=True, env=environment, timeout=50)


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(600)
def test_opentelemetry_instrument_loads_it(python, environment):
    ran = instrumented(python, environment)
    assert ran.stdout == "5 loop_detected\ndone\n", ran.stderr


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(600)
def test_it_is_switched_off_like_any_instrumentation(python, environment):
    ran = instrumented(python, environment | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "loopwatch"})
    assert ran.stdout == "done\n", ran.stderr


def declared(path: Path, options: str) -> None:
    path.write_text(
        'file_format: "1.0"\n'
        "tracer_provider: {processors: [{simple: {exporter: {console: {}}}}]}\n"
        f"instrumentation/development: {{python: {{loopwatch: {{{options}}}}}}}\n"
    )


@pytest.mark.libraries
@pytest.mark.project
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options, out, err",
    [
        ("policy: p.yaml", "5 tool_call_budget", ""),
        ("policy: safe, idle_limit_s: 60", "5 loop_detected", ""),
        ("", "5 loop_detected", ""),
        ("policy: gone.yaml", "", "not guarding: gone.yaml"),
        ("no_such: 1", "", "not guarding: no_such: no option of loopwatch"),
        ("enabled: false", "", ""),
    ],
)
def test_a_declarative_configuration_file_loads_it_with_options(python, environment, tmp_path, options, out, err):
    (tmp_path / "p.yaml").write_text("budgets: {max_tool_calls: 2}\nloops: {action: observe}\n")
    declared(tmp_path / "otel.yaml", options)
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "loopwatch"} if "enabled" in options else {}
    ran = instrumented(python, environment | {"OTEL_CONFIG_FILE": "otel.yaml"} | off)
    assert [line for line in ran.stdout.splitlines() if line.endswith(("_budget", "_detected"))] == [out] * bool(out)
    assert "done" in ran.stdout.splitlines()
    assert err in ran.stderr
    assert ("not guarding" in ran.stderr) == bool(err)
