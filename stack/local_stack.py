#!/usr/bin/env python3
"""The stack as plain processes of this machine, on 127.0.0.1: for `make stack-up`, and for the tests.

The files are those of docker-compose.yml, and so are the options of the programs. Changed are addresses (free ports, or
those that docker-compose.yml publishes) and, for a test, durations: all of them divided by one number, in the alert
rules as well. Grafana and the store of traces are not here: neither can be made from a registry of packages.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import yaml

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
sys.path.insert(0, str(HERE))

from pages import Pages, shown  # noqa: E402 - from this folder

Found = TypeVar("Found")

START_S: Final = 30.0
"""Seconds that a program may take until it is ready."""
STOP_S: Final = 5.0
POLL_S: Final = 0.05

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+)(ms|[smhdw])")
_DURATION: Final = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_IN_RANGE: Final = re.compile(r"\[([^\]]+)\]")
_OFFSET: Final = re.compile(r"\boffset\s+((?:\d+(?:ms|[smhdw]))+)")

SHORTEST_MS: Final = 500
"""No duration gets shorter, and a test scrapes and evaluates so often."""
SHORTEST_RANGE_MS: Final = 2000
"""Four scrapes: what a rate needs."""
ABSENCE_MS: Final = 10_000
"""An alert on absence waits at least so long: Prometheus scrapes for the first time 5 s after its start."""


class MissingError(Exception):
    """A program is not on this machine; the message says how to get it."""


def programs() -> dict[str, Path]:
    """Name -> path of every program.

    Raises:
        MissingError: Where one is not there.
    """
    asked = [sys.executable, str(ROOT / ".ci" / "stack"), "--check"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if said.returncode:
        raise MissingError(said.stderr.strip())
    return {name: Path(path) for name, path in (line.split(" ", 1) for line in said.stdout.splitlines())}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_until(what: str, found: Callable[[], Found], timeout_s: float = START_S) -> Found:
    """What *found* returns, once it is true. A network that does not answer yet is no answer.

    Raises:
        TimeoutError: It did not become true; the message has what it was last.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if value := found():
                return value
            last = value
        except (OSError, KeyError, IndexError) as error:
            last = error
        time.sleep(POLL_S)
    raise TimeoutError(f"{what}: not in {timeout_s} s; last: {last!r}")


def shorter(duration: str, factor: float, at_least_ms: int = SHORTEST_MS) -> str:
    """*duration* divided by *factor*, in milliseconds."""
    length_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(duration))
    return f"{max(at_least_ms, round(length_ms / factor))}ms"


def shorter_expression(expression: str, factor: float) -> str:
    """A PromQL expression with every window and offset divided by *factor*."""

    def in_range(mark: re.Match[str]) -> str:
        window, colon, step = mark[1].partition(":")
        shortened = shorter(window, factor, SHORTEST_RANGE_MS) + colon
        return f"[{shortened}{shorter(step, factor) if step else ''}]"

    ranged = _IN_RANGE.sub(in_range, expression)
    return _OFFSET.sub(lambda mark: f"offset {shorter(mark[1], factor)}", ranged)


def shorter_rules(rules: dict[str, Any], factor: float) -> dict[str, Any]:
    """A rule file with every duration divided by *factor*; thresholds and texts stay."""
    for group in rules["groups"]:
        group["interval"] = f"{SHORTEST_MS}ms"
        for rule in group["rules"]:
            at_least = ABSENCE_MS if "absent(" in rule["expr"] else SHORTEST_MS
            rule["expr"] = shorter_expression(rule["expr"], factor)
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = shorter(str(rule[key]), factor, at_least)
    return rules


def changed(value: Any, leaf: Callable[[str], str]) -> Any:
    """*value*, a document of YAML, with *leaf* of each of its strings."""
    if isinstance(value, dict):
        return {key: changed(item, leaf) for key, item in value.items()}
    if isinstance(value, list):
        return [changed(item, leaf) for item in value]
    return leaf(value) if isinstance(value, str) else value


class Program:
    """One process, that can be killed and started again on the same ports.

    Args:
        name: Of its log.
        command: Program and options.
        folder: Working directory; its log is there.
        ready: The address that answers 200 when it is ready.
        env: Variables of the environment besides those of this process.
    """

    def __init__(
        self, name: str, command: list[str], folder: Path, ready: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.command, self.folder, self.ready = name, command, folder, ready
        self.log = folder / f"{name}.log"
        self._env = os.environ | dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        with self.log.open("ab") as log:
            # A group of its own: Ctrl-C is for whoever started it, who stops it in order.
            self._process = subprocess.Popen(  # noqa: S603 - ours
                self.command, cwd=self.folder, env=self._env, stdout=log, stderr=log, process_group=0
            )

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ChildProcessError: It ended; the message has the end of its log.
            TimeoutError: It did not answer.
        """

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise ChildProcessError(f"{self.name} ended: {self.log.read_text(errors='replace')[-2000:]}")
            with urllib.request.urlopen(self.ready, timeout=2) as answer:  # noqa: S310 - http, ours
                return bool(answer.status == 200)

        deadline = time.monotonic() + START_S
        while True:
            try:
                if answers():
                    return
            except ChildProcessError:
                raise
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.name} does not answer at {self.ready}: {error}") from error
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class LocalStack:
    """Collector, Prometheus, Alertmanager, and a webhook that keeps the pages.

    Args:
        folder: For configuration, data and logs; must be there.
        ports: ``collector_grpc``, ``collector_http``, ``prometheus``, ``alertmanager``; those not named are free ones.
        factor: Every duration is divided by it. 1 leaves the files as they are.
        traces: ``host:port`` of an OTLP/gRPC receiver for the spans; nobody there is no fault.
        features: Features of Prometheus besides those of docker-compose.yml.
        edit_rules: Called with the rules, after they were made shorter; returns those to run.
        show: Called with each page.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ports: Mapping[str, int] | None = None,
        factor: float = 1,
        traces: str | None = None,
        features: tuple[str, ...] = (),
        edit_rules: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        show: Callable[[Any], None] | None = None,
    ) -> None:
        self.folder, self.factor = folder, factor
        self._made = programs()
        self._compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        names = ("collector_grpc", "collector_http", "collector_metrics", "collector_own", "collector_health")
        self.ports = {name: free_port() for name in (*names, "prometheus", "alertmanager")} | dict(ports or {})
        self.pages = Pages(show=show)
        at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.otlp_grpc, self.otlp_http = f"http://{at['collector_grpc']}", f"http://{at['collector_http']}"
        self.prometheus_url, self.alertmanager_url = f"http://{at['prometheus']}", f"http://{at['alertmanager']}"
        self.prometheus_otlp = f"{self.prometheus_url}/api/v1/otlp/v1/metrics"
        self._addresses = {
            "collector:8889": at["collector_metrics"],
            "collector:8888": at["collector_own"],
            "localhost:9090": at["prometheus"],
            "alertmanager:9093": at["alertmanager"],
            "pages:9095": self.pages.address,
        }
        self._write_configuration(edit_rules)
        self.collector = Program(
            "otelcol",
            [str(self._made["otelcol"]), f"--config={HERE / 'collector.yaml'}"],
            folder,
            f"http://{at['collector_health']}",
            {
                "COLLECTOR_GRPC": at["collector_grpc"],
                "COLLECTOR_HTTP": at["collector_http"],
                "COLLECTOR_METRICS": at["collector_metrics"],
                "COLLECTOR_HEALTH": at["collector_health"],
                "COLLECTOR_OWN_HOST": "127.0.0.1",
                "COLLECTOR_OWN_PORT": str(self.ports["collector_own"]),
                "COLLECTOR_BATCH": shorter("1s", factor, 100),
                "TRACES_ENDPOINT": traces or f"127.0.0.1:{free_port()}",
            },
        )
        own_prometheus = [
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={at['prometheus']}",
            f"--web.external-url={self.prometheus_url}",
        ]
        if features:
            own_prometheus.append(f"--enable-feature={','.join(features)}")
        if factor != 1:
            own_prometheus += [
                "--rules.alert.resend-delay=1s",
                "--rules.alert.for-grace-period=1s",
                # OTLP has no marker for the end of a series, so that this is how long one stays.
                f"--query.lookback-delta={shorter('5m', factor, SHORTEST_RANGE_MS)}",
            ]
        self.prometheus = Program(
            "prometheus",
            self._command("prometheus", own_prometheus),
            folder,
            f"{self.prometheus_url}/-/ready",
        )
        own_alertmanager = [
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={at['alertmanager']}",
            f"--web.external-url={self.alertmanager_url}",
        ]
        self.alertmanager = Program(
            "alertmanager",
            self._command("alertmanager", own_alertmanager),
            folder,
            f"{self.alertmanager_url}/-/ready",
        )

    def _command(self, program: str, own: list[str]) -> list[str]:
        """The options of docker-compose.yml, with *own* in the place of those of the same name."""
        named = {option.partition("=")[0] for option in own if not option.startswith("--enable-feature")}
        theirs = [option for option in self._compose[program]["command"] if option.partition("=")[0] not in named]
        return [str(self._made[program]), *theirs, *own]

    def _write_configuration(self, edit_rules: Callable[[dict[str, Any]], dict[str, Any]] | None) -> None:
        def leaf(text: str) -> str:
            if text in self._addresses:
                return self._addresses[text]
            address = urllib.parse.urlsplit(text)
            if address.scheme == "http" and address.netloc in self._addresses:
                return text.replace(address.netloc, self._addresses[address.netloc])
            if self.factor != 1 and _DURATION.fullmatch(text):
                return shorter(text, self.factor)
            return text

        for name in ("prometheus.yml", "alertmanager.yml"):
            shipped = yaml.safe_load((HERE / name).read_text())
            (self.folder / name).write_text(yaml.safe_dump(changed(shipped, leaf), sort_keys=False))
        rules = yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text())
        if self.factor != 1:
            rules = shorter_rules(rules, self.factor)
        if edit_rules is not None:
            rules = edit_rules(rules)
        (self.folder / "loopwatch.rules.yml").write_text(yaml.safe_dump(rules, sort_keys=False, width=1000))
        (self.folder / "targets").mkdir(exist_ok=True)
        self.scrape()

    def scrape(self, *addresses: str, job: str = "pages") -> None:
        """Have Prometheus scrape the pages of agents at these addresses (``host:port``), and no others."""
        targets = [{"targets": list(addresses), "labels": {"job": job}}] if addresses else []
        fresh = self.folder / "targets" / "agents.new"
        fresh.write_text(yaml.safe_dump(targets))
        fresh.replace(self.folder / "targets" / "agents.yml")

    def __enter__(self) -> Self:
        try:
            for program in self._all():
                program.start()
            for program in self._all():
                program.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._all()):
            program.stop()
        self.pages.close()

    def _all(self) -> tuple[Program, ...]:
        return (self.alertmanager, self.collector, self.prometheus)

    def ask(self, path: str, **parameters: str | float) -> Any:
        """``data`` of an answer of Prometheus' HTTP API, for example ``ask("query", query="up")``."""
        address = f"{self.prometheus_url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - http, ours
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {parameters}: {error.read().decode(errors='replace')}") from error

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant vector, now."""
        result = self.ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def value(self, expression: str) -> float | None:
        """The value of the one series; None where there is none."""
        found = self.query(expression)
        if len(found) > 1:
            raise ValueError(f"{expression}: {len(found)} series")
        return found[0][1] if found else None

    def alerts(self, state: str = "firing") -> list[dict[str, Any]]:
        """The alerts of Prometheus in this state, but for the watchdog."""
        return [
            alert
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == state and alert["labels"]["alertname"] != "LoopwatchWatchdog"
        ]

    def tool(self, name: str, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run promtool or amtool in :attr:`folder`; *given* is its standard input."""
        command = [str(self._made[name]), *arguments]
        return subprocess.run(  # noqa: S603 - ours
            command, input=given or "", capture_output=True, text=True, check=False, cwd=self.folder
        )


def _addresses(stack: LocalStack) -> Iterator[str]:
    yield f"Prometheus    {stack.prometheus_url} (API; this build has no web pages)"
    yield f"Alertmanager  {stack.alertmanager_url} (API; this build has no web pages)"
    yield f"OTLP          {stack.otlp_grpc} (gRPC), {stack.otlp_http} (HTTP)"
    yield f"logs          {stack.folder}"
    yield "pages come here; Ctrl-C ends all of it"


def main() -> int:
    """Run the stack and the demo agents until Ctrl-C or SIGTERM."""
    published = {"collector_grpc": 4317, "collector_http": 4318, "prometheus": 9090, "alertmanager": 9093}
    ended = threading.Event()
    # Whoever asks once more meanwhile changes nothing: all of it is stopped, in a bounded time.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with ExitStack() as end:
        folder = Path(end.enter_context(tempfile.TemporaryDirectory(prefix="loopwatch-stack-")))
        try:
            stack = LocalStack(folder, ports=published, show=lambda page: print(shown(page), flush=True))  # noqa: T201
            end.enter_context(stack)
        except (MissingError, ChildProcessError, TimeoutError) as error:
            sys.stderr.write(f"stack: {error}\n")
            return 1
        demo = [sys.executable, "-m", "otel_loopwatch"]
        agents = Program(
            "demo",
            [*demo, "run", "--", *demo, "demo", "--loop"],
            folder,
            f"{stack.prometheus_url}/-/ready",
            {
                "PYTHONPATH": str(ROOT),
                "OTEL_SERVICE_NAME": "loopwatch-demo",
                "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_grpc,
                "OTEL_METRIC_EXPORT_INTERVAL": "5000",
            },
        )
        end.callback(agents.stop)
        agents.start()
        for line in _addresses(stack):
            print(line, flush=True)  # noqa: T201 - it is for people
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
