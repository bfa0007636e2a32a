"""The page ``/metrics`` of this process, with our metrics alone: an application's own stay on the page they are on.

A daemon thread serves it, so a scrape is never in the way of a call, and the page does not keep the process alive. A
child of a fork has the numbers but not the page: its parent has the port.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from otel_loopwatch.errors import LoopwatchError
from otel_loopwatch.metrics import prometheus_collector

__all__ = ["PATH", "Page"]

PATH: Final = "/metrics"

CLIENT_TIMEOUT_S: Final = 10.0
"""Seconds that a client may take to ask: Prometheus' own default for a whole scrape."""


class Page:
    """Serves ``/metrics`` until :meth:`close`.

    Where the ``Accept`` header asks for OpenMetrics that is what comes, with exemplars.

    Args:
        host: Address to listen on.
        port: TCP port; 0 takes a free one.

    Raises:
        LoopwatchError: Where the port or the address cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise LoopwatchError(f"prometheus_port must be a TCP port, 0 to 65535, not {port!r}")
        if not host or not isinstance(host, str):
            # To a socket, "" is every address; a variable that is not set is no wish for that.
            raise LoopwatchError(f"prometheus_host must be an address, such as 127.0.0.1 or 0.0.0.0, not {host!r}")
        registry = CollectorRegistry()
        registry.register(prometheus_collector())

        class Handler(_Handler):
            shown = registry

        kind = _Server6 if ":" in host else _Server
        try:
            self._server = kind((host, port), Handler)
        except OSError as error:
            raise LoopwatchError(
                f"prometheus_port={port}: cannot listen on {host}:{port} ({error.strerror or error}). Choose another "
                "port, 0 for a free one, or end the process that has it; prefork workers cannot share one."
            ) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            # Seconds between two looks at whether to end: what close() may have to wait.
            target=self._server.serve_forever,
            args=(0.05,),
            name="loopwatch-metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()

    def let_go(self) -> None:
        """In a child: only the parent listens, and its port is free when it ends."""
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that hangs would hold up close().
    block_on_close = False

    def server_bind(self) -> None:
        # Not HTTPServer's own, which asks a name server who we are.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away is no news for the application's standard error.
        del request, client_address


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server_version = "otel-loopwatch"
    sys_version = ""
    shown: CollectorRegistry

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, explain=f"the metrics are at {PATH}")
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.shown)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
        """Say nothing: a line for each scrape is no use to anybody."""
