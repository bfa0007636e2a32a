"""The arguments of a call by the names of the parameters, whichever way they were given."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from otel_loopwatch.fingerprint.contexts import is_context_annotation

__all__ = ["Binder"]

Bound = Callable[..., dict[str, Any]]


class Binder:
    """Binds the arguments of one function, compiled once.

    A function with the parameters of *fn* that returns a dict of them is made, so that the interpreter itself binds,
    in a tenth of the time of :meth:`inspect.Signature.bind`.

    Args:
        fn: The tool: a function, method, class, partial or any callable.
        drop_first: Leave the first parameter out of what :meth:`bind` returns: ``self`` or ``cls``.
    """

    __slots__ = ("_bound", "dropped")

    def __init__(self, fn: Callable[..., Any], *, drop_first: bool = False) -> None:
        self.dropped: frozenset[str] = frozenset()
        """Names of the parameters that are left out."""
        try:
            signature = inspect.signature(fn)
        except (ValueError, TypeError):
            first = 1 if drop_first else 0
            self._bound: Bound = lambda *args, **kwargs: {"args": list(args[first:]), "kwargs": kwargs}
            return
        parameters = list(signature.parameters.values())
        names = _names_of(fn)
        dropped = {item.name for item in parameters if is_context_annotation(item.annotation, names)}
        if (
            drop_first
            and parameters
            and parameters[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ):
            dropped.add(parameters[0].name)
        self.dropped = frozenset(dropped)
        self._bound = _compiled(parameters, self.dropped, drop_first=drop_first)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments by name, defaults applied, injected ones left out.

        What ``**kwargs`` takes stands beside the others under its own names, except where such a name could be that of
        another parameter (there are positional-only ones, or ``*args``): then under the name of the parameter.
        Callables without a signature give ``{"args": [...], "kwargs": {...}}``.

        Args:
            args: Positional arguments, ``self`` or ``cls`` included.
            kwargs: Keyword arguments.

        Returns:
            ``None`` where the call cannot be bound: make it, so that the function raises its own TypeError.
        """
        try:
            return self._bound(*args, **kwargs)
        except TypeError:
            return None


def _names_of(fn: Any) -> Mapping[str, Any]:
    """What the names in the annotations of *fn* may refer to."""
    inner = inspect.unwrap(fn) if callable(fn) else fn
    while (wrapped := getattr(inner, "func", None) or getattr(inner, "__func__", None)) is not None:
        inner = wrapped
    if not hasattr(inner, "__globals__"):
        # An object with __call__.
        inner = inspect.getattr_static(type(inner), "__call__", inner)
    found = getattr(inner, "__globals__", {})
    code = getattr(inner, "__code__", None)
    cells = getattr(inner, "__closure__", None) or ()
    if code is None or not cells:
        return found if isinstance(found, dict) else {}
    local = {}
    for name, cell in zip(code.co_freevars, cells, strict=False):
        try:
            local[name] = cell.cell_contents
        except ValueError:
            continue
    return {**found, **local}


def _keeps_extra_apart(parameters: list[Parameter]) -> bool:
    return any(item.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL) for item in parameters)


def _compiled(parameters: list[Parameter], dropped: frozenset[str], *, drop_first: bool) -> Bound:
    """A function with these parameters that returns a dict of them."""
    defaults: list[Any] = []
    written: list[str] = []
    members: list[str] = []
    apart = _keeps_extra_apart(parameters)
    star = False
    for at, item in enumerate(parameters):
        # The positional-only parameter of a function in C may be called "from".
        name = f"{item.name}_" if keyword.iskeyword(item.name) else item.name
        text, value = name, name
        if item.kind is Parameter.KEYWORD_ONLY and not star:
            written.append("*")
            star = True
        if item.kind is Parameter.VAR_POSITIONAL:
            text, star = f"*{name}", True
            # ``self`` as the first of *args
            value = f"{name}[1:]" if drop_first and at == 0 else name
        elif item.kind is Parameter.VAR_KEYWORD:
            text = f"**{name}"
        elif item.default is not Parameter.empty:
            text = f"{name}=_defaults[{len(defaults)}]"
            defaults.append(item.default)
        written.append(text)
        after = parameters[at + 1].kind if at + 1 < len(parameters) else None
        if item.kind is Parameter.POSITIONAL_ONLY and after is not Parameter.POSITIONAL_ONLY:
            written.append("/")
        if item.name not in dropped:
            spread = item.kind is Parameter.VAR_KEYWORD and not apart
            members.append(text if spread else f"{item.name!r}: {value}")
    source = f"def bound({', '.join(written)}):\n    return {{{', '.join(members)}}}"
    scope: dict[str, Any] = {"_defaults": defaults}
    # Made of identifiers alone, as inspect.Parameter takes no others; the defaults are passed as values.
    exec(source, scope)  # noqa: S102
    bound: Bound = scope["bound"]
    return bound
