"""Command-line options generated from dataclasses: `--model.core.layers 3` sets the field layers of
model.core.

A command has its own options (a flat dataclass) and may also set a configuration
(regard.settings.tree). The variant of a union is selected first, so that only its fields are
options.

    --name value    --name=value    --names a b c    --switch    --no-switch    -- (no options after
    this)

Dashes and underscores in names are equivalent. The last value of a repeated option counts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from regard.errors import UserError
from regard.settings.tree import Setting, apply_changes, select_variants, settings_by_path
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


def refuse_missing(message: str, argv: Sequence[str]) -> NoReturn:
    """Raise UserError for a command line without its first argument; for a misspelled --help in its
    place."""
    hint = suggest(argv[0], ["--help"]) if argv else ""
    raise UserError(f"unknown option {argv[0]}{hint}" if hint else message)


def peek_option(argv: Sequence[str], name: str) -> str | None:
    """Return the value of one option before the command line is parsed."""
    values = [value for path, value in _pairs(argv) if path == name]
    return values[-1] if values else None


def parse(
    argv: Sequence[str], own: Own, config: Config, *, max_positionals: int, expected: str
) -> Parsed[Own, Config]:
    """Parse a command line. `expected` describes the positionals, for messages.

    Raises UserError, naming the nearest option or value, for one that does not exist or is out of
    range.
    """
    config = apply_variants(config, argv)
    own_settings, settings = settings_by_path(own), settings_by_path(config)
    positionals, options = _split(argv, own_settings | settings, config)
    if len(positionals) > max_positionals:
        word = positionals[max_positionals]
        option = argv[argv.index(word) - 2] if argv.index(word) > 1 else ""
        reason = (
            f", since {option} takes one value"
            if option.startswith("--") and "=" not in option
            else ""
        )
        raise UserError(f"{word!r} is an unexpected argument{reason}; expected {expected}")
    own_changes, changes = _nest(options, own_settings), _nest(options, settings)
    own = apply_changes(own, own_changes, called=option_name)
    return Parsed(positionals, own, apply_changes(config, changes, called=option_name))


def apply_variants(config: Config, argv: Sequence[str]) -> Config:
    """Return the configuration with the variants that the command line selects (`--model.core
    recurrent`).

    Raises UserError for a variant that does not exist.
    """
    values = {path: value for path, value in _pairs(argv) if value is not None}
    return select_variants(config, values, called=option_name)


def _split(
    argv: Sequence[str], settings: Mapping[str, Setting], config: Any
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
            if word.startswith("-") and _path(word[1:].partition("=")[0]) in settings:
                raise UserError(
                    f"unknown option {word}; did you mean -{word}? As an argument, put it after --"
                )
            if re.fullmatch("-[A-Za-z]", word):
                known = [
                    path
                    for path in settings
                    if path.startswith(word[1:].lower()) and "." not in path
                ]
                near = " or ".join(map(option_name, known))
                hint = f"; did you mean {near}?" if near else "."
                raise UserError(f"unknown option {word}{hint} As an argument, put it after --")
            positionals.append(word)
            continue
        name, equals, value = word.partition("=")
        path = _path(name)
        if path not in settings and not equals and (switch := _negated(path, settings)):
            options[switch] = False
            continue
        if path not in settings:
            raise _unknown(name, path, settings, config)
        if equals:
            many = settings[path].kind.count != 1
            options[path] = re.split(r"[,\s]+", value.strip()) if many else value
        else:
            options[path] = _take(settings[path], name, rest)
    return positionals, options


def _negated(path: str, settings: Mapping[str, Setting]) -> str:
    """Return the switch that an option turns off; empty if there is none.

    Both forms are accepted: `--train.no-tensorboard` and `--no-train.tensorboard`.
    """
    above, dot, name = path.rpartition(".")
    forms = (above + dot + name.removeprefix("no_"), path.removeprefix("no_"))
    switches = (
        form
        for form in forms
        if form != path and form in settings and settings[form].kind.bases == (bool,)
    )
    return next(switches, "")


def _take(setting: Setting, name: str, rest: list[str]) -> Any:
    """Remove the value or values of an option from the arguments after it."""
    kind = setting.kind
    if kind.bases == (bool,):
        is_value = bool(rest) and rest[0].lower() in ("true", "false", "yes", "no", "on", "off")
        return rest.pop(0) if is_value else True
    values = []
    while (
        rest and not rest[0].startswith("--") and (kind.count is None or len(values) < kind.count)
    ):
        values.append(rest.pop(0))
    if not values:
        raise UserError(f"{name} needs a value: {kind.label}")
    return values[0] if kind.count == 1 else values


def _nest(options: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Turn {"a.b": 1, "c": 2} into {"a": {"b": 1}, "c": 2}; a selected variant becomes `name`
    inside its dict.

    Options that are not among the settings are left out.
    """
    tree: dict[str, Any] = {}
    for path in sorted(options.keys() & settings.keys()):
        *above, name = path.split(".")
        node = tree
        for part in above:
            below = node.setdefault(part, {})
            node[part] = below if isinstance(below, dict) else {"name": below}
            node = node[part]
        node[name] = options[path]
    return tree


def _unknown(name: str, path: str, settings: Mapping[str, Setting], config: Any) -> UserError:
    others = _other_variants(config)
    if path in others:
        return UserError(f"option {name} needs {others[path]}, which is not selected")
    known = [option_name(known) for known in (*settings, "help")]
    hint = (
        _suggest_same_ending(path, settings)
        or _suggest_below(path, settings)
        or suggest(option_name(path), known)
    )
    return UserError(f"unknown option {name}{hint or '; --help lists all'}")


def _other_variants(config: Any) -> dict[str, str]:
    """Return the options of variants that are not selected, each with the selection that would
    enable it."""
    options: dict[str, str] = {}
    for path, setting in settings_by_path(config).items():
        for name, variant in setting.variants.items():
            if name == setting.value:
                continue
            choice = f"{option_name(path)} {name}"
            for inner in (f"{path}.{below}" for below in settings_by_path(variant())):
                options[inner] = f"{options[inner]} or {choice}" if inner in options else choice
    return options


def _suggest_same_ending(path: str, settings: Iterable[str]) -> str:
    """Suggest --model.core.layers for `--layers`."""
    last = path.rpartition(".")[2]
    names = [option_name(known) for known in settings if known.rpartition(".")[2] == last][:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _suggest_below(path: str, settings: Iterable[str]) -> str:
    """Suggest --data.train or --data.val for `--data`."""
    names = [option_name(known) for known in settings if known.startswith(f"{path}.")][:2]
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
