"""Which Python a command runs, whether the guard can get into it, and the exec that replaces this process by it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from otel_loopwatch.errors import LoopwatchError
from otel_loopwatch.launch.settings import VARIABLE, Settings

__all__ = ["CANNOT_RUN", "NOT_FOUND", "CommandError", "Launch", "prepare", "replace_process"]

NOT_A_PROGRAM_FOR_US = 2
CANNOT_RUN = 126
"""Exit code of a shell for a command that is there and cannot be run."""

NOT_FOUND = 127
"""Exit code of a shell for a command that is not there."""

PROBE_TIMEOUT_S = 60.0
"""For a Python on a cold disk, or behind a version manager that looks around first."""

SHEBANG_BYTES = 2048
"""The most of a script that is read: the path of a virtual environment may take hundreds of bytes."""

_PYTHON = re.compile(r"(python|pypy)[\d.]*[tdmw]*(\.exe)?")
_SHUTS_OUT = {"E": "ignores PYTHONPATH", "I": "ignores PYTHONPATH", "S": "imports no sitecustomize"}
_TAKES_VALUE = frozenset("WX")
_ENDS_FLAGS = frozenset("cm")

# Without sys.path[0]: what lies in the current directory is not there yet when the guard is to be imported.
_PROBE = (
    "import sys; sys.path[:1] = []; import importlib.util as u; found = u.find_spec('otel_loopwatch'); "
    "print('loopwatch-probe', found.submodule_search_locations[0] if found else '', sep=':')"
)


class CommandError(LoopwatchError):
    """The command cannot be run, or not with the guard in it.

    Attributes:
        exit_code: As a shell would have it: 127 not found, 126 not to be run; 2 where it is no Python program.
    """

    def __init__(self, message: str, exit_code: int = NOT_A_PROGRAM_FOR_US) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Launch(NamedTuple):
    """A command that is ready to replace this process.

    Attributes:
        path: Of the program.
        argv: Its arguments, the name it is called by first.
        environment: Its whole environment.
    """

    path: str
    argv: list[str]
    environment: dict[str, str]


def prepare(command: Sequence[str], settings: Settings, environment: Mapping[str, str]) -> Launch:
    """Look whether *command* is a Python program that the guard can get into.

    Args:
        command: The program and its arguments.
        settings: What it is to be told; ``pythonpath`` is filled in here.
        environment: The environment it is to have.

    Raises:
        CommandError: Where it is not.
    """
    if not command:
        raise CommandError("nothing to run: loopwatch run [OPTIONS] -- python agent.py ...")
    path = _find(command[0], environment)
    interpreter, flags = _interpreter(path, command, environment)
    for flag, effect in _shutting_out(flags):
        raise CommandError(
            f"python -{flag} {effect}, and that is how the guard gets in: leave -{flag} out, "
            "or call otel_loopwatch.configure() in the program instead"
        )
    folder = str(Path(_package(interpreter, environment)) / "launch" / "bootstrap")
    before = environment.get("PYTHONPATH")
    told = replace(settings, pythonpath=before)
    ours = {VARIABLE: told.encode(), "PYTHONPATH": os.pathsep.join([folder, before]) if before else folder}
    return Launch(path, list(command), {**environment, **ours})


def replace_process(launch: Launch) -> NoReturn:
    """Become the program: its signals, standard streams and exit code are then its own.

    Raises:
        CommandError: Where the system refuses.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(launch.path, launch.argv, launch.environment)  # noqa: S606 - it is the user's own command
    except OSError as error:
        raise CommandError(f"cannot run {launch.argv[0]}: {error.strerror}", CANNOT_RUN) from None


def _find(name: str, environment: Mapping[str, str]) -> str:
    path = shutil.which(name, path=environment.get("PATH"))
    if path is not None:
        return path
    if not os.path.lexists(name):
        raise CommandError(f"command not found: {name}", NOT_FOUND)
    if Path(name).suffix == ".py":
        raise CommandError(f"{name} is not a command: put python before it", CANNOT_RUN)
    raise CommandError(f"cannot run {name}: it is not an executable file", CANNOT_RUN)


def _interpreter(path: str, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, Sequence[str]]:
    """The Python that *path* is or is run by, and the arguments that may hold flags for it."""
    if _PYTHON.fullmatch(Path(path).name):
        return path, command[1:]
    called = _shebang(path)
    if called and Path(called[0]).name == "env":
        # -S lets env split the line; a shebang without it has one argument at most.
        called = [word for word in called[1:] if word != "-S" and "=" not in word]
    if called and _PYTHON.fullmatch(Path(called[0]).name):
        return _find(called[0], environment), called[1:]
    name = Path(path).name
    raise CommandError(
        f"{name} is not a Python program. Put loopwatch run right before the python that runs the agent: "
        f"{name} ... loopwatch run -- python agent.py"
    )


def _shebang(path: str) -> list[str]:
    """The command of a script's first line; of its second, where pip wrote that of an interpreter's long path."""
    try:
        with Path(path).open("rb") as script:
            head = script.read(SHEBANG_BYTES)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    first, _, rest = head.decode(errors="replace").partition("\n")
    second = rest.partition("\n")[0]
    try:
        if second.startswith("'''exec' "):
            return shlex.split(second.removeprefix("'''exec' "))[:1]
        return shlex.split(first[2:])
    except ValueError:
        return []


def _shutting_out(arguments: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The flags among the first of Python's *arguments* that keep a ``sitecustomize`` on PYTHONPATH out."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word == "-":
            return
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, None)
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in _SHUTS_OUT:
                yield letter, _SHUTS_OUT[letter]
            if letter in _ENDS_FLAGS:
                return
            if letter in _TAKES_VALUE:
                if place == len(word):
                    next(words, None)
                break


def _package(interpreter: str, environment: Mapping[str, str]) -> str:
    """The folder of this package as *interpreter* has it.

    Raises:
        CommandError: Where it has none, or does not run.
    """
    clean = {name: value for name, value in environment.items() if name != VARIABLE}
    try:
        probe = subprocess.run(  # noqa: S603 - the Python that is about to be run anyway
            [interpreter, "-c", _PROBE],
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"cannot run {interpreter}: {type(error).__name__}", CANNOT_RUN) from None
    said = [line for line in probe.stdout.splitlines() if line.startswith("loopwatch-probe:")]
    if probe.returncode or not said:
        last = (probe.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise CommandError(f"{interpreter} does not run: {last}", CANNOT_RUN)
    folder = said[-1].partition(":")[2]
    if not folder or not (Path(folder) / "launch" / "bootstrap").is_dir():
        what = "is not installed" if not folder else "is too old"
        raise CommandError(
            f"otel-loopwatch {what} for {interpreter}, which runs this program. Install it there: "
            f"{interpreter} -m pip install --upgrade otel-loopwatch"
        )
    return folder
