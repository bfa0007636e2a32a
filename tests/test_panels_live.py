"""Every query of every panel, asked of a real Prometheus with the shipped rules: in the demo, and when nothing runs.

Durations are divided by FACTOR, in the rules and in the panels alike.
"""

# ruff: noqa: E402 - stack/ is a folder of programs, and no package

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from dashboards import queries

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "stack"))

from local_stack import free_port, shorter_expression, shorter_rules

pytestmark = [pytest.mark.project, pytest.mark.timeout(180)]

FACTOR = 120
SCRAPE = "200ms"

ALERT_TABLE = "Alerts that fire"
"""Rightly empty while all is well."""

ONE_RUN = """
import sys
import otel_loopwatch as lw
from otel_loopwatch.demo.show import metrics_page

@lw.watch_tool
def search(query):
    return query

with metrics_page(int(sys.argv[1])):
    with lw.watch_run("once") as run:
        run.record_usage(model="gpt-5-mini", input_tokens=10, output_tokens=10)
        search("x")
    sys.stdin.read()
"""


def prometheus_program() -> str:
    built = ROOT / ".stack" / "bin" / "prometheus"
    found = str(built) if built.exists() else shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not here: make stack, or apt-get install prometheus")
    return found


def end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def wait_until(done: Callable[[], bool], timeout_s: float = 90) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            if done():
                return True
        except urllib.error.URLError:
            pass
        time.sleep(0.3)
    return done()


@pytest.fixture
def watched(tmp_path) -> Iterator[Callable[[list[str]], str]]:
    """``watched(command)``: start it, a port for its page behind, and a Prometheus for it; gives its address."""
    program = prometheus_program()
    started = []

    def start(command: list[str]) -> str:
        page, port = free_port(), free_port()
        rules = yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text())
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(shorter_rules(rules, FACTOR)))
        scraped = [{"job_name": "demo", "static_configs": [{"targets": [f"127.0.0.1:{page}"]}]}]
        intervals = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE}
        configuration = {"global": intervals, "rule_files": ["rules.yml"], "scrape_configs": scraped}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        env = os.environ | {"LOOPWATCH_STRICT": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen([*command, str(page)], stdin=subprocess.PIPE, env=env, **quiet))
        listen = f"--web.listen-address=127.0.0.1:{port}"
        config = f"--config.file={tmp_path}/prometheus.yml"
        store = f"--storage.tsdb.path={tmp_path}/data"
        started.append(subprocess.Popen([program, config, store, listen], cwd=tmp_path, **quiet))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in reversed(started):
        end(process)
        if process.stdin:
            process.stdin.close()


def walk(url: str) -> dict[tuple[str, str, str], list[dict]]:
    """(dashboard, panel, query) -> samples. A query that Prometheus refuses raises."""
    return {
        (query.dashboard, query.panel, query.expr): queries.ask(url, shorter_expression(query.expr, FACTOR))
        for query in queries.queries()
        if query.kind != "annotation"
    }


def empty(answers: dict[tuple[str, str, str], list[dict]]) -> set[tuple[str, str]]:
    return {(board, panel) for (board, panel, _), samples in answers.items() if not samples and panel != ALERT_TABLE}


def not_numbers(answers: dict[tuple[str, str, str], list[dict]]) -> list[tuple[str, str, str]]:
    return [
        query for query, samples in answers.items() if any(not math.isfinite(float(s["value"][1])) for s in samples)
    ]


def test_every_panel_shows_data_while_the_demo_runs(watched):
    url = watched([sys.executable, "-m", "otel_loopwatch", "demo", "--loop", "--prometheus-port"])
    assert wait_until(lambda: not empty(walk(url))), empty(walk(url))
    answers = walk(url)
    assert not_numbers(answers) == []
    assert len(answers) > 70
    for query in queries.queries():
        if query.kind == "annotation":
            queries.ask(url, shorter_expression(query.expr, FACTOR))


def test_no_panel_shows_nan_when_nothing_runs_any_more(watched):
    url = watched([sys.executable, "-c", ONE_RUN])
    ended = shorter_expression("sum(increase(loopwatch_run_tool_calls_count[5m])) == 0", FACTOR)
    assert wait_until(lambda: bool(queries.ask(url, ended)))
    unfiltered = "histogram_quantile(0.5, sum by (le) (rate(loopwatch_run_tool_calls_bucket[2s])))"
    assert [sample["value"][1] for sample in queries.ask(url, unfiltered)] == ["NaN"]
    answers = walk(url)
    assert not_numbers(answers) == []
    shown = {panel for (_, panel, _), samples in answers.items() if samples}
    assert {"Runs open", "Processes guarded", "Faults of the guard"} <= shown
    assert not {"Calls a run, 95th percentile", "Share of aborted runs"} & shown


def test_no_panel_shows_nan_where_nothing_ever_ran(watched):
    nothing = ONE_RUN.partition("    with lw.watch_run")[0] + "    sys.stdin.read()\n"
    url = watched([sys.executable, "-c", nothing])
    assert wait_until(lambda: bool(queries.ask(url, "loopwatch_build_info")))
    answers = walk(url)
    assert not_numbers(answers) == []
    shown = {panel for (_, panel, _), samples in answers.items() if samples}
    assert {"Processes guarded", "Tools decorated", "Calls without a price"} <= shown
