"""What ``loopwatch demo`` shows: a bar and the guard's reports while the agents run, a table at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from otel_loopwatch import metrics
from otel_loopwatch.calls import StopReason
from otel_loopwatch.demo.loop import Report

__all__ = ["metrics_page", "progress_bar", "reports", "results"]

HOST = "127.0.0.1"
TABLE_WIDTH = 78


def progress_bar(console: Console) -> Progress:
    """A bar on *console*, which vanishes at the end; nothing where *console* is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Lines(logging.Handler):
    """Prints the guard's reports on a run above the bar; other records of its logger are left to other handlers."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "loopwatch"):
            line = escape(record.getMessage().removeprefix("otel-loopwatch: "))
            self._console.print(line, style="yellow", soft_wrap=True)


@contextmanager
def reports(console: Console) -> Iterator[None]:
    """Print on *console* what the guard logs about runs, and nothing of it anywhere else."""
    logger = logging.getLogger("otel_loopwatch")
    handler = _Lines(console)
    propagated = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


@contextmanager
def metrics_page(port: int) -> Iterator[str]:
    """Serve our metrics for Prometheus on this machine while the block runs.

    Args:
        port: The TCP port; 0 takes a free one.

    Yields:
        The page's address.

    Raises:
        OSError: Where the port cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(metrics.prometheus_collector())
    server, thread = start_http_server(port, addr=HOST, registry=registry)
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def results(reports: Sequence[Report], width: int) -> RenderableType:
    """One row an agent; sentences where *width* (in characters) is too little for a table."""
    rows = [_cells(report) for report in reports]
    if width < TABLE_WIDTH:
        return "\n".join(
            escape(f"{agent}: {reason}; {calls} calls, {hinted} hinted, {refused} refused, {spend}, {seconds} s")
            for agent, reason, calls, hinted, refused, spend, seconds in rows
        )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("agent", "stop reason"):
        table.add_column(name, overflow="fold")
    for name in ("calls made", "hinted", "refused", "spend", "seconds"):
        table.add_column(name, justify="right", overflow="fold")
    for report, row in zip(reports, rows, strict=True):
        table.add_row(*row, style=None if report.outcome.stop_reason is StopReason.COMPLETED else "red")
    return table


def _cells(report: Report) -> tuple[str, ...]:
    outcome = report.outcome
    return (
        outcome.agent,
        outcome.stop_reason.value,
        str(outcome.tool_calls),
        str(report.hinted),
        str(report.refused),
        f"{'' if outcome.spend_complete else '>= '}${outcome.spend_usd:.4f}",
        f"{outcome.duration_s:.2f}",
    )
