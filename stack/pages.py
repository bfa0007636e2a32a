#!/usr/bin/env python3
"""Stands where a pager would: takes what Alertmanager sends, and prints it.

docker-compose.yml runs it, `make stack-up` too; the tests wait on it for the page that they expect. Nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Page(NamedTuple):
    """One alert of one message.

    Attributes:
        receiver: The receiver of alertmanager.yml.
        status: ``firing`` or ``resolved``.
        labels: All of them, ``alertname`` among them.
        annotations: Summary, description and addresses, as rendered.
        at: When it came, in seconds of the monotonic clock.
    """

    receiver: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    at: float


class Pages:
    """A webhook for Alertmanager.

    Args:
        host: Address to listen on.
        port: TCP port; 0 takes a free one.
        show: Called with each page.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, show: Callable[[Page], None] | None = None) -> None:
        self._came = threading.Condition()
        self._pages: list[Page] = []
        self._show = show
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def do_POST(self) -> None:
                pages.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.do_GET()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
                """Say nothing: the pages are what there is to see."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def take(self, message: dict[str, Any]) -> None:
        """Keep every alert of a message of Alertmanager's."""
        came = [
            Page(message["receiver"], alert["status"], alert["labels"], alert["annotations"], time.monotonic())
            for alert in message["alerts"]
        ]
        with self._came:
            self._pages += came
            self._came.notify_all()
        if self._show is not None:
            for page in came:
                self._show(page)

    def all(self) -> list[Page]:
        """What has come, in order."""
        with self._came:
            return list(self._pages)

    def those(self, alertname: str | None = None, status: str = "firing", **labels: str) -> list[Page]:
        """What has come with this name, status and labels. Without a name: every one but the watchdog's."""
        return [
            page
            for page in self.all()
            if page.status == status
            and (page.labels["alertname"] == alertname if alertname else page.receiver != "dead-man")
            and labels.items() <= page.labels.items()
        ]

    def wait_for(self, alertname: str, status: str = "firing", timeout_s: float = 60, **labels: str) -> Page:
        """The first such page, once it is there.

        Raises:
            TimeoutError: It did not come; the message has what came.
        """
        deadline = time.monotonic() + timeout_s
        while not (found := self.those(alertname, status, **labels)):
            with self._came:
                if not self._came.wait(deadline - time.monotonic()):
                    there = [(page.labels["alertname"], page.status, page.labels.get("agent")) for page in self._pages]
                    raise TimeoutError(f"no page {alertname} {status} {labels} in {timeout_s} s; came: {there}")
        return found[0]

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def shown(page: Page) -> str:
    """One line for people."""
    what = page.annotations.get("summary", page.labels["alertname"])
    return f"{page.receiver}: {page.status}: {what} {page.annotations.get('runbook_url', '')}".rstrip()


def main() -> None:
    """Print pages until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9095)
    options = parser.parse_args()
    Pages(options.host, options.port, lambda page: print(shown(page), flush=True))  # noqa: T201 - it is for people
    threading.Event().wait()


if __name__ == "__main__":
    main()
