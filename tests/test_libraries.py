"""The real libraries, offline, with scripted models: what the guard makes of them, in exact figures.

``tests/libraries/README.md`` says how a scenario is written. ``<scenario>.toml`` holds what is expected of its cases,
``enforcement.toml`` what stops where: the table of the README is made of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# Making an environment may fetch a hundred packages; a scenario runs all of its cases when its first is asked for.
pytestmark = [pytest.mark.libraries, pytest.mark.project, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
HERE = ROOT / "tests" / "libraries"
README = ROOT / "README.md"
SCENARIO_TIMEOUT_S = 240
ENFORCEMENT = tomllib.loads((HERE / "enforcement.toml").read_text())
SETTINGS = ENFORCEMENT.pop("settings")
EXPECTED = {
    path.stem: tomllib.loads(path.read_text()) for path in sorted(HERE.glob("*.toml")) if path.stem != "enforcement"
}
CASES = [
    (scenario, case)
    for scenario, said in EXPECTED.items()
    for case in said
    # What is said of the scenario as a whole.
    if case not in ("environment", "env")
]
CELLS = [(scenario, setting) for scenario, said in ENFORCEMENT.items() for setting in said if setting in SETTINGS]


def shared_directory(tmp_path_factory) -> Path:
    """One for all workers of xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def run_scenario(scenario: str) -> dict:
    made = subprocess.run(
        [sys.executable, ROOT / ".ci" / "libraries", EXPECTED[scenario]["environment"]], capture_output=True, text=True
    )
    if made.returncode:
        return {"missing": made.stderr.strip().splitlines()[-1]}
    python = made.stdout.split()[1]
    # No key, proxy or tracing switch of the developer's machine goes in: some libraries would send something somewhere.
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")}
    env = kept | EXPECTED[scenario].get("env", {}) | {"LOOPWATCH_STRICT": "1"}
    ran = subprocess.run(
        [python, "-m", f"tests.libraries.{scenario}"],
        capture_output=True,
        text=True,
        # The module is found by it, and so is the checkout under test; a script of that name would hide its library.
        cwd=ROOT,
        env=env,
        timeout=SCENARIO_TIMEOUT_S,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
    return {"stderr": ran.stderr[-4000:], "cases": {line["case"]: line for line in lines}}


@pytest.fixture(scope="session")
def cases_of(tmp_path_factory):
    """Case -> facts, of a scenario. The first worker to ask for it runs it; the others wait for its figures."""

    def cases(scenario: str) -> dict:
        kept = shared_directory(tmp_path_factory) / f"libraries-{scenario}.json"
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(run_scenario(scenario)))
        ran = json.loads(kept.read_text())
        if "missing" in ran:
            pytest.skip(ran["missing"])
        assert ran["cases"], ran["stderr"]
        return ran["cases"]

    return cases


def facts(found: dict, case: str) -> dict:
    assert case in found, f"there is no case {case}; there are {list(found)}"
    assert "fault" not in found[case], found[case]["fault"]
    return found[case]


def differences(found: dict, expected: dict) -> list[str]:
    """What is not as expected: of a run and of a case only what is named is compared, of a metric all series."""
    wrong = []
    for name, value in expected.items():
        if name == "runs":
            runs = [run for run in value for _ in range(run.get("times", 1))]
            if len(found["runs"]) != len(runs):
                wrong.append(f"{len(found['runs'])} runs, not {len(runs)}: {found['runs']}")
            for number, (run, wanted) in enumerate(zip(found["runs"], runs, strict=False)):
                wrong += [
                    f"run {number}: {key} is {run[key]!r}, not {wanted[key]!r}"
                    for key in wanted
                    if key != "times" and run[key] != wanted[key]
                ]
        elif name in ("metrics", "said"):
            for key, wanted in value.items():
                if found[name].get(key, {}) != wanted:
                    wrong.append(f"{key} is {found[name].get(key, {})!r}, not {wanted!r}")
        elif found[name] != value:
            wrong.append(f"{name} is {found[name]!r}, not {value!r}")
    errors = found["metrics"].get("loopwatch.guard.errors", {})
    if errors:
        wrong.append(f"faults of the guard itself: {errors}")
    return wrong


@pytest.mark.parametrize("scenario, case", CASES, ids=[f"{scenario}-{case}" for scenario, case in CASES])
def test_a_library_is_counted_right(cases_of, scenario, case):
    assert differences(facts(cases_of(scenario), case), EXPECTED[scenario][case]) == []


@pytest.mark.parametrize("scenario, setting", CELLS, ids=[f"{scenario}-{setting}" for scenario, setting in CELLS])
def test_what_stops(cases_of, scenario, setting):
    expected = ENFORCEMENT[scenario][setting]
    found = facts(cases_of(scenario), f"enforce_{setting}")
    shown = {
        "bodies": found["bodies"].get("search", 0),
        "models": found["models"],
        "caught": found["caught"] or "nothing",
    }
    assert shown == {name: expected[name] for name in shown}
    assert [run["stop_reason"] for run in found["runs"]] == [expected["stop_reason"]]


@pytest.mark.parametrize("scenario", EXPECTED)
def test_every_case_is_expected(cases_of, scenario):
    expected = {case for of, case in CASES if of == scenario}
    expected |= {f"enforce_{setting}" for of, setting in CELLS if of == scenario}
    assert set(cases_of(scenario)) == expected


def test_every_scenario_is_expected():
    scripts = {path.stem for path in HERE.glob("[!_]*.py")}
    assert scripts == set(EXPECTED)
    assert set(ENFORCEMENT) <= scripts


def test_without_an_index_an_environment_is_not_there_and_its_reason_is(tmp_path):
    bare = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_OFFLINE": "1"}
    made = subprocess.run(
        [sys.executable, ROOT / ".ci" / "libraries", "openai_v2"],
        capture_output=True,
        text=True,
        # Where no uv is on the path, pip would fetch one.
        env=bare | {"PIP_NO_INDEX": "1"},
    )
    assert made.returncode == 1
    assert made.stdout == ""
    assert made.stderr.splitlines()[-1].startswith("libraries: openai_v2 cannot be made (")
    assert not list(tmp_path.rglob(".ready"))


def enforcement_table() -> list[str]:
    """What stops, as the README shows it: bodies of the tool and requests to the model, of eight that were demanded."""
    rows = ["| library | " + " | ".join(SETTINGS.values()) + " |", "|---" * (len(SETTINGS) + 1) + "|"]
    for said in ENFORCEMENT.values():
        cells = []
        for setting in SETTINGS:
            cell = said.get(setting)
            cells.append("-" if cell is None else f"{cell['bodies']} / {cell['models']}, {_class(cell['caught'])}")
        rows.append(f"| {said['library']} | " + " | ".join(cells) + " |")
    return rows


def _class(caught: str) -> str:
    return "no error" if caught == "nothing" else f"`{caught}`"


def test_the_table_of_the_readme_is_that_of_the_data():
    text = README.read_text()
    begin, end = "<!-- enforcement -->\n", "\n<!-- /enforcement -->"
    head, found, rest = text.partition(begin)
    written, ended, tail = rest.partition(end)
    assert found
    assert ended
    if os.environ.get("LOOPWATCH_WRITE_README"):
        written = "\n".join(enforcement_table())
        README.write_text(head + begin + written + end + tail)
    assert written.splitlines() == enforcement_table()
