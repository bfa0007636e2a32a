"""The subcommands of ``loopwatch``. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from otel_loopwatch import export_command
from otel_loopwatch.errors import LoopwatchError
from otel_loopwatch.policy import ENVIRONMENT_VARIABLE, PRESETS, Policy, Retry, operators_policy
from otel_loopwatch.version import __version__

if TYPE_CHECKING:
    from otel_loopwatch.demo import Report as DemoReport
    from otel_loopwatch.replay import Report

__all__ = ["app"]

INTERRUPTED = 130
NOBODY_READS = 141
"""Exit code where the reader of stdout went away, as of a process that SIGPIPE ended."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 a recorded run could not be read and was skipped; 2 a wrong option, policy or port; "
    "130 interrupted; 141 the reader of stdout went away."
)

MAX_REPORTED = 20
"""Skipped records that are named on stderr; ``--json`` has them all."""

PACE_S = 0.08
"""Seconds that a scripted model takes over a turn, so that there is something to watch."""

app = typer.Typer(
    name="loopwatch",
    help="Stops looping and overspending agents while they run, and tells OpenTelemetry why.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(export_command.app, name="export")


def _version(wanted: bool) -> None:  # noqa: FBT001 - the shape of a typer callback
    if wanted:
        _write(f"loopwatch {__version__}\n")
        raise typer.Exit


@app.callback()
def _loopwatch(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of the command itself."""


@app.command(epilog=EXIT_CODES)
def demo(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, one object a round.")] = False,
    prometheus_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics on this port of 127.0.0.1 meanwhile; 0 takes a free one."),
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Go on until Ctrl-C or SIGTERM, for a dashboard.")] = False,
    pace: Annotated[float, typer.Option(min=0, max=10, help="Seconds a scripted model takes over a turn.")] = PACE_S,
) -> None:
    """Run five bundled agents through the guard: no network, no keys.

    One is healthy, one repeats itself until it is given a hint, one goes in a circle, one would never end, one polls.
    """
    from otel_loopwatch.demo import AGENTS, work  # noqa: PLC0415 - only where the demo runs
    from otel_loopwatch.demo.show import metrics_page, progress_bar, reports, results  # noqa: PLC0415

    console = Console(stderr=True)
    stopped = threading.Event()
    done: list[DemoReport] = []
    with ExitStack() as stack:
        stack.enter_context(_interruptible())
        if prometheus_port is not None:
            try:
                page = stack.enter_context(metrics_page(prometheus_port))
            except OSError as error:
                raise LoopwatchError(f"port {prometheus_port} cannot be had: {error.strerror}") from error
            console.print(f"metrics: {page}", highlight=False, soft_wrap=True)
        if loop:
            stack.enter_context(_stopped_by_signals(stopped))
            console.print("running until Ctrl-C", highlight=False)
        stack.enter_context(reports(console))
        bar = stack.enter_context(progress_bar(console))
        task = bar.add_task("", total=len(AGENTS))

        def turn(agent: str, step: int) -> None:
            bar.update(task, description=f"{agent}, turn {step}")
            stopped.wait(pace)

        for number in _rounds(loop, stopped):
            bar.reset(task)
            done = []
            for agent in AGENTS:
                done.append(work(agent, turn=turn))
                bar.advance(task)
            if as_json:
                _print_json({"round": number, "agents": [report.as_dict() for report in done]}, one_line=loop)
    if not as_json:
        _print(lambda width: results(done, width))


def _rounds(loop: bool, stopped: threading.Event) -> Iterator[int]:  # noqa: FBT001 - an option of the command
    """1, or with *loop* 1, 2, 3 ... until *stopped* is set."""
    number = 1
    yield number
    while loop and not stopped.is_set():
        number += 1
        yield number


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the command without a traceback, whatever typer's version makes of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _stopped_by_signals(stopped: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM set *stopped*; a second one does what it always does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: object) -> None:  # noqa: ARG001 - the shape of a signal handler
        stopped.set()
        restore()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()


@app.command(epilog=EXIT_CODES)
def replay(
    files: Annotated[
        list[str], typer.Argument(help="Recorded runs, JSON lines (.gz or not); - is stdin.", metavar="FILES...")
    ],
    *,
    policy: Annotated[str, typer.Option(help="A policy file, or the name of a preset.")] = "default",
    labels: Annotated[str | None, typer.Option(help="Labels (JSON lines) to score the guard against.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout: every run, sources, scores.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="List so many of the runs that would have been acted on.")] = 20,
) -> None:
    """Play recorded runs through the guard: which calls would it have answered with a hint, or refused?

    The recorded model saw none of the hints and went on regardless, so what is called an abort is one at the latest.
    """
    from otel_loopwatch.replay import replay as play_files  # noqa: PLC0415 - only where something is replayed

    chosen = _policy(policy)
    console = Console(stderr=True)
    sizes = [Path(file).stat().st_size if Path(file).is_file() else None for file in files]
    # A pipe has no size: then the bar only shows that something happens.
    total = sum(size for size in sizes if size is not None) if None not in sizes else None
    with _interruptible(), Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replay", total=total)
        report = play_files(files, chosen, labels=labels, on_bytes=lambda read: bar.advance(task, read))
    for skipped in report.skipped[:MAX_REPORTED]:
        sys.stderr.write(f"loopwatch: skipped {skipped}\n")
    if len(report.skipped) > MAX_REPORTED:
        sys.stderr.write(f"loopwatch: skipped {len(report.skipped) - MAX_REPORTED} more\n")
    if as_json:
        _print_json(report.as_dict())
    else:
        _print(lambda _: Group(*_acted_on(report, limit), *report.tables()))
        _write(f"{len(report.runs):,} runs played, {len(report.skipped):,} records skipped\n")
    raise typer.Exit(report.exit_code)


def _acted_on(report: Report, limit: int) -> Iterator[Table]:
    """The first *limit* runs that would have been acted on; nothing where there are none."""
    runs = [run for run in report.runs if run.first_action is not None]
    if not (limit and runs):
        return
    shown = runs[:limit]
    title = "Runs acted on" if len(shown) == len(runs) else f"Runs acted on, {len(shown)} of {len(runs):,}"
    table = Table(title=title, caption="Calls are counted from 0.")
    table.add_column("run", overflow="fold")
    table.add_column("calls", justify="right")
    table.add_column("first action")
    table.add_column("abort")
    for run in shown:
        first, abort = (
            "-" if acted is None else f"call {acted.call_index}: {said} ({acted.kind})"
            for acted, said in (
                (run.first_action, run.first_action and run.first_action.action),
                (run.abort, run.abort and run.abort.reason),
            )
        )
        table.add_row(escape(run.run_id), str(run.calls), first, abort)
    yield table


@app.command(
    epilog="Exit codes: the program's own; 127 it was not found; 126 it cannot be run; 2 it is no Python program, or "
    "an option or policy is wrong.",
    context_settings={"allow_interspersed_args": False},
)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="The program: python agent.py ...", metavar="-- COMMAND...")
    ] = None,
    *,
    policy: Annotated[
        str | None, typer.Option(help="A policy file, or the name of a preset; wins over LOOPWATCH_POLICY.")
    ] = None,
    report: Annotated[str | None, typer.Option(help="Write what became of every run to this file, as JSON.")] = None,
    prometheus_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics on this port of 127.0.0.1; 0 takes a free one."),
    ] = None,
    service_name: Annotated[
        str | None, typer.Option(help="service.name of the telemetry; else that of OTEL_SERVICE_NAME.")
    ] = None,
) -> None:
    """Run a Python program with the guard in it, without a change of its code, and print its runs when it ends.

    Spans and metrics go where OTEL_EXPORTER_OTLP_ENDPOINT says, and nowhere without it. The program's own processes are
    not guarded: put loopwatch run before the one that is to be.
    """
    from otel_loopwatch.launch import child  # noqa: PLC0415 - only where something is run
    from otel_loopwatch.launch.command import CommandError, prepare, replace_process  # noqa: PLC0415
    from otel_loopwatch.launch.settings import Settings  # noqa: PLC0415

    environment = dict(os.environ)
    if policy is not None:
        _policy(policy)
        environment[ENVIRONMENT_VARIABLE] = policy if policy in PRESETS else str(Path(policy).absolute())
    else:
        operators_policy()
    settings = Settings(
        report=None if report is None else str(_writable(report)),
        prometheus_port=prometheus_port,
        service_name=service_name,
    )
    try:
        replace_process(prepare(command or [], settings.over(child.launched()), environment))
    except CommandError as error:
        sys.stderr.write(f"loopwatch: {error}\n")
        raise typer.Exit(error.exit_code) from None


def _writable(report: str) -> Path:
    """The absolute path of *report*: the program may change its directory.

    Raises:
        LoopwatchError: Where it cannot be written, which is better known before the program has run than after.
    """
    from otel_loopwatch.launch.record import is_device  # noqa: PLC0415 - only where something is run

    path = Path(report).absolute()
    place, needed = (path, os.W_OK) if is_device(path) else (path.parent, os.W_OK | os.X_OK)
    if path.is_dir() or not os.access(place, needed):
        raise LoopwatchError(f"the report cannot be written to {path}")
    return path


@app.command(epilog=EXIT_CODES)
def check(
    policy: Annotated[str, typer.Argument(help="A policy file (.yaml, .yml, .toml) or the name of a preset.")],
) -> None:
    """Check a policy file, and print what holds under it, a line a key."""
    _write("".join(f"{key}: {value}\n" for key, value in _settings(_policy(policy))))


def _policy(name: str) -> Policy:
    """The policy in a file, or a preset by name. A preset wins over a file of that name: write ``./safe`` for the file.

    Raises:
        PolicyError: Where it is neither, or the file is no policy.
    """
    if name in PRESETS or not (Path(name).suffix or os.sep in name):
        return Policy.preset(name)
    return Policy.load(name)


def _settings(policy: Policy) -> Iterator[tuple[str, str]]:
    """Every key that says something, as it is written in a policy file, and its value."""
    yield "mode", policy.mode
    sections: dict[str, Any] = {"budgets": policy.budgets, "loops": policy.loops, "tools.default": policy.default_tool}
    sections |= {f"tools.per_tool.{name}": rules for name, rules in policy.tools.items()}
    for section, rules in sections.items():
        for item in fields(rules):
            value = getattr(rules, item.name)
            if isinstance(value, Retry):
                yield f"{section}.retries.max_attempts", str(value.max_attempts)
                yield f"{section}.retries.retryable_status", _shown(value.statuses)
            elif value is not None:
                yield f"{section}.{item.name}", _shown(value)
    for key in ("allow", "deny"):
        if names := getattr(policy, key):
            yield f"tools.{key}", _shown(names)
    yield "tools.on_denied", policy.on_denied


def _shown(value: Any) -> str:
    """*value* as a policy file would have it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print(shown: Callable[[int], RenderableType]) -> None:
    """Print what *shown* makes of the width of stdout, in colour where that is a terminal."""
    console = Console()
    with console.capture() as captured:
        console.print(shown(console.width))
    _write(captured.get())


def _print_json(value: Any, *, one_line: bool = False) -> None:
    _write(json.dumps(value, indent=None if one_line else 2) + "\n")


def _write(text: str) -> None:
    """Write *text* to stdout at once.

    Raises:
        typer.Exit: Where nobody reads it any more.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NOBODY_READS) from None
