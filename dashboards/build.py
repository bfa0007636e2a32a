"""Write generated/*.json from the dashboards of this folder, or check that it is what they make.

python dashboards/build.py --write | --check
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafanalib._gen import DashboardEncoder

from dashboards import agent, guard, overview, runs, spend, tools
from dashboards.modernize import modernize

GENERATED = Path(__file__).with_name("generated")


def built() -> dict[str, str]:
    """The text of every dashboard by the name of its file."""
    files = {}
    for module in (overview, agent, tools, spend, runs, guard):
        old = json.loads(json.dumps(module.DASHBOARD.to_json_data(), cls=DashboardEncoder))
        files[f"{old['uid']}.json"] = json.dumps(modernize(old), indent=1, sort_keys=True) + "\n"
    return files


def main(arguments: list[str]) -> int:
    """Do what *arguments* say; 0 is done, 1 is drift, 2 a wrong option."""
    committed = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.glob("*.json")}
    files = built()
    if arguments == ["--write"]:
        GENERATED.mkdir(exist_ok=True)
        for name, text in files.items():
            (GENERATED / name).write_text(text, encoding="utf-8")
        for name in committed.keys() - files.keys():
            (GENERATED / name).unlink()
        return 0
    if arguments == ["--check"]:
        drifted = sorted(name for name in committed.keys() | files.keys() if committed.get(name) != files.get(name))
        if not drifted:
            return 0
        sys.stderr.write(f"{GENERATED}: {', '.join(drifted)} not as built: python dashboards/build.py --write\n")
        return 1
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
