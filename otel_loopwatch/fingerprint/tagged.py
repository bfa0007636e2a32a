"""Values that JSON does not know, as a tag and a payload that it does.

A rule turns one value into ``(tag, payload)``: the tag begins with ``!``, which no JSON value does, so that a tagged
value never equals an untagged one; the payload is made of JSON types and of further values. An empty tag means that
the value counts as its payload. Equal by intention:

* A subclass of str, int, float, list, tuple or dict and its base; numpy scalars and the Python values they hold.
* bytes, bytearray and memoryview of the same bytes. Decimals of the same value (``1.0`` and ``1.00``), not the float.
* Any two objects of one class for which there is no rule: they count as the qualified name of their class.

Nothing is imported for this: numpy, pandas, attrs and pydantic are recognised by the names and the attributes of a
class. Only what an object already holds is read: no iterator, generator or file is touched, no ``repr`` or ``id`` used.
"""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import enum
import fractions
import hashlib
import ipaddress
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["MISSING", "Rule", "Unordered", "class_attribute", "fields_of", "qualified_name", "rule_for"]

Rule = Callable[[Any], tuple[bytes, Any]]
"""Turns a value into its tag and payload. May raise: the caller falls back to the name of the class."""

MAX_LEAF_BYTES = 64 * 2**20
"""Above this size bytes and arrays are hashed by their first and last half of it, and their length: 64 MiB."""

MAX_OBJECT_ITEMS = 100_000
"""Above this number, items of an array or column of Python objects count by the first and last half of it, and their
number."""

MISSING: Any = object()


class Unordered(list[Any]):
    """A payload whose order means nothing."""


_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def qualified_name(kind: type) -> str:
    """``module.QualName`` of a class, whatever its metaclass does."""
    name = _qualname(kind)
    try:
        module = _module(kind)
    except AttributeError:
        return name
    return f"{module}.{name}" if type(module) is str else name


def class_attribute(kind: type, name: str) -> Any:
    """*name* as some class of the MRO defines it, or ``MISSING``. Runs no code of the class."""
    for base in _mro(kind):
        found = type.__dict__["__dict__"].__get__(base)
        if name in found:
            return found[name]
    return MISSING


def _attribute(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _fields(value: Any, names: Iterator[str]) -> dict[str, Any]:
    """The attributes of *value* that are set, by name."""
    found = ((name, _attribute(value, name)) for name in names)
    return {name: held for name, held in found if held is not MISSING}


# --- leaves -----------------------------------------------------------------------------------------------------------


def _leaf(view: memoryview) -> list[Any]:
    """Length and SHA-256 of bytes; see :data:`MAX_LEAF_BYTES`."""
    size = view.nbytes
    if size > MAX_LEAF_BYTES:
        half = MAX_LEAF_BYTES // 2
        whole = hashlib.sha256(view[:half])
        whole.update(view[-half:])
    else:
        whole = hashlib.sha256(view)
    # In one word, which masking takes for no id.
    return [size, "sha256" + whole.hexdigest()]


def _flat(value: Any) -> memoryview:
    view = memoryview(value)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def _bytes(value: Any) -> tuple[bytes, Any]:
    return b"!bytes", _leaf(_flat(value))


def _array(value: array.array[Any]) -> tuple[bytes, Any]:
    return b"!array", [value.typecode, *_leaf(_flat(value))]


def _moment(tag: bytes) -> Rule:
    return lambda value: (tag, value.isoformat())


def _timedelta(value: dt.timedelta) -> tuple[bytes, Any]:
    return b"!timedelta", [value.days, value.seconds, value.microseconds, getattr(value, "nanoseconds", 0)]


def _decimal(value: decimal.Decimal) -> tuple[bytes, Any]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return b"!decimal", [sign, "".join(map(str, digits)), exponent]
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return b"!decimal", [sign, kept, exponent + len(text) - len(kept)] if kept else [0, "", 0]


def _enum(value: enum.Enum) -> tuple[bytes, Any]:
    # By value and not by name: a combination of flags has no name, and an alias has another.
    return b"!enum", [qualified_name(type(value)), object.__getattribute__(value, "_value_")]


def _text_of(tag: bytes) -> Rule:
    return lambda value: (tag, str(value))


def _pattern(value: re.Pattern[Any]) -> tuple[bytes, Any]:
    return b"!pattern", [value.pattern, value.flags]


def _named(value: Any) -> tuple[bytes, Any]:
    name = getattr(value, "__qualname__", None) or value.__name__
    return b"!name", f"{getattr(value, '__module__', None)}.{name}"


def _class(value: type) -> tuple[bytes, Any]:
    return b"!name", qualified_name(value)


# --- containers -------------------------------------------------------------------------------------------------------


def _instance(tag: bytes, names: Callable[[Any], Iterator[str]]) -> Rule:
    return lambda value: (tag, [qualified_name(type(value)), _fields(value, names(value))])


def _dataclass_names(value: Any) -> Iterator[str]:
    return iter(class_attribute(type(value), "__dataclass_fields__"))


def _attrs_names(value: Any) -> Iterator[str]:
    return (item.name for item in class_attribute(type(value), "__attrs_attrs__"))


def _struct_names(value: Any) -> Iterator[str]:
    return iter(type(value).__struct_fields__)


def _model(value: Any) -> tuple[bytes, Any]:
    """A pydantic model by what it holds: ``model_dump`` would run serializers and consume iterators."""
    held = dict(object.__getattribute__(value, "__dict__"))
    extra = _attribute(value, "__pydantic_extra__")
    if isinstance(extra, dict):
        held.update(extra)
    return b"!model", [qualified_name(type(value)), held]


def _dumped(value: Any) -> tuple[bytes, Any]:
    return b"!model", [qualified_name(type(value)), value.model_dump()]


def _secret(value: Any) -> tuple[bytes, Any]:
    return b"!secret", value.get_secret_value()


def _mapping(value: Mapping[Any, Any]) -> tuple[bytes, Any]:
    return b"", {key: value[key] for key in value}


def _range(value: range) -> tuple[bytes, Any]:
    return b"!range", [value.start, value.stop, value.step]


def _slice(value: slice) -> tuple[bytes, Any]:
    return b"!slice", [value.start, value.stop, value.step]


# --- numpy and pandas -------------------------------------------------------------------------------------------------


def _numpy_scalar(value: Any) -> tuple[bytes, Any]:
    if value.dtype.kind in "biufcSU":
        held = value.item()
        # A long double is its own item.
        if type(held) is not type(value):
            return b"", held
    return b"!numpy", [value.dtype.str, value.tobytes()]


def _ndarray(value: Any) -> tuple[bytes, Any]:
    dtype = value.dtype
    shape = list(value.shape)
    if dtype.hasobject:
        flat = value.ravel()
        if flat.size > MAX_OBJECT_ITEMS:
            half = MAX_OBJECT_ITEMS // 2
            return b"!ndarray", [dtype.str, shape, flat[:half].tolist(), flat[-half:].tolist()]
        return b"!ndarray", [dtype.str, shape, flat.tolist()]
    # As bytes: the buffer protocol does not know the times of numpy.
    raw = value.reshape(-1).view("u1") if value.flags.c_contiguous and value.size else value.tobytes()
    return b"!ndarray", [dtype.descr if dtype.fields else dtype.str, shape, *_leaf(_flat(raw))]


def _column(value: Any) -> Any:
    """The values of a Series or an Index as numpy arrays. What would have to be made into objects is cut first."""
    kind = getattr(value.dtype, "kind", "O")
    size = len(value)
    if (kind in "biufc" and hasattr(value.dtype, "descr")) or size <= MAX_OBJECT_ITEMS:
        return [str(value.dtype), size, value.to_numpy()]
    half = MAX_OBJECT_ITEMS // 2
    cut = getattr(value, "iloc", value)
    return [str(value.dtype), size, cut[:half].to_numpy(), cut[-half:].to_numpy()]


def _index(value: Any) -> tuple[bytes, Any]:
    if type(value).__name__ == "RangeIndex":
        return b"!index", [value.name, value.start, value.stop, value.step]
    return b"!index", [list(value.names), _column(value)]


def _series(value: Any) -> tuple[bytes, Any]:
    return b"!series", [value.name, value.index, _column(value)]


def _dataframe(value: Any) -> tuple[bytes, Any]:
    columns = [_column(value.iloc[:, at]) for at in range(value.shape[1])]
    return b"!dataframe", [value.columns, value.index, columns]


_BY_CLASS: dict[type, Rule] = {
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    array.array: _array,
    dt.datetime: _moment(b"!datetime"),
    dt.date: _moment(b"!date"),
    dt.time: _moment(b"!time"),
    dt.timedelta: _timedelta,
    decimal.Decimal: _decimal,
    fractions.Fraction: lambda value: (b"!fraction", [value.numerator, value.denominator]),
    complex: lambda value: (b"!complex", [value.real, value.imag]),
    uuid.UUID: _text_of(b"!uuid"),
    pathlib.PurePath: _text_of(b"!path"),
    ipaddress.IPv4Address: _text_of(b"!ip"),
    ipaddress.IPv6Address: _text_of(b"!ip"),
    ipaddress.IPv4Network: _text_of(b"!ip"),
    ipaddress.IPv6Network: _text_of(b"!ip"),
    re.Pattern: _pattern,
    range: _range,
    slice: _slice,
    str: lambda value: (b"", str.__str__(value)),
    int: lambda value: (b"", int.__pos__(value)),
    float: lambda value: (b"", float.__pos__(value)),
    list: lambda value: (b"", list.__getitem__(value, slice(None))),
    tuple: lambda value: (b"", list(tuple.__iter__(value))),
    dict: lambda value: (b"", dict(dict.items(value))),
    set: lambda value: (b"!set", Unordered(set.__iter__(value))),
    frozenset: lambda value: (b"!set", Unordered(frozenset.__iter__(value))),
    collections.deque: lambda value: (b"", list(collections.deque.__iter__(value))),
    collections.UserList: lambda value: (b"", list(value.data)),
    types.MappingProxyType: _mapping,
    types.SimpleNamespace: lambda value: (b"!namespace", dict(vars(value))),
    types.FunctionType: _named,
    types.BuiltinFunctionType: _named,
    types.MethodType: _named,
    types.ModuleType: lambda value: (b"!name", value.__name__),
    type: _class,
}

_BY_NAME: dict[tuple[str, str], Rule] = {
    ("numpy", "generic"): _numpy_scalar,
    ("numpy", "ndarray"): _ndarray,
    ("pandas", "DataFrame"): _dataframe,
    ("pandas", "Series"): _series,
    ("pandas", "Index"): _index,
}

_BY_ATTRIBUTE: dict[str, Rule] = {
    # First, as a dataclass of pydantic with slots has no __dict__.
    "__dataclass_fields__": _instance(b"!dataclass", _dataclass_names),
    "__pydantic_fields__": _model,
    "__pydantic_validator__": _model,
    "__attrs_attrs__": _instance(b"!attrs", _attrs_names),
    "__struct_fields__": _instance(b"!struct", _struct_names),
    "model_dump": _dumped,
    "get_secret_value": _secret,
    "unicode_string": _text_of(b"!url"),
}


_WITH_FIELDS: tuple[Rule, ...] = tuple(_BY_ATTRIBUTE[name] for name in _BY_ATTRIBUTE if name.startswith("__"))


def rule_for(kind: type) -> Rule | None:
    """The rule for instances of *kind*, or ``None`` where they count as the name of their class.

    Raises:
        Exception: Whatever a hostile metaclass raises.
    """
    bases = _mro(kind)
    if enum.Enum in bases:
        return _enum
    for name, rule in _BY_ATTRIBUTE.items():
        if class_attribute(kind, name) is not MISSING:
            return rule
    for base in bases:
        found = _BY_CLASS.get(base)
        if found is None:
            module = _module(base)
            if type(module) is str:
                found = _BY_NAME.get((module.partition(".")[0], _qualname(base)))
        if found is not None:
            return found
    return _mapping if issubclass(kind, Mapping) else None


def fields_of(value: Any) -> dict[str, Any] | None:
    """What an object with declared fields holds, by name; ``None`` for anything else.

    Raises:
        Exception: Whatever a hostile class raises.
    """
    rule = rule_for(type(value))
    if rule is not None and rule in _WITH_FIELDS:
        held: dict[str, Any] = rule(value)[1][1]
        return held
    return None
