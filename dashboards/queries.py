"""Every query of the generated dashboards as Prometheus can run it: for a test, and for a look by hand.

python dashboards/queries.py [URL of a Prometheus]: a line for each panel, with what its query gives there.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

GENERATED: Final = Path(__file__).with_name("generated")

DEFAULTS: Final = {
    "job": ".+",
    "agent": ".+",
    "tool": ".+",
    "model": ".+",
    # Four times Grafana's minimum of 15 s, as Grafana itself reckons it.
    "__rate_interval": "1m",
    "__range": "6h",
}
"""What stands for the variables: All, and the time range that the dashboards open with."""

_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")


class PanelQuery(NamedTuple):
    """One query.

    Attributes:
        dashboard: uid.
        panel: Title; of an annotation its name.
        expr: PromQL without variables.
        kind: Type of the panel, or ``annotation``.
    """

    dashboard: str
    panel: str
    expr: str
    kind: str


def queries(variables: Mapping[str, str] | None = None, folder: Path = GENERATED) -> Iterator[PanelQuery]:
    """Every query of every panel and annotation.

    Args:
        variables: Instead of those in :data:`DEFAULTS`.
        folder: Where the dashboards are.
    """
    values = DEFAULTS | dict(variables or {})
    for path in sorted(folder.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expr = substituted(target["expr"], values)
                yield PanelQuery(dashboard["uid"], panel["title"], expr, panel["type"])
        for annotation in dashboard["annotations"]["list"]:
            expr = substituted(annotation["target"]["expr"], values)
            yield PanelQuery(dashboard["uid"], annotation["name"], expr, "annotation")


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """*expr* with its variables filled in.

    Raises:
        KeyError: For a variable that *values* lacks.
    """
    return _VARIABLE.sub(lambda variable: values[variable[1]], expr)


def ask(url: str, expr: str) -> list[dict[str, Any]]:
    """The samples of *expr* as of now.

    Args:
        url: Of a Prometheus, such as http://localhost:9090.
        expr: PromQL.

    Raises:
        OSError: Where there is no Prometheus, or it refuses the query.
    """
    body = urllib.parse.urlencode({"query": expr}).encode()
    with urllib.request.urlopen(f"{url}/api/v1/query", body, timeout=10) as answer:  # noqa: S310 - of a Prometheus of ours
        samples: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return samples


def shown(samples: list[dict[str, Any]], at_most: int = 3) -> str:
    """The first samples as a person reads them."""
    parts = []
    for sample in samples[:at_most]:
        labels = ",".join(value for name, value in sorted(sample["metric"].items()) if name not in {"__name__", "job"})
        parts.append(f"{labels or 'all'}={float(sample['value'][1]):.4g}")
    return " ".join(parts) + (f" ... {len(samples)} in all" if len(samples) > at_most else "")


def main(arguments: list[str]) -> int:
    """Print every panel, with what it shows where a Prometheus is named."""
    for query in queries():
        if query.kind != "annotation":
            value = (shown(ask(arguments[0], query.expr)) or "-") if arguments else query.expr
            sys.stdout.write(f"{query.dashboard} | {query.panel} | {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
