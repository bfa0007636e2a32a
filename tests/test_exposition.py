"""The page ``/metrics``, read by prometheus_client's own parsers."""

from __future__ import annotations

import http.client
import socket

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

import otel_loopwatch as lw
from otel_loopwatch import metrics, telemetry
from otel_loopwatch.exposition import Page

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def page():
    page = Page("127.0.0.1", 0)
    yield page
    page.close()


def ask(page, path="/metrics", method="GET", accept=""):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def one_run(sampler=None):
    provider = TracerProvider(sampler=sampler) if sampler else TracerProvider()
    telemetry.use_tracer_provider(provider)
    with lw.watch_run("support", attributes={"tenant": "secret"}) as run:
        pass
    provider.shutdown()
    return run


def exemplars(text):
    return [
        sample.exemplar
        for family in openmetrics(text)
        for sample in family.samples
        if sample.exemplar is not None and sample.name.startswith("loopwatch_run_")
    ]


def test_openmetrics_has_one_exemplar_for_each_histogram_of_a_run_and_it_names_the_runs_span(page):
    run = one_run()
    answer, text = ask(page, accept=OPENMETRICS)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    context = run.span.get_span_context()
    ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    assert [each.labels for each in exemplars(text)] == [ids] * 4
    # The limit of OpenMetrics, over names and values together.
    assert sum(len(name) + len(value) for name, value in ids.items()) <= 128
    assert "secret" not in text


def test_the_last_run_of_a_bucket_is_its_exemplar(page):
    one_run()
    last = one_run()
    _, text = ask(page, accept=OPENMETRICS)
    shown = {each.labels["span_id"] for each in exemplars(text)}
    assert shown == {f"{last.span.get_span_context().span_id:016x}"}


def test_a_trace_that_is_sampled_out_is_no_exemplar(page):
    one_run(ALWAYS_OFF)
    _, text = ask(page, accept=OPENMETRICS)
    assert "loopwatch_run_tool_calls_count" in text
    assert exemplars(text) == []


def test_the_classic_format_has_the_same_names_and_no_exemplars(page):
    one_run()
    answer, text = ask(page)
    _, modern = ask(page, accept=OPENMETRICS)
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "trace_id" not in text
    named = {sample.name for family in classic(text) for sample in family.samples}
    assert named == {sample.name for family in openmetrics(modern) for sample in family.samples}
    assert all(name.startswith("loopwatch_") for name in named)
    assert "loopwatch_export_errors_total" in named


def test_head_has_no_body_and_other_paths_are_not_found(page):
    answer, body = ask(page, method="HEAD")
    assert (answer.status, body) == (200, "")
    assert int(answer.headers["Content-Length"]) > 1000
    assert ask(page, "/metrics?name=x")[0].status == 200
    assert ask(page, "/")[0].status == 404
    assert ask(page, method="POST")[0].status == 501


def test_a_client_that_says_nothing_holds_up_neither_another_nor_the_end(page):
    with socket.create_connection(("127.0.0.1", page.port)):
        assert ask(page)[0].status == 200


def test_a_port_that_is_taken_is_named_with_what_to_do(page):
    with pytest.raises(lw.LoopwatchError, match=rf"prometheus_port={page.port}: cannot listen on .* 0 for a free one"):
        Page("127.0.0.1", page.port)


@pytest.mark.parametrize("port", [-1, 65536, True, "9464"])
def test_what_is_no_port_is_refused(port):
    with pytest.raises(lw.LoopwatchError, match="prometheus_port must be a TCP port"):
        Page("127.0.0.1", port)


@pytest.mark.parametrize("host", ["", None, b"127.0.0.1"])
def test_what_is_no_address_does_not_show_the_page_to_everybody(host):
    with pytest.raises(lw.LoopwatchError, match="prometheus_host must be an address"):
        Page(host, 0)


def test_it_listens_on_the_address_that_was_given_alone(page):
    assert page._server.socket.getsockname()[0] == "127.0.0.1"


def test_a_closed_page_frees_its_port():
    first = Page("127.0.0.1", 0)
    first.close()
    second = Page("127.0.0.1", first.port)
    second.close()
    assert second.port == first.port


def test_exemplars_stay_with_the_parent_after_a_fork():
    one_run()
    metrics._registry.after_fork()
    assert metrics._registry.exemplars == {}
