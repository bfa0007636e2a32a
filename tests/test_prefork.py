"""H-3, F-4: workers of a prefork server, with a real gunicorn and the configuration of docs/how-to/prefork.md."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from otlp_receiver import Receiver

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "prefork.md"
APP = """
import os
import otel_loopwatch as lw
{setup}
@lw.watch_tool
def search(q): return q * 2

def app(environ, start_response):
    # What was served, whether or not the client waited for the answer.
    with open("served", "a") as served:
        served.write(f"{{os.getpid()}}\\n")
    with lw.watch_run("a"):
        search("x" + environ["PATH_INFO"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


def documented() -> str:
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def ask(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read().decode()
    except OSError:
        return None


@pytest.mark.parametrize("preload", [False, True], ids=["post_fork", "preload_app"])
def test_h3_workers_share_no_series_and_the_sum_over_instances_is_the_number_of_calls(tmp_path, preload):
    config = documented()
    setup = ""
    if preload:
        config = "preload_app = True\n" + config.replace('    lw.configure("support")\n', "    assert lw\n")
        setup = 'lw.configure("support", prometheus_port=0)'
    (tmp_path / "app.py").write_text(APP.format(setup=setup))
    (tmp_path / "gunicorn.conf.py").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Receiver() as receiver:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}", "--no-control-socket", "app:app"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "LOOPWATCH_STRICT": "1",
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
        )
        try:
            asked, pids = 0, set()
            deadline = time.monotonic() + 40
            while (len(pids) < 2 or asked < 20) and time.monotonic() < deadline and server.poll() is None:
                pid = ask(f"http://127.0.0.1:{port}/{asked}")
                if pid is not None:
                    asked += 1
                    pids.add(pid)
        finally:
            server.send_signal(signal.SIGTERM)
            said, _ = server.communicate(timeout=15)
    assert len(pids) == 2, said
    calls = len((tmp_path / "served").read_text().splitlines())
    assert calls >= asked
    sums = {instance: calls for instance, calls in receiver.sums("loopwatch.tool.calls").items() if calls}
    assert len(sums) == 2, (sums, said)
    assert sum(sums.values()) == calls
    assert receiver.names().count("execute_tool search") == calls
    assert len({resource["service.instance.id"] for resource, _ in receiver.spans}) == 2
