"""Write loopwatch.rules.yml from rules.in.yml and thresholds.yml, or check that it is what they make.

python alerts/build.py --write | --check
"""

from __future__ import annotations

import sys
from pathlib import Path

from otel_loopwatch.export import render

COMMITTED = Path(__file__).with_name("loopwatch.rules.yml")


def main(arguments: list[str]) -> int:
    """Do what *arguments* say; 0 is done, 1 is drift, 2 a wrong option."""
    if arguments == ["--write"]:
        COMMITTED.write_text(render(), encoding="utf-8")
        return 0
    if arguments == ["--check"]:
        if COMMITTED.read_text(encoding="utf-8") == render():
            return 0
        sys.stderr.write(f"{COMMITTED} is not what its sources make: python alerts/build.py --write\n")
        return 1
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
