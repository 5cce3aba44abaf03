"""Command-line options generated from dataclasses: `--model.core.layers 3` sets the field layers of model.core.

A command has its own options (a flat dataclass) and may also set a configuration (regard.settings.tree). The variant
of a union is selected first, so that only its fields are options.

    --name value    --name=value    --names a b c    --switch    --switch false    -- (no options after this)

Dashes and underscores in names are equivalent. The last value of a repeated option counts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from regard.errors import UserError
from regard.settings.tree import Setting, apply_changes, collect_groups
from regard.settings.values import suggest

Own = TypeVar("Own")
Config = TypeVar("Config")


@dataclass(frozen=True)
class Parsed(Generic[Own, Config]):
    """Parsed command line."""

    positionals: list[str]
    """Arguments that are not options, in order."""
    own: Own
    """The command's own options."""
    config: Config
    """The configuration with the values that were set."""


@dataclass(frozen=True)
class NoSettings:
    """Placeholder for a command without a configuration or without options of its own."""


def option_name(path: str) -> str:
    """Return the command-line form of a setting: --train.label-smoothing."""
    return "--" + path.replace("_", "-")


def wants_help(argv: Sequence[str]) -> bool:
    """Return True if -h or --help is among the options."""
    return any(word in ("-h", "--help") for word in _before_end(argv))


def peek_option(argv: Sequence[str], name: str) -> str | None:
    """Return the value of one option before the command line is parsed."""
    values = [value for path, value in _pairs(argv) if path == name]
    return values[-1] if values else None


def parse(argv: Sequence[str], own: Own, config: Config, *, max_positionals: int, expected: str) -> Parsed[Own, Config]:
    """Parse a command line. `expected` describes the positionals, for messages.

    Raises UserError, naming the nearest option or value, for one that does not exist or is out of range.
    """
    config = apply_variants(config, argv)
    settings = _by_path(own) | _by_path(config)
    positionals, options = _split(argv, settings, others=_other_variants(config))
    if len(positionals) > max_positionals:
        raise UserError(f"{positionals[max_positionals]!r} is one argument too many; expected {expected}")
    return Parsed(positionals, _set(own, options), _set(config, options))


def apply_variants(config: Config, argv: Sequence[str]) -> Config:
    """Return the configuration with the variants that the command line selects (`--model.core recurrent`).

    Raises UserError for a variant that does not exist.
    """
    done: set[str] = set()
    while True:
        choices = {path for path, setting in _by_path(config).items() if setting.variants and path not in done}
        given = {path: value for path, value in _pairs(argv) if path in choices and value is not None}
        if not given:
            return config
        done |= set(given)
        config = apply_changes(config, _nest(given), called=option_name)


def _by_path(config: Any) -> dict[str, Setting]:
    return {setting.path: setting for group in collect_groups(config) for setting in group.settings}


def _other_variants(config: Any) -> dict[str, str]:
    """Return the options of variants that are not selected, each with the selection that would enable it."""
    options: dict[str, str] = {}
    for path, setting in _by_path(config).items():
        for name, variant in setting.variants.items():
            if name == setting.value:
                continue
            choice = f"{option_name(path)} {name}"
            for inner in (f"{path}.{below}" for below in _by_path(variant())):
                options[inner] = f"{options[inner]} or {choice}" if inner in options else choice
    return options


def _split(
    argv: Sequence[str], settings: Mapping[str, Setting], *, others: Mapping[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """Split a command line into positionals and the values of options by path."""
    positionals: list[str] = []
    options: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*positionals, *rest], options
        if not word.startswith("--"):
            positionals.append(word)
            continue
        name, equals, value = word.partition("=")
        path = _path(name)
        if path not in settings:
            raise _unknown(name, path, settings, others)
        if equals:
            many = settings[path].kind.count != 1
            options[path] = re.split(r"[,\s]+", value.strip()) if many else value
        else:
            options[path] = _take(settings[path], name, rest)
    return positionals, options


def _take(setting: Setting, name: str, rest: list[str]) -> Any:
    """Remove the value or values of an option from the arguments after it."""
    kind = setting.kind
    if kind.bases == (bool,):
        is_value = bool(rest) and rest[0].lower() in ("true", "false", "yes", "no", "on", "off")
        return rest.pop(0) if is_value else True
    values = []
    while rest and not rest[0].startswith("--") and (kind.count is None or len(values) < kind.count):
        values.append(rest.pop(0))
    if not values:
        raise UserError(f"{name} needs a value: {kind.label}")
    return values[0] if kind.count == 1 else values


def _set(config: Config, options: Mapping[str, Any]) -> Config:
    own = _by_path(config)
    given = {path: value for path, value in options.items() if path in own}
    return apply_changes(config, _nest(given), called=option_name)


def _nest(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"a.b": 1, "c": 2} into {"a": {"b": 1}, "c": 2}; a selected variant becomes `name` inside its dict."""
    tree: dict[str, Any] = {}
    for path in sorted(options):
        *above, name = path.split(".")
        node = tree
        for part in above:
            below = node.setdefault(part, {})
            node[part] = below if isinstance(below, dict) else {"name": below}
            node = node[part]
        node[name] = options[path]
    return tree


def _unknown(name: str, path: str, settings: Mapping[str, Setting], others: Mapping[str, str]) -> UserError:
    if path in others:
        return UserError(f"option {name} needs {others[path]}, which is not selected")
    known = [option_name(known) for known in settings]
    hint = suggest(option_name(path), known) or _suggest_same_ending(path, settings)
    return UserError(f"unknown option {name}{hint or '; --help lists all'}")


def _suggest_same_ending(path: str, settings: Iterable[str]) -> str:
    """Suggest --model.core.layers for `--layers`."""
    last = path.rpartition(".")[2]
    names = [option_name(known) for known in settings if known.rpartition(".")[2] == last][:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _before_end(argv: Sequence[str]) -> Sequence[str]:
    return argv[: argv.index("--")] if "--" in argv else argv


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option with the argument after it (None at the end), known or not."""
    words = _before_end(argv)
    for word, after in zip(words, [*words, None][1:], strict=True):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield _path(name), value if equals else after


def _path(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")
