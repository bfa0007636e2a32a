"""A tiny OTLP/HTTP receiver: keeps what is posted, by instance."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """``with Receiver() as receiver``: listens on :attr:`endpoint`."""

    def __init__(self):
        self.spans: list[tuple[dict[str, str], str]] = []
        self.points: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], float]] = {}
        self.resources: list[dict[str, str]] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path, body):
        with self._lock:
            if path.endswith("/traces"):
                for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = _attributes(batch.resource)
                    self.resources.append(resource)
                    self.spans += [(resource, span.name) for scope in batch.scope_spans for span in scope.spans]
            else:
                for batch in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    resource = _attributes(batch.resource)
                    self.resources.append(resource)
                    for scope in batch.scope_metrics:
                        for metric in scope.metrics:
                            kept = self.points.setdefault((resource["service.instance.id"], metric.name), {})
                            for point in metric.sum.data_points:
                                kept[tuple(sorted(_attributes(point).items()))] = point.as_int or point.as_double

    def names(self):
        return sorted(name for _, name in self.spans)

    def sums(self, metric):
        """Instance -> sum of the series of *metric*, as last reported."""
        return {instance: sum(points.values()) for (instance, name), points in self.points.items() if name == metric}


def _attributes(holder):
    return {each.key: each.value.string_value for each in holder.attributes}
