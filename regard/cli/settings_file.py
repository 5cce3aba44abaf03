"""A YAML file of settings: mappings, lists, text, numbers, truth values and null, and nothing that YAML has beside.

Refused are aliases and merges (a few lines can stand for billions), tags, keys given twice, deep nesting, large files.

Numbers, truth values and null are what YAML 1.1 and 1.2 both read so. All else (yes, 1:30, 1_000, 2001-01-01) is text,
which the setting reads as it reads an option of the command line. A whole number with a leading zero is refused: 010 is
8 in YAML 1.1 and 10 in YAML 1.2.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from regard.errors import UserError
from regard.files import read_bytes
from regard.ranges import shown

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
"""By kind, the scalars that are of this kind in YAML 1.1 and in YAML 1.2; others of the kind are text."""
_LEADING_ZERO = re.compile("[-+]?0[0-9_]+")


class SettingsFile(NamedTuple):
    """What a file holds, and where."""

    path: Path
    settings: dict[str, Any]
    lines: dict[str, int]
    """By dotted name of a setting, its line."""

    def called(self, name: str) -> str:
        """How a message names a setting of the file."""
        line = self.lines.get(name)
        return f"{self.path}{f', line {line}' if line else ''}: {name}"


def read_settings(path: Path) -> SettingsFile:
    """Read a file.

    Raises: UserError with the file, and the line if there is one, for what cannot be read or is refused.
    """
    content = read_bytes(path, limit=MOST_BYTES)
    loader: _Loader | None = None
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        found = None if node is None else _value(loader, node, "", lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{path}{where}: no YAML file of settings: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no YAML file of settings: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()
    if found is None:
        return SettingsFile(path, {}, {})
    if not isinstance(found, dict):
        raise UserError(f"{path}: must hold settings by name, but holds {type(found).__name__}")
    return SettingsFile(path, found, lines)


class _Loader(yaml.SafeLoader):
    """The events of SafeLoader, composed without aliases and to a bounded depth."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _refused("an alias (*) is not read: write the value itself", self.peek_event().start_mark)
        if self._depth == _MOST_DEPTH:
            raise _refused(f"nested more than {_MOST_DEPTH} deep", self.peek_event().start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _value(loader: _Loader, node: Node, path: str, lines: dict[str, int]) -> Any:
    """What a node stands for; notes the line of each name below `path`."""
    if isinstance(node, SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(loader, item, path, lines) for item in node.value]
    if isinstance(node, ScalarNode) and node.tag in _SCALARS:
        return _scalar(loader, node)
    if not isinstance(node, MappingNode) or node.tag != "tag:yaml.org,2002:map":
        raise _refused(f"a value of the kind {shown(node.tag)} is not read", node.start_mark)
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value
        if not isinstance(key, ScalarNode) or key.tag not in _SCALARS:
            what = "a merge (<<)" if key.tag == _MERGE else "a key that is no text"
            raise _refused(f"{what} is not read", key.start_mark)
        if name in found:
            raise _refused(f"{shown(name)} is given twice", key.start_mark)
        below = f"{path}.{name}" if path else name
        lines[below] = key.start_mark.line + 1
        found[name] = _value(loader, value, below, lines)
    return found


def _scalar(loader: _Loader, node: ScalarNode) -> Any:
    if node.style is None and _LEADING_ZERO.fullmatch(node.value):
        problem = "has a leading zero, which versions of YAML read differently: write it without, or text in quotes"
        raise _refused(f"{shown(node.value)} {problem}", node.start_mark)
    if not _SCALARS[node.tag].fullmatch(node.value):
        return node.value
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a whole number of thousands of digits
        raise _refused(f"{shown(node.value)} cannot be read: {error}", node.start_mark) from error


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
