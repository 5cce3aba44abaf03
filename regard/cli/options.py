"""Options of a command, made from dataclasses: `--model.core.layers 3` sets the field layers of model.core.

A command has its own options (a flat dataclass) and may also set a configuration (regard.recipes.settings).
Of a union of variants, which one holds is decided first, so that its fields are options and no other's are.

    --name value    --name=value    --names a b c    --switch    --switch false    -- (no options from here)

Dashes and underscores in names are the same. An option given twice counts as given last.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from regard.errors import UserError
from regard.recipes.kinds import nearest
from regard.recipes.settings import Setting, changed, groups

Own = TypeVar("Own")
Config = TypeVar("Config")


@dataclass(frozen=True)
class Parsed(Generic[Own, Config]):
    """A command line that was understood."""

    positionals: list[str]
    """What is no option, in order."""
    own: Own
    """The command's own options."""
    config: Config
    """The configuration with what was set."""


@dataclass(frozen=True)
class NoSettings:
    """Of a command without a configuration, or without options of its own."""


def option_name(path: str) -> str:
    """How a setting is written on the command line: --train.label-smoothing."""
    return "--" + path.replace("_", "-")


def wants_help(argv: Sequence[str]) -> bool:
    """Whether -h or --help stands among the options."""
    return any(word in ("-h", "--help") for word in _before_end(argv))


def given_first(argv: Sequence[str], name: str) -> str | None:
    """The value of one option, before the others are known."""
    found = [value for path, value in _pairs(argv) if path == name]
    return found[-1] if found else None


def parse(argv: Sequence[str], own: Own, config: Config, *, most_positionals: int, what: str) -> Parsed[Own, Config]:
    """Read a command line. `what` says in a message which positionals there may be.

    Raises UserError, naming the nearest option or value, for what does not exist or is out of range.
    """
    config = with_variants(config, argv)
    settings = _by_path(own) | _by_path(config)
    positionals, options = _take_apart(argv, settings, others=_other_variants(config))
    if len(positionals) > most_positionals:
        raise UserError(f"{positionals[most_positionals]!r} is one argument too many; expected {what}")
    return Parsed(positionals, _set(own, options), _set(config, options))


def with_variants(config: Config, argv: Sequence[str]) -> Config:
    """The configuration with the variants (`--model.core recurrent`) that the command line asks for.

    Raises UserError for a variant that does not exist.
    """
    done: set[str] = set()
    while True:
        choices = {path for path, setting in _by_path(config).items() if setting.variants and path not in done}
        given = {path: value for path, value in _pairs(argv) if path in choices and value is not None}
        if not given:
            return config
        done |= set(given)
        config = changed(config, _nested(given), called=option_name)


def _by_path(config: Any) -> dict[str, Setting]:
    return {setting.path: setting for group in groups(config) for setting in group.settings}


def _other_variants(config: Any) -> dict[str, str]:
    """By path, the options of variants that are not chosen, each with the choices that would bring it."""
    found: dict[str, str] = {}
    for path, setting in _by_path(config).items():
        for name, variant in setting.variants.items():
            if name == setting.value:
                continue
            choice = f"{option_name(path)} {name}"
            for inner in (f"{path}.{below}" for below in _by_path(variant())):
                found[inner] = f"{found[inner]} or {choice}" if inner in found else choice
    return found


def _take_apart(
    argv: Sequence[str], settings: Mapping[str, Setting], *, others: Mapping[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """What is no option, and by path what each option was given."""
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
    """Remove an option's value or values from what follows it."""
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
    return changed(config, _nested(given), called=option_name)


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1, "c": 2} as {"a": {"b": 1}, "c": 2}; a choice of variant becomes `name` inside its dict."""
    tree: dict[str, Any] = {}
    for path in sorted(options):
        *above, name = path.split(".")
        place = tree
        for part in above:
            below = place.setdefault(part, {})
            place[part] = below if isinstance(below, dict) else {"name": below}
            place = place[part]
        place[name] = options[path]
    return tree


def _unknown(name: str, path: str, settings: Mapping[str, Setting], others: Mapping[str, str]) -> UserError:
    if path in others:
        return UserError(f"option {name} goes with {others[path]}, which is not chosen")
    known = [option_name(known) for known in settings]
    hint = nearest(option_name(path), known) or _same_ending(path, settings)
    return UserError(f"unknown option {name}{hint or '; --help lists all'}")


def _same_ending(path: str, settings: Iterable[str]) -> str:
    """`--layers` was meant as --model.core.layers."""
    last = path.rpartition(".")[2]
    names = [option_name(known) for known in settings if known.rpartition(".")[2] == last][:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _before_end(argv: Sequence[str]) -> Sequence[str]:
    return argv[: argv.index("--")] if "--" in argv else argv


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option with the word after it (None at the end), whatever the options there are."""
    words = _before_end(argv)
    for word, after in zip(words, [*words, None][1:], strict=True):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield _path(name), value if equals else after


def _path(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")
