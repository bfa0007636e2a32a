"""(tool, arguments) -> hash: the same for calls that mean the same, and for nothing else.

The hash is HMAC-SHA-256 over the canonical form of ``[tool, arguments]`` (:mod:`.canonical`), cut to
128 bits and written as 32 hexadecimal characters. An implementation in another language can be checked with
``tests/vectors/fingerprints.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from otel_loopwatch.errors import report_fault
from otel_loopwatch.fingerprint.canonical import canonical_call, fast_call
from otel_loopwatch.fingerprint.contexts import is_context_class
from otel_loopwatch.fingerprint.keys import mac
from otel_loopwatch.fingerprint.tagged import fields_of

__all__ = ["fingerprint"]

LoopKey = tuple[str, ...] | Callable[[dict[str, Any]], Any]


def fingerprint(
    tool: str, arguments: Mapping[str, Any], *, ignore_args: tuple[str, ...] = (), loop_key: LoopKey | None = None
) -> str:
    """The hash of one call.

    Values that a framework injected (:func:`register_context_type`) are left out, whatever their names.

    Args:
        tool: Name of the tool.
        arguments: By the names of the parameters, defaults applied: what :meth:`Binder.bind` returns.
        ignore_args: Arguments to leave out, as dotted paths: ``meta.trace_id`` leaves ``trace_id`` out of the dict
            ``meta``, out of each dict of a list ``meta``, and out of a dataclass, attrs or pydantic object.
        loop_key: Names of the only arguments that count, or a function of the arguments that returns what is hashed
            instead of them. Where it raises, all arguments count, and the fault is reported.

    Returns:
        32 hexadecimal characters. Never raises an :class:`Exception`.
    """
    if loop_key is None and not ignore_args and type(arguments) is dict:
        # Most calls: JSON types alone, hence nothing injected.
        data = fast_call(tool, arguments)
        if data is not None:
            return mac(data)
    return mac(canonical_call(tool, _chosen(arguments, ignore_args, loop_key)))


def _chosen(arguments: Mapping[str, Any], ignore_args: tuple[str, ...], loop_key: LoopKey | None) -> Any:
    """What is hashed with the name of the tool."""
    try:
        chosen = _without_contexts(arguments)
        for path in ignore_args:
            chosen = _without(chosen, path.split("."))
    except Exception as fault:  # noqa: BLE001 - a Mapping of the user's may raise anything
        report_fault("fingerprint", fault)
        return arguments
    if loop_key is None:
        return chosen
    try:
        if callable(loop_key):
            return loop_key(dict(chosen))
        return {name: chosen[name] for name in loop_key if name in chosen}
    except Exception as fault:  # noqa: BLE001 - code of the user's
        report_fault("loop_key", fault)
        return chosen


def _without_contexts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    held = arguments if type(arguments) is dict else dict(arguments)
    if any(map(is_context_class, map(type, held.values()))):
        return {name: value for name, value in held.items() if not is_context_class(type(value))}
    return held


def _without(value: Any, path: list[str]) -> Any:
    """A copy of *value* without what *path* leads to; *value* itself where it leads nowhere."""
    if isinstance(value, list | tuple):
        return [_without(item, path) for item in value]
    held = value if isinstance(value, dict) else fields_of(value)
    if held is None:
        return value
    # A key may itself contain dots.
    whole = ".".join(path)
    if whole in held:
        return {key: item for key, item in held.items() if key != whole}
    if path[0] not in held:
        return value
    return {key: _without(item, path[1:]) if key == path[0] else item for key, item in held.items()}
