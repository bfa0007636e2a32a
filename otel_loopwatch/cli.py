"""``loopwatch``: the command. What it does is in :mod:`otel_loopwatch.commands`, which needs the extra ``cli``."""

from __future__ import annotations

import sys

from otel_loopwatch.errors import LoopwatchError

__all__ = ["main"]

BAD_INPUT = 2
"""Exit code for what cannot be done as asked: a wrong option, a policy that cannot be used, a port that is taken."""


def main() -> None:
    """Run the command; ``loopwatch --help`` says what it can do and what its exit codes mean."""
    try:
        from otel_loopwatch.commands import app  # noqa: PLC0415 - typer and rich are an extra
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write("loopwatch: the command needs typer and rich: pip install otel-loopwatch[cli]\n")
        sys.exit(BAD_INPUT)
    try:
        app()
    except LoopwatchError as error:
        sys.stderr.write(f"loopwatch: {error}\n")
        sys.exit(BAD_INPUT)
