"""What holds the design together and imports alone do not show (those: [tool.importlinter] in pyproject.toml)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_loopwatch

pytestmark = pytest.mark.project

PACKAGE = Path(otel_loopwatch.__file__).parent
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")
}

PUBLIC = [
    "BudgetExceeded",
    "Budgets",
    "Finding",
    "LoopRules",
    "LoopwatchError",
    "LoopwatchSpanProcessor",
    "ModelPrice",
    "Policy",
    "PolicyError",
    "Retry",
    "Run",
    "RunAborted",
    "RunOutcome",
    "StopReason",
    "ToolDenied",
    "ToolHint",
    "ToolLoopError",
    "ToolRules",
    "Usage",
    "Verdict",
    "__version__",
    "bind",
    "configure",
    "current_run",
    "flush",
    "is_hint",
    "register_context_type",
    "register_infra_error",
    "runs",
    "shutdown",
    "watch_run",
    "watch_tool",
]


def test_the_public_names_are_pinned():
    assert sorted(otel_loopwatch.__all__) == PUBLIC
    assert len(PUBLIC) <= 36
    assert all(hasattr(otel_loopwatch, name) for name in PUBLIC)


def test_telemetry_names_are_in_semconv_alone():
    name = re.compile(r"(loopwatch|gen_ai)\.[a-z]|error\.type$")
    for module, tree in MODULES.items():
        if module != "semconv":
            assert [text for text in _strings(tree) if name.match(text)] == [], module


def _strings(tree: ast.Module) -> Iterator[str]:
    """String constants, docstrings left out."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


ABORTS = {"RunAborted", "ToolLoopError", "BudgetExceeded", "Unwind"}
MAKES_ABORTS = {"errors", "refusal", "run"}
# The processor only by LoopwatchSpanProcessor(raise_on_start=True).
RAISES_ABORTS = {"run", "boundary", "pipeline", "processor", "tools"}


def test_aborts_are_made_in_one_place_and_raised_in_few():
    for module, tree in MODULES.items():
        made = {_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & ABORTS
        assert not made or module in MAKES_ABORTS, f"{module} makes {made}"
        raised = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and node.exc is not None
            for name in _names(node.exc)
            if name in ABORTS | {"refusal", "error_for"}
        }
        assert not raised or module in RAISES_ABORTS, f"{module} raises by {raised}"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.expr) -> set[str]:
    return {_name(part) for part in ast.walk(node) if isinstance(part, ast.expr)}


def test_every_module_says_what_it_is():
    assert [name for name, tree in MODULES.items() if not ast.get_docstring(tree)] == []
