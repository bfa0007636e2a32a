"""``loopwatch export``: what the package brings along for other programs, written as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from otel_loopwatch.errors import LoopwatchError
from otel_loopwatch.export import Format, export_alerts, export_dashboards, parse_settings

__all__ = ["app"]

app = typer.Typer(help="Write what Prometheus and Grafana need as files.", no_args_is_help=True)


@app.command(epilog="Exit codes: 0 written; 2 a wrong option, threshold or folder.")
def alerts(
    folder: Annotated[Path, typer.Argument(help="Where to; made where it does not exist.", metavar="DIR")],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="A rule file of Prometheus, or a PrometheusRule for its operator.")
    ] = "prometheus",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A threshold of your own; docs/how-to/alerts.md lists them.", metavar="NAME=VALUE"),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", help="A label of the PrometheusRule, as its ruleSelector asks for.", metavar="NAME=VALUE"
        ),
    ] = None,
) -> None:
    """Write the alert rules and their runbooks, over what is there of the same names."""
    written = export_alerts(
        folder,
        form=form,
        settings=parse_settings(settings or []),
        labels=dict(_pair(label) for label in labels or []),
    )
    for path in written:
        typer.echo(path)


@app.command(epilog="Exit codes: 0 written; 2 a folder that cannot be written.")
def dashboards(
    folder: Annotated[Path, typer.Argument(help="Where to; made where it does not exist.", metavar="DIR")],
) -> None:
    """Write the dashboards for Grafana, over what is there of the same names."""
    for path in export_dashboards(folder):
        typer.echo(path)


def _pair(label: str) -> tuple[str, str]:
    name, equals, value = label.partition("=")
    if not equals:
        raise LoopwatchError(f"--label {label}: write it as name=value")
    return name, value
