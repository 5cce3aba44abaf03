"""Command-line options of dataclasses: `--model.core.layers 3` sets layers of model.core.

    --name value    --name=value    --names a b c    --switch    --no-switch    -- (then no options)

A command has its own options and may also set a configuration (regard.settings.tree). The variant
of a union is selected first, so that only its fields are options. Dashes and underscores in names
are equivalent. The last value of a repeated option counts.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from regard.errors import UserError
from regard.settings.tree import Setting, apply_changes, settings_by_path

Own = TypeVar("Own")
Config = TypeVar("Config")


@dataclass(frozen=True)
class Parsed(Generic[Own, Config]):
    """Parsed command line: arguments, the command's own options, and the configuration."""

    positionals: list[str]
    own: Own
    config: Config


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
    return dict(_pairs(argv)).get(name)


def parse(
    argv: Sequence[str],
    own: Own,
    config: Config,
    *,
    allowed: Iterable[str] | None = None,
    max_positionals: int = 0,
) -> Parsed[Own, Config]:
    """Parse a command line.

    allowed: paths of the settings of the configuration that are options; all by default.
    Raises:  UserError for an unknown option, a value out of range or too many arguments.
    """
    config = apply_variants(config, argv)
    own_settings, settings = settings_by_path(own), settings_by_path(config)
    if allowed is not None:
        settings = {path: settings[path] for path in allowed}
    positionals, options = _split(argv, own_settings | settings)
    if len(positionals) > max_positionals:
        raise UserError(f"{positionals[max_positionals]!r} is an unexpected argument")
    own_options = {path: value for path, value in options.items() if path in own_settings}
    others = {path: value for path, value in options.items() if path in settings}
    own = apply_changes(own, nest(own_options), called=option_name)
    config = apply_changes(config, nest(others), called=option_name)
    return Parsed(positionals, own, config)


def apply_variants(config: Config, argv: Sequence[str]) -> Config:
    """Return the configuration with the variants that the command line selects."""
    given = {path: value for path, value in _pairs(argv) if value is not None}
    while True:  # a variant may have unions of its own
        found = {path: item for path, item in settings_by_path(config).items() if item.variants}
        chosen = {path: given[path] for path in given if path in found}
        if all(found[path].value == name for path, name in chosen.items()):
            return config
        config = apply_changes(config, nest(chosen), called=option_name)


def _split(
    argv: Sequence[str], settings: Mapping[str, Setting]
) -> tuple[list[str], dict[str, Any]]:
    positionals: list[str] = []
    options: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*positionals, *rest], options
        if re.fullmatch("-[A-Za-z]", word):
            raise UserError(f"unknown option {word}; as an argument, put it after --")
        if not word.startswith("--"):
            positionals.append(word)
            continue
        name, equals, value = word.partition("=")
        path = _path(name)
        above, dot, last = path.rpartition(".")
        switch = settings.get(above + dot + last.removeprefix("no_"))
        if path in settings:
            kind = settings[path].kind
            if not equals:
                options[path] = _take(settings[path], name, rest)
            else:
                options[path] = value if kind.count == 1 else value.split(",")
        elif switch is not None and switch.kind.bases == (bool,) and not equals:
            options[switch.path] = False
        else:
            raise UserError(_describe_unknown(name, path, settings))
    return positionals, options


def _take(setting: Setting, name: str, rest: list[str]) -> Any:
    """Remove the value or values of an option from the arguments after it."""
    kind = setting.kind
    if kind.bases == (bool,):
        is_value = bool(rest) and rest[0].lower() in ("true", "false", "yes", "no", "on", "off")
        return rest.pop(0) if is_value else True
    values: list[str] = []
    while rest and not rest[0].startswith("--") and len(values) != kind.count:
        values.append(rest.pop(0))
    if not values:
        raise UserError(f"{name} needs a value: {kind.label}")
    return values[0] if kind.count == 1 else values


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"a.b": 1, "c": 2} into {"a": {"b": 1}, "c": 2}. A selected variant becomes `name`
    inside its dict."""
    tree: dict[str, Any] = {}
    for path in sorted(values):
        *above, name = path.split(".")
        node = tree
        for part in above:
            below = node.setdefault(part, {})
            node[part] = below if isinstance(below, dict) else {"name": below}
            node = node[part]
        node[name] = values[path]
    return tree


def _describe_unknown(name: str, path: str, settings: Mapping[str, Setting]) -> str:
    for setting in settings.values():
        for variant, cls in setting.variants.items():
            if path.removeprefix(f"{setting.path}.") in settings_by_path(cls()):
                return f"{name} needs {option_name(setting.path)} {variant}"
    last = path.rpartition(".")[2]
    close = [option_name(other) for other in settings if other.rpartition(".")[2] == last]
    if len(close) != 1:
        close = difflib.get_close_matches(name, map(option_name, settings), n=1, cutoff=0.8)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown option {name}; {hint}--help lists all"


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
