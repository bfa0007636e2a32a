"""What is installed: the wheel, its metadata, what importing it costs, and the lock."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from otel_loopwatch.version import __version__

pytestmark = pytest.mark.project

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            *["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir"],
            folder,
            ROOT,
        ],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "otel_loopwatch").rglob("*.py")}
    assert sources <= names
    assert "otel_loopwatch/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"otel_loopwatch", f"otel_loopwatch-{__version__}.dist-info"}
    assert f"otel_loopwatch-{__version__}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_metadata_of_the_wheel(wheel):
    archive = zipfile.ZipFile(wheel)
    folder = f"otel_loopwatch-{__version__}.dist-info"
    metadata = HeaderParser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Provides-Extra") == ["cli"]
    assert "loopwatch = otel_loopwatch.cli:main" in archive.read(f"{folder}/entry_points.txt").decode()


def test_the_wheel_works_without_the_clone_and_without_extras(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["typer"] = sys.modules["rich"] = None
import otel_loopwatch as lw
assert lw.__file__.startswith({str(tmp_path)!r}), lw.__file__

@lw.watch_tool
def search(query: str) -> str:
    return "nothing"

with lw.watch_run("agent", on_abort="return") as run:
    for _ in range(9):
        search("x")
print(run.outcome.stop_reason)
"""
    ran = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == "loop_detected\n", ran.stderr


def test_the_command_without_its_extra_says_which_one():
    script = "import sys; sys.modules['typer'] = None; from otel_loopwatch.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "pip install otel-loopwatch[cli]" in ran.stderr


def test_what_is_not_needed_yet_is_not_imported():
    script = """
import sys, otel_loopwatch
costly = "genai_prices grpc numpy pandas prometheus_client pydantic requests rich typer yaml".split()
print(*(name for name in costly if name in sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_the_lock_names_pypi_only():
    for package in LOCK["package"]:
        source = package["source"]
        if package["name"] == "otel-loopwatch":
            assert source == {"editable": "."}
            continue
        assert source == {"registry": "https://pypi.org/simple"}
        for file in [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]:
            assert file["url"].startswith("https://files.pythonhosted.org/")
            assert file["hash"].startswith("sha256:")


def test_the_lock_is_that_of_the_project():
    (ours,) = (package for package in LOCK["package"] if package["name"] == "otel-loopwatch")
    project = PROJECT["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    assert _requirements(ours["metadata"]["requires-dist"]) == {
        _plain(text) for text in [*project["dependencies"], *extras]
    }
    for group, names in PROJECT["dependency-groups"].items():
        if all(isinstance(name, str) for name in names):
            assert _requirements(ours["metadata"]["requires-dev"][group]) == {_plain(name) for name in names}


def _requirements(entries: list[dict]) -> set[tuple]:
    return {(entry["name"], entry.get("specifier", "")) for entry in entries}


def _plain(text: str) -> tuple:
    requirement = Requirement(text)
    # uv writes the clauses in the order of the project, packaging in none.
    specifier = text.partition(";")[0].strip().removeprefix(requirement.name)
    for extra in requirement.extras:
        specifier = specifier.replace(f"[{extra}]", "")
    return requirement.name.lower().replace("_", "-"), specifier.strip()


def test_ruff_is_pinned():
    # Its set of rules changes with each minor version.
    (ruff,) = (name for name in PROJECT["dependency-groups"]["lint"] if name.startswith("ruff"))
    assert ruff.startswith("ruff==")
