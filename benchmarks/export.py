"""What a dead or silent OTLP endpoint costs a watched call: ratios to no exporter, from one run (case F-6).

python benchmarks/export.py
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys

CHILD = """
import logging, time
logging.disable()
import otel_loopwatch as lw
lw.configure("benchmark")

@lw.watch_tool
def search(q): return q

for _ in range(3):
    with lw.watch_run("a", policy=lw.Policy(mode="observe")):
        began = time.thread_time()
        for i in range(2000): search(f"question {i}")
        took = time.thread_time() - began
print(took / 2000 * 1e6, flush=True)
import os
os._exit(0)
"""
ROUNDS = 5


def once(endpoint: str | None) -> float:
    """Microseconds of thread CPU time that one call takes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    if endpoint is not None:
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    return float(subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, check=True).stdout)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kinds = {
            "no exporter": None,
            "dead endpoint": "http://127.0.0.1:9",
            "black hole": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        # Interleaved, so that a busy machine is busy for all of them.
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, endpoint in kinds.items():
                took[kind].append(once(endpoint))
    base = statistics.median(took["no exporter"])
    for kind, values in took.items():
        median = statistics.median(values)
        print(f"{kind:14} {median:7.1f} us  {median / base:.2f}")


if __name__ == "__main__":
    main()
