"""YAML and TOML text -> plain data and the line of each key. Knows nothing of policies but that they are small.

YAML is read as people expect who have not read its specification: only ``true`` and ``false`` are booleans (a tool may
be called ``no``), ``1:30`` is text, ``1e3`` is a number, keys are text. Aliases, tags, duplicate keys and deep nesting
are refused: no policy needs them, and they make a small file large, or one reader differ from another.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import yaml

from otel_loopwatch.errors import PolicyError

__all__ = ["Document", "Path", "parse", "show"]

Path = tuple[str, ...]
"""Keys from the top to a value."""

MAX_DEPTH = 16
"""Levels of YAML; a policy has six."""
MAX_DOTS = 1000
"""Dots in a line of TOML: tomllib needs quadratic time for a dotted key."""

MAX_SHOWN = 60
"""Characters of a key that an error shows."""

_PREFIX = "tag:yaml.org,2002:"
_SCALARS: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|", "~n", lambda _: None),
    "bool": (r"true|false", "tf", lambda text: text == "true"),
    # Longer ones are read as floats, and then are no whole numbers: int() refuses 4,300 digits in its own words.
    "int": (r"[-+]?[0-9](_?[0-9]){0,17}", "-+0123456789", int),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
        lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    ),
}


class Document(NamedTuple):
    """What a file says.

    Attributes:
        data: The mapping at the top.
        lines: Line of each key, from 1; of TOML, as far as it is easily found.
    """

    data: dict[str, Any]
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int | None:
        """The line of the key at *path*, or of the nearest one above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def show(path: Path) -> str:
    """*path* as a dotted key. Names that hold a dot are quoted, long ones cut."""
    short = (part if len(part) <= MAX_SHOWN else f"{part[:MAX_SHOWN]}..." for part in path)
    return ".".join(f'"{part}"' if "." in part else part for part in short)


def parse(text: str, syntax: Literal["yaml", "toml"], file: str | None = None) -> Document:
    """The data in *text*. An empty text is an empty mapping.

    Raises:
        PolicyError: Where *text* is not of that syntax, or its top is not a mapping.
    """
    return _parse_yaml(text, file) if syntax == "yaml" else _parse_toml(text, file)


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses what a policy does not need before it is built."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = cast("yaml.Mark", event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        if event.tag is not None:
            raise yaml.MarkedYAMLError(problem="tags are not allowed", problem_mark=mark)
        if self.depth == MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


# Not those of SafeLoader, which are YAML 1.1: "no" is false there, and 1:30 is 90.
_Loader.yaml_implicit_resolvers = {}
for _name, (_regex, _first, _) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        _PREFIX + _name, re.compile(rf"(?:{_regex})\Z"), [*_first, ""] if _name == "null" else list(_first)
    )


def _parse_yaml(text: str, file: str | None) -> Document:
    lines: dict[Path, int] = {}

    def value(node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode):
            return mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [value(item, path) for item in node.value]
        _, _, convert = _SCALARS.get(node.tag.removeprefix(_PREFIX), ("", "", str))
        return convert(node.value)

    def mapping(node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise PolicyError("a key must be text", key=show(path), file=file, line=line)
            key = key_node.value
            if key in result:
                raise PolicyError(
                    f"is there twice, first in line {lines[*path, key]}", key=show((*path, key)), file=file, line=line
                )
            lines[*path, key] = line
            result[key] = value(value_node, (*path, key))
        return result

    try:
        # The loader is a SafeLoader, and builds no objects but those of value() above.
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise PolicyError(f"not YAML that can be read: {error.problem}", file=file, line=line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PolicyError(f"not YAML that can be read: {error.reason}", file=file, line=line) from None
    data = {} if node is None else value(node, ())
    return Document(_top({} if data is None else data, file), lines)


def _parse_toml(text: str, file: str | None) -> Document:
    lines = text.splitlines()
    for number, content in enumerate(lines, 1):
        if content.count(".") > MAX_DOTS:
            raise PolicyError(f"more than {MAX_DOTS:,} dots in a line", file=file, line=number)
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        message, _, place = str(error).partition(" (at ")
        # "line 3, column 5", or "end of document".
        found = re.match(r"line (\d+)", place)
        line = int(found[1]) if found else len(lines)
        raise PolicyError(f"not TOML that can be read: {message}", file=file, line=line) from None
    except RecursionError:
        raise PolicyError("not TOML that can be read: nested too deeply", file=file) from None
    return Document(data, _toml_lines(lines))


_TOML_KEY = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_TOML_KEYS = rf"{_TOML_KEY}(?:\s*\.\s*{_TOML_KEY})*"
_TOML_HEADER = re.compile(rf"\s*\[\[?\s*({_TOML_KEYS})\s*\]")
_TOML_ASSIGNMENT = re.compile(rf"\s*({_TOML_KEYS})\s*=")


def _toml_lines(lines: list[str]) -> dict[Path, int]:
    """Where keys stand, as far as one line tells: keys of an inline table are not found."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(lines, 1):
        if header := _TOML_HEADER.match(line):
            path = table = _toml_path(header[1])
        elif assignment := _TOML_ASSIGNMENT.match(line):
            path = table + _toml_path(assignment[1])
        else:
            continue
        for end in range(1, len(path) + 1):
            found.setdefault(path[:end], number)
    return found


def _toml_path(keys: str) -> Path:
    return tuple(key.strip("\"'") for key in re.findall(_TOML_KEY, keys))


def _top(data: object, file: str | None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PolicyError("the top of a policy must be a mapping (budgets:, loops:, tools:)", file=file, line=1)
    return data
