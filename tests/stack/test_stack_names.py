"""H-7: a metric has one name, one type and one set of labels, whichever way it takes to Prometheus."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest
from local_stack import LocalStack, wait_until
from stack_parts import HERE, environment

from otel_loopwatch import semconv
from otel_loopwatch.semconv import METRICS

pytestmark = [pytest.mark.project, pytest.mark.timeout(180)]

PAGE, COLLECTOR, RECEIVER = "pages", "through-collector", "through-receiver"
TYPE = "__type__"


@pytest.fixture(scope="module")
def three_ways(has_programs, tmp_path_factory):
    """A Prometheus that has every metric by each of the three ways, and keeps its type."""
    with LocalStack(tmp_path_factory.mktemp("names"), factor=120, features=("type-and-unit-labels",)) as stack:
        running = []
        for service, endpoint in ((COLLECTOR, f"{stack.otlp_http}/v1/metrics"), (RECEIVER, stack.prometheus_otlp)):
            sends = {
                "OTEL_SERVICE_NAME": service,
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": endpoint,
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            }
            command = [sys.executable, str(HERE / "every_metric.py")]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            running.append(subprocess.Popen(command, env=environment(**sends), text=True, process_group=0, **pipes))
        try:
            ports = [int(process.stdout.readline()) for process in running]
            stack.scrape(f"127.0.0.1:{ports[0]}", job=PAGE)
            # What every_metric.py says last.
            last = semconv.RUN_AGE_MAX.prometheus
            for job in (PAGE, COLLECTOR, RECEIVER):
                wait_until(f"{last} of {job}", lambda job=job: stack.query(f'{last}{{job="{job}"}}'))
            yield stack
        finally:
            for process in running:
                process.stdin.close()
                try:
                    process.wait(30)
                finally:
                    process.kill()
                    process.wait()
                    process.stdout.close()


def series(stack: LocalStack, job: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Name and labels of every series of ours; without where it comes from, and without the way a bound is written."""
    found = set()
    for labels, _ in stack.query(f'{{__name__=~"loopwatch_.*", job="{job}"}}'):
        kept = {key: value for key, value in labels.items() if key not in ("__name__", "job", "instance", "__unit__")}
        if "le" in kept:
            kept["le"] = str(float(kept["le"]))
        found.add((labels["__name__"], tuple(sorted(kept.items()))))
    return found


def names_of(metric: semconv.Metric) -> set[str]:
    if metric.kind != "histogram":
        return {metric.prometheus}
    return {f"{metric.prometheus}_{part}" for part in ("bucket", "sum", "count")}


def test_h7_every_metric_comes_by_each_way_under_its_name_type_and_labels(three_ways):
    expected = {
        name: (metric.kind, set(metric.labels) | ({"le"} if name.endswith("_bucket") else set()))
        for metric in METRICS
        for name in names_of(metric)
    }
    for job in (PAGE, COLLECTOR, RECEIVER):
        came: dict[str, tuple[str, set[str]]] = {}
        for name, labels in series(three_ways, job):
            kind = dict(labels)[TYPE]
            known = came.setdefault(name, (kind, set()))
            assert known[0] == kind, f"{name} by {job} has two types"
            known[1].update(key for key, _ in labels if key != TYPE)
        # A label that is "" everywhere is none in Prometheus: nothing of that kind was sent here.
        assert came == expected, job


def test_h7_the_series_are_the_same_by_each_way(three_ways):
    by_page = series(three_ways, PAGE)
    assert len(by_page) > 150, "the folded series are not there: the page was not scraped as a whole"
    for job in (COLLECTOR, RECEIVER):
        assert series(three_ways, job) == by_page, job


def test_job_and_instance_are_those_of_the_agent(three_ways):
    (by_collector,) = three_ways.query(f'{semconv.HEARTBEAT.prometheus}{{job="{COLLECTOR}"}}')
    (by_receiver,) = three_ways.query(f'{semconv.HEARTBEAT.prometheus}{{job="{RECEIVER}"}}')
    collectors = {labels["instance"] for labels, _ in three_ways.query('up{job="agents"}')}
    # service.instance.id: a UUID.
    assert len(by_collector[0]["instance"]) == len(by_receiver[0]["instance"]) == 36
    assert by_collector[0]["instance"] not in collectors


@pytest.mark.parametrize("job", [PAGE, COLLECTOR, RECEIVER])
def test_a_bucket_of_a_run_leads_to_its_trace(three_ways, job):
    found = wait_until(
        f"an exemplar by {job}",
        lambda: three_ways.ask(
            "query_exemplars",
            query=f'{semconv.RUN_TOOL_CALLS.prometheus}_bucket{{job="{job}"}}',
            start=0,
            end=4e9,
        ),
    )
    # The name that stack/grafana/provisioning/datasources/loopwatch.yml makes a link of.
    assert len(found[0]["exemplars"][0]["labels"]["trace_id"]) == 32


def test_the_page_is_as_prometheus_wants_it(three_ways):
    (target,) = [each for each in three_ways.ask("targets")["activeTargets"] if each["labels"]["job"] == PAGE]
    with urllib.request.urlopen(target["scrapeUrl"]) as answer:
        checked = three_ways.tool("promtool", "check", "metrics", given=answer.read().decode())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
