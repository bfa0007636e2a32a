"""Switches on what the installed libraries can say about themselves, so that an agent need not."""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_loopwatch.errors import telemetry_guard

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["load"]

logger = logging.getLogger("otel_loopwatch")

GROUP: Final = "opentelemetry_instrumentor"
OURS: Final = "loopwatch"
DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""Names, comma separated, or ``*``: the switch of ``opentelemetry-instrument``, which is honoured here."""

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES: Final = frozenset({"true", "span_only", "span_and_event"})


def load(attach: Callable[[TracerProvider], object]) -> None:
    """Switch on every installed instrumentation, as ``opentelemetry-instrument`` would; one that fails is left out.

    What a library records of messages, arguments and results stays as it is set: this switches spans on, not content.

    Args:
        attach: Puts the guard on a tracer provider that the program hands to an instrumentation itself.
    """
    disabled = {name.strip() for name in os.environ.get(DISABLED, "").split(",")}
    if "*" in disabled:
        return
    loaded: list[object] = []
    for entry_point in entry_points(group=GROUP):
        if entry_point.name != OURS and entry_point.name not in disabled:
            instrumentor = _switched_on(entry_point)
            if instrumentor is not None:
                loaded.append(instrumentor)
    if loaded:
        _let_the_programs_own_win(loaded, attach)
    if "pydantic_ai" not in disabled:
        sys.meta_path.insert(0, _AfterImport("pydantic_ai", _instrument_pydantic_ai))


def _switched_on(entry_point: EntryPoint) -> object | None:
    """The instrumentor behind *entry_point*, at work; ``None`` where its library is not there or it fails."""
    try:
        from opentelemetry.instrumentation.dependencies import get_dist_dependency_conflicts  # noqa: PLC0415 - optional

        if entry_point.dist is not None and get_dist_dependency_conflicts(entry_point.dist) is not None:
            return None
        instrumentor: Any = entry_point.load()()
        instrumentor.instrument(skip_dep_check=True)
    except ModuleNotFoundError:
        # Of the library that it instruments, mostly: that is not installed.
        return None
    except Exception as fault:  # noqa: BLE001 - of somebody else's, whatever it is
        logger.warning("otel-loopwatch: instrumentation %r is left out: %s", entry_point.name, type(fault).__name__)
        return None
    found: object = instrumentor
    return found


def _let_the_programs_own_win(loaded: list[object], attach: Callable[[TracerProvider], object]) -> None:
    """Let the program switch an instrumentation on itself, with its own options, although it is on already."""
    from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined] # noqa: PLC0415 - optional
        BaseInstrumentor,
    )

    original = BaseInstrumentor.instrument

    def instrument(self: BaseInstrumentor, **kwargs: Any) -> Any:
        # Instrumentors are singletons of their class.
        ours = next((one for one in loaded if one is self), None)
        if ours is not None:
            loaded.remove(ours)
            with telemetry_guard("launch"):
                self.uninstrument()
        provider = kwargs.get("tracer_provider")
        if provider is not None:
            with telemetry_guard("launch"):
                attach(provider)
        return original(self, **kwargs)

    BaseInstrumentor.instrument = instrument


def _instrument_pydantic_ai(module: ModuleType) -> None:
    """Switch on the spans of every agent. Content is recorded where the variable of all the others says so."""
    content = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURES
    module.Agent.instrument_all(module.InstrumentationSettings(include_content=content))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls *action* with the module *name* as soon as the program has imported it."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the module as the finders after this one find it, with a loader that calls the action."""
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenAct(spec.loader, self._action)
        return spec


class _ThenAct(importlib.abc.Loader):
    """A loader, and an action after it."""

    def __init__(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, as the loader makes it."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, and the action."""
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with telemetry_guard("launch"):
            self._action(module)
