"""YAML files of settings, restricted to mappings, lists, text, numbers, booleans and null.

Aliases and merges (which can expand to billions of values), tags, duplicate keys, deep nesting and
large files are refused.

Numbers, booleans and null are the scalars on which YAML 1.1 and 1.2 agree. Any other scalar (yes,
1:30, 1_000, 2001-01-01) is text, which the setting parses like an option of the command line. A
whole number with a leading zero is refused: 010 is 8 in YAML 1.1 and 10 in YAML 1.2.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from regard.errors import UserError
from regard.settings.ranges import short_repr
from regard.system.files import read_bytes

MOST_BYTES = 256 << 10
_MOST_DEPTH = 16
_MERGE = "tag:yaml.org,2002:merge"
_SCALARS = {
    f"tag:yaml.org,2002:{name}": re.compile(pattern, re.DOTALL)
    for name, pattern in {
        "str": ".*",
        "int": "[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+",
        "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "bool": "true|True|TRUE|false|False|FALSE",
        "null": "~|null|Null|NULL|",
        "timestamp": "(?!)",
    }.items()
}
"""Scalars that have the same type in YAML 1.1 and 1.2, by tag; others with the tag are text."""
_LEADING_ZERO = re.compile("[-+]?0[0-9_]+")


class SettingsFile(NamedTuple):
    """Settings of a file, with their line numbers."""

    path: Path
    settings: dict[str, Any]
    lines: dict[str, int]
    """Line of each setting, by its dotted name."""

    def describe(self, name: str) -> str:
        """Return how messages refer to a setting of the file."""
        line = self.lines.get(name)
        return f"{self.path}{f', line {line}' if line else ''}: {name}"


def read_settings(path: Path) -> SettingsFile:
    """Read a YAML file of settings.

    Raises: UserError naming the file, and the line if known, if it cannot be read or is refused.
    """
    content = read_bytes(path, limit=MOST_BYTES)
    loader: _Loader | None = None
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        settings = None if node is None else _construct(loader, node, "", lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(
            f"{path}{where}: not a valid YAML file of settings: {error.problem or error.context}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not a valid YAML file of settings: {' '.join(str(error).split())}"
        ) from error
    finally:
        if loader is not None:
            loader.dispose()
    if settings is None:
        return SettingsFile(path, {}, {})
    if not isinstance(settings, dict):
        raise UserError(f"{path}: must hold settings by name, got {type(settings).__name__}")
    return SettingsFile(path, settings, lines)


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases and with a maximum depth."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _error(
                "an alias (*) is not allowed: write the value itself", self.peek_event().start_mark
            )
        if self._depth == _MOST_DEPTH:
            raise _error(f"nested more than {_MOST_DEPTH} deep", self.peek_event().start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _construct(loader: _Loader, node: Node, path: str, lines: dict[str, int]) -> Any:
    """Return the value of a node, and add the line of each name below `path` to `lines`."""
    if isinstance(node, SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_construct(loader, item, path, lines) for item in node.value]
    if isinstance(node, ScalarNode) and node.tag in _SCALARS:
        return _construct_scalar(loader, node)
    if not isinstance(node, MappingNode) or node.tag != "tag:yaml.org,2002:map":
        raise _error(f"a value with the tag {short_repr(node.tag)} is not allowed", node.start_mark)
    values: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value
        if not isinstance(key, ScalarNode) or key.tag not in _SCALARS:
            problem = "a merge (<<)" if key.tag == _MERGE else "a key that is not text"
            raise _error(f"{problem} is not allowed", key.start_mark)
        if name in values:
            raise _error(f"{short_repr(name)} is given twice", key.start_mark)
        below = f"{path}.{name}" if path else name
        lines[below] = key.start_mark.line + 1
        values[name] = _construct(loader, value, below, lines)
    return values


def _construct_scalar(loader: _Loader, node: ScalarNode) -> Any:
    if node.style is None and _LEADING_ZERO.fullmatch(node.value):
        problem = "has a leading zero, which YAML 1.1 and 1.2 read differently: write it without, or as text in quotes"
        raise _error(f"{short_repr(node.value)} {problem}", node.start_mark)
    if not _SCALARS[node.tag].fullmatch(node.value):
        return node.value
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a whole number of thousands of digits
        raise _error(
            f"{short_repr(node.value)} cannot be read: {error}", node.start_mark
        ) from error


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
