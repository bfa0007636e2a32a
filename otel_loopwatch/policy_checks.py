"""What the fields of a policy may hold. Each check takes the owner and the field's name, and raises PolicyError.

A value is checked, and normalised where it has to be, when the owner is made: there is no other moment at which a wrong
limit could still be told from one that never holds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from otel_loopwatch.amounts import amount
from otel_loopwatch.errors import PolicyError

__all__ = ["boolean", "names", "one_of", "positive_int", "positive_money", "positive_number", "shown", "table"]


def shown(value: object) -> str:
    """*value* for a message."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a number of 5,000 digits has no repr, and an object of the user's may raise anything
        return f"a {type(value).__name__}"


def positive_int(owner: object, name: str, *, optional: bool = True) -> None:
    """A whole number of at least 1."""
    value = getattr(owner, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(f"must be a whole number, not {shown(value)}", key=name)
    if value < 1:
        raise PolicyError(f"must be at least 1, not {shown(value)} (leave it out for no limit)", key=name)


def positive_number(owner: object, name: str, *, optional: bool = True) -> None:
    """A finite number above 0."""
    value = getattr(owner, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(f"must be a number, not {shown(value)}", key=name)
    # False for NaN, and for whole numbers that no timer takes.
    if not 0 < value <= sys.float_info.max:
        raise PolicyError(f"must be a finite number above 0, not {shown(value)} (leave it out for no limit)", key=name)


def positive_money(owner: object, name: str) -> None:
    """A finite amount of USD above 0, kept as Decimal."""
    value = getattr(owner, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise PolicyError(f"must be an amount of USD, not {shown(value)}", key=name)
    usd = amount(value)
    if not usd:
        raise PolicyError(
            f"must be a finite amount of USD above 0, not {shown(value)} (leave it out for no limit)", key=name
        )
    object.__setattr__(owner, name, usd)


def one_of(owner: object, name: str, allowed: tuple[Any, ...], *, optional: bool = False) -> None:
    """One of a few words."""
    value = getattr(owner, name)
    if value is None and optional:
        return
    if value not in allowed:
        raise PolicyError(f"must be one of {', '.join(map(str, allowed))}, not {shown(value)}", key=name)


def boolean(owner: object, name: str, *, optional: bool = False) -> None:
    """True or False, and no other truth."""
    value = getattr(owner, name)
    if value is None and optional:
        return
    if not isinstance(value, bool):
        raise PolicyError(f"must be true or false, not {shown(value)}", key=name)


def names(owner: object, name: str, *, optional: bool = False) -> None:
    """A collection of names, kept as a tuple; one name alone is a mistake."""
    value = getattr(owner, name)
    if value is None and optional:
        return
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(n, str) and n for n in value):
        raise PolicyError(f"must be a list of names, not {shown(value)}", key=name)
    object.__setattr__(owner, name, tuple(value))


def table(owner: object, name: str, kind: type) -> None:
    """A mapping of names to *kind*, kept as one that nobody can change."""
    entries = getattr(owner, name)
    if not isinstance(entries, Mapping):
        raise PolicyError(f"must be a mapping of names to {kind.__name__}, not {shown(entries)}", key=name)
    for key, value in entries.items():
        if not isinstance(key, str) or not key:
            raise PolicyError(f"must be names, not {shown(key)}", key=name)
        if not isinstance(value, kind):
            raise PolicyError(f"must be {kind.__name__}, not {shown(value)}", key=f"{name}.{key}")
    object.__setattr__(owner, name, MappingProxyType(dict(entries)))
