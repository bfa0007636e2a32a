"""Alert rules and dashboards as files: with the user's own thresholds, for Prometheus or for its operator.

The rules are text with marks in it (``alerts/rules.in.yml``), and stay text, so that comments and layout survive:

* ``<<name>>`` is a threshold of ``alerts/thresholds.yml``.
* ``<<increase SERIES WINDOW>>``, alone on its line, is the increase of a counter over a window, and counts what the
  series was born with. Prometheus' ``increase`` needs two samples and leaves the first value out: it misses the first
  loop of a tool, and everything that a short job reported once.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from otel_loopwatch.errors import LoopwatchError

__all__ = [
    "Format",
    "Threshold",
    "bundled",
    "export_alerts",
    "export_dashboards",
    "parse_settings",
    "render",
    "thresholds",
]

Format = Literal["prometheus", "operator"]

_NAME: Final = "loopwatch"
RULES_FILE: Final[Mapping[str, str]] = {
    "prometheus": f"{_NAME}.rules.yml",
    "operator": f"{_NAME}.prometheusrule.yml",
}

SEEN_BEFORE: Final = "1h"
"""How long before a window a series must not have been seen to be born in it. Longer would bridge longer outages of a
target; each evaluation reads that much of every counter. An outage of Prometheus itself is told by the recorded series
``loopwatch:rules:evaluated``, whatever its length."""

_MARK: Final = re.compile(r"<<([a-z0-9_]+)>>")
_INCREASE: Final = re.compile(r"^( *)<<increase (\S+) (\d+[smhd])>>$", re.MULTILINE)
_URL: Final = re.compile(r"https?://[A-Za-z0-9.:/?&=%~_+@,-]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")

_HEADER: Final = """\
# Alert rules of otel-loopwatch. To change a threshold: `loopwatch export alerts DIR --set name=value`.
#
"""


class Threshold(NamedTuple):
    """One number, or address, that the rules are made with.

    Attributes:
        value: Its default.
        unit: Of the value; ``URL`` is an address.
        why: Where the value comes from.
    """

    value: float | str
    unit: str
    why: str


def bundled(folder: str) -> Path:
    """The folder of that name which the wheel brings along, or in a checkout the folder itself.

    Raises:
        LoopwatchError: Where there is neither.
    """
    package = Path(__file__).parent
    for candidate in (package / "_bundled" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise LoopwatchError(f"this installation has no folder {folder!r}: install the wheel of otel-loopwatch again")


def thresholds() -> dict[str, Threshold]:
    """Every threshold of the rules by its name, in the order of the file."""
    import yaml  # noqa: PLC0415 - on first use

    read = yaml.safe_load((bundled("alerts") / "thresholds.yml").read_text(encoding="utf-8"))
    return {name: Threshold(**fields) for name, fields in read.items()}


def parse_settings(settings: list[str]) -> dict[str, float | str]:
    """What ``--set name=value`` says, checked.

    Args:
        settings: Each ``name=value``; of two for one name the last holds.

    Raises:
        LoopwatchError: For an unknown name, a value that is no number of 0 or more, or an address that is none.
    """
    known = thresholds()
    parsed: dict[str, float | str] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise LoopwatchError(f"--set {setting}: write it as name=value")
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5) or sorted(known)
            raise LoopwatchError(f"--set {setting}: there is no threshold {name!r}; there is {', '.join(near)}")
        parsed[name] = _address(setting, text) if known[name].unit == "URL" else _number(setting, text)
    return parsed


def _number(setting: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise LoopwatchError(f"--set {setting}: the value must be a number, 0 or more")
    return value


def _address(setting: str, text: str) -> str:
    # It is put into YAML and into a template of Prometheus', and must mean nothing in either.
    if not _URL.fullmatch(text):
        raise LoopwatchError(f"--set {setting}: the value must be an address, http:// or https://")
    return text.rstrip("/")


def render(settings: Mapping[str, float | str] | None = None) -> str:
    """The rules as Prometheus reads them.

    Args:
        settings: Thresholds that are not to have their default, as :func:`parse_settings` returns them.
    """
    values = {name: threshold.value for name, threshold in thresholds().items()} | dict(settings or {})
    source = (bundled("alerts") / "rules.in.yml").read_text(encoding="utf-8")
    _, _, text = source.partition("#\n")
    text = _INCREASE.sub(_increase, _HEADER + text)
    return _MARK.sub(lambda mark: _shown(values[mark[1]]), text)


def _increase(mark: re.Match[str]) -> str:
    indent, series, window = mark.groups()
    lines = (
        "(",
        f"  max_over_time({series}[{window}])",
        f"    unless last_over_time({series}[{SEEN_BEFORE}] offset {window})",
        f"    unless resets({series}[{window}]) > 0",
        f"    and on () loopwatch:rules:evaluated offset {window}",
        ")",
        f"or increase({series}[{window}])",
    )
    return "\n".join(indent + line for line in lines)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"


def export_alerts(
    folder: Path,
    *,
    form: Format = "prometheus",
    settings: Mapping[str, float | str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the rules and their runbooks into *folder*, over what is there of the same names.

    Args:
        folder: Made where it does not exist.
        form: ``prometheus``: a file for ``rule_files``. ``operator``: a ``PrometheusRule`` for the Prometheus operator.
        settings: As for :func:`render`.
        labels: Labels of the ``PrometheusRule``, by which the operator's ``ruleSelector`` finds it.

    Returns:
        Every file written, the rules first.

    Raises:
        LoopwatchError: Where the folder cannot be written, or a label is none.
    """
    if form not in get_args(Format):
        raise LoopwatchError(f"there is no format {form!r}; there is {', '.join(get_args(Format))}")
    rules = render(settings)
    if form == "operator":
        rules = _prometheus_rule(rules, labels or {})
    elif labels:
        raise LoopwatchError("labels are for the format operator: a rule file of Prometheus has none")
    files = {folder / RULES_FILE[form]: rules}
    for runbook in sorted((bundled("alerts") / "runbooks").glob("*.md")):
        files[folder / "runbooks" / runbook.name] = runbook.read_text(encoding="utf-8")
    return _write(folder, files)


def export_dashboards(folder: Path) -> list[Path]:
    """Write the dashboards, as Grafana imports and provisions them, into *folder*, over what is there of their names.

    Returns:
        Every file written.

    Raises:
        LoopwatchError: Where the folder cannot be written.
    """
    source = bundled("dashboards") / "generated"
    return _write(
        folder, {folder / path.name: path.read_text(encoding="utf-8") for path in sorted(source.glob("*.json"))}
    )


def _write(folder: Path, files: Mapping[Path, str]) -> list[Path]:
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoopwatchError(f"nothing can be written to {folder}: {error.strerror}") from error
    return list(files)


def _prometheus_rule(rules: str, labels: Mapping[str, str]) -> str:
    lines = ["apiVersion: monitoring.coreos.com/v1", "kind: PrometheusRule", "metadata:", "  name: loopwatch"]
    if labels:
        lines.append("  labels:")
    for name, value in labels.items():
        if not (_LABEL.fullmatch(name) and _LABEL.fullmatch(value)):
            raise LoopwatchError(f"{name}={value} is no label of Kubernetes")
        lines.append(f'    {name}: "{value}"')
    lines.append("spec:")
    comments, _, groups = rules.partition("groups:\n")
    body = "".join(f"  {line}" if line.strip() else line for line in f"groups:\n{groups}".splitlines(keepends=True))
    return comments + "\n".join(lines) + "\n" + body
