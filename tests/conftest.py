"""What holds for every test: our own faults are raised, no test sees another, and on CI nothing is skipped."""

# ruff: noqa: E402 - the environment comes before the imports

from __future__ import annotations

import os

# No setting of the developer's machine goes in. The package and the SDK read some when they are imported.
for name in [name for name in os.environ if name.startswith(("LOOPWATCH_", "OTEL_"))]:
    if name != "LOOPWATCH_WRITE_README":
        del os.environ[name]
# The guard hides no fault of its own from its tests.
os.environ["LOOPWATCH_STRICT"] = "1"

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from otel_loopwatch import clock, telemetry, testing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and programs under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ON_CI = os.environ.get("CI", "").lower() in ("1", "true")

# The machine is shared: a slow example is not a fault. The same examples each time on CI.
settings.register_profile(
    "loopwatch", deadline=None, max_examples=100, derandomize=ON_CI, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("loopwatch")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing that a test set comes out."""
    yield
    clock.set_clock(None)
    telemetry.use_tracer_provider(None)
    testing.reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if ON_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and on CI everything must be there: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if ON_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and on CI everything must be there: {report.longrepr}"
    return report
