"""What ``loopwatch run`` does inside of the program's process: the guard at its beginning, the table at its end."""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_loopwatch.calls import StopReason
from otel_loopwatch.errors import LoopwatchError, is_disabled, is_strict, telemetry_guard
from otel_loopwatch.launch.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from otel_loopwatch.launch.record import Record
    from otel_loopwatch.launch.unseen import ArgumentWatch

__all__ = ["launched", "start"]

BAD_INPUT: Final = 2
FLUSH_S: Final = 5.0
"""Seconds that the telemetry may take to leave when the process is told to end."""

GIVE_UP_S: Final = 8.0
"""Seconds after SIGTERM at which the process ends, whatever is still to be done: orchestrators kill after 10 or 30."""

MAX_TOOLS_NAMED: Final = 5

_launched: Settings | None = None


def launched() -> Settings | None:
    """The settings under which this very process was launched; ``None`` where it was not."""
    return _launched


def start(handed_over: str) -> None:
    """Put the guard into this process. What goes wrong here does not keep the program from running.

    Except where it was asked for by name and cannot be had (a port): then the process ends, with exit code 2.

    Args:
        handed_over: The variable's value.
    """
    global _launched  # noqa: PLW0603 - one launch a process
    if is_disabled():
        return
    try:
        _launched = Settings.decode(handed_over)
        _set_up(_launched)
    except LoopwatchError as error:
        _say(f"loopwatch: {error}")
        # An exception would be reported by site, and the program would run without what was asked for.
        os._exit(BAD_INPUT)
    except Exception as fault:
        if is_strict():
            raise
        _say(f"loopwatch: could not start ({type(fault).__name__}): the program runs without it")


def _set_up(settings: Settings) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - with start()'s except around it

    from otel_loopwatch import processor, run  # noqa: PLC0415
    from otel_loopwatch.configure import configure  # noqa: PLC0415
    from otel_loopwatch.launch import instrumentations, providers  # noqa: PLC0415
    from otel_loopwatch.launch.record import Record  # noqa: PLC0415
    from otel_loopwatch.launch.unseen import ArgumentWatch  # noqa: PLC0415

    watch = ArgumentWatch()
    watched: list[TracerProvider] = []

    def attach(provider: TracerProvider) -> None:
        processor.attach(provider)
        if not any(provider is other for other in watched):
            watched.append(provider)
            provider.add_span_processor(watch)  # type: ignore[attr-defined] # attach() has looked

    configured = configure(settings.service_name, prometheus_port=settings.prometheus_port)
    if configured.prometheus_port is not None:
        _say(f"loopwatch: metrics: http://127.0.0.1:{configured.prometheus_port}/metrics")
    attach(trace.get_tracer_provider())
    ending = _Ending(settings, Record(), watch)
    run.on_run_closed(ending.record.add)
    # Registered before anything of the program's, so it comes after that; and before the exporters are shut down.
    atexit.register(ending.finish)
    providers.let_the_programs_own_win(attach)
    _on_sigterm(ending)
    instrumentations.load(attach)


def _on_sigterm(ending: _Ending) -> None:
    """Finish before SIGTERM ends the process, unless the program has a handler of its own."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminated(number: int, frame: object) -> None:
        del frame
        if os.getpid() == ending.pid:
            # This thread may have been interrupted while it held any lock, so it must not take one. Not even those of
            # the threading module, hence the bare thread.
            done = _thread.allocate_lock()
            done.acquire()
            _thread.start_new_thread(_finish_and_flush, (ending, done.release))
            done.acquire(timeout=GIVE_UP_S)
        # It ends as it would have without us.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, terminated)


def _finish_and_flush(ending: _Ending, done: Callable[[], None]) -> None:
    from otel_loopwatch.configure import shutdown  # noqa: PLC0415 - as above
    from otel_loopwatch.telemetry import flush  # noqa: PLC0415

    try:
        ending.finish()
        with telemetry_guard("launch"):
            shutdown(FLUSH_S)
            # What the program set up itself.
            flush(FLUSH_S)
    finally:
        done()


class _Ending:
    """What is said when the process ends, once."""

    def __init__(self, settings: Settings, record: Record, watch: ArgumentWatch) -> None:
        self.record = record
        self.pid = os.getpid()
        self._settings = settings
        self._watch = watch
        self._began = datetime.now(UTC)
        self._clock = time.monotonic()
        self._done = False

    def finish(self) -> None:
        """End the runs that are open, print the table and write the report. Not in a forked child."""
        if self._done or os.getpid() != self.pid:
            return
        self._done = True
        with telemetry_guard("launch"):
            self._finish()

    def _finish(self) -> None:
        from otel_loopwatch.launch.record import report, table, write_report  # noqa: PLC0415 - as above
        from otel_loopwatch.run import open_runs  # noqa: PLC0415

        for run in reversed(open_runs()):
            run.close(StopReason.CANCELLED)
        unseen = self._watch.unseen()
        _say("\n".join(["", "loopwatch: runs", *(table(self.record) or [_NO_RUNS]), *_about(unseen)]))
        if self._settings.report is not None:
            facts: dict[str, Any] = {
                "service_name": self._settings.service_name,
                "started_at": self._began.isoformat(timespec="milliseconds"),
                "duration_s": round(time.monotonic() - self._clock, 6),
                "tools_without_arguments": unseen,
            }
            try:
                write_report(self._settings.report, report(self.record, facts))
            except OSError as error:
                _say(f"loopwatch: the report cannot be written to {self._settings.report}: {error.strerror}")


_NO_RUNS: Final = (
    "none was seen: nothing made spans of agents, models or tools, and no guarded tool was called. Is an "
    "instrumentation of the agent's library installed?"
)


def _about(unseen: list[str]) -> list[str]:
    """What is to be said about tools whose arguments nobody has shown."""
    if not unseen:
        return []
    named = ", ".join(unseen[:MAX_TOOLS_NAMED]) + (", ..." if len(unseen) > MAX_TOOLS_NAMED else "")
    return [
        f"The spans of {named} show no arguments, so no loop of these calls can be seen.",
        "Most libraries record them with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY.",
    ]


def _say(text: str) -> None:
    """Write to the standard error that the process began with: the program may have put something else in its place."""
    stream = sys.__stderr__
    if stream is not None:
        try:
            stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):
            return
