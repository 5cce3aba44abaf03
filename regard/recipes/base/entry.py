"""Registry entries of recipes, and changes of the settings of a run. (no torch)"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal

from regard.errors import UserError
from regard.settings.options import option_name
from regard.settings.tree import apply_changes, settings_by_path, to_plain

NO_DECODER = ("model.core.decoder_layers", "model.core.attention", "model.core.decay")
"""Settings of cores that models without a decoder do not use."""
NO_ENCODER = ("model.core.inducing_points", "model.core.attention")
"""Settings of cores that models without an encoder do not use."""
NO_ORDER = tuple(
    f"model.core.{name}"
    for name in ("window", "pattern", "decay", "shared_positions", "positions.window_base")
)
"""Settings of cores that models of sets do not use."""
BATCHES_BY_COUNT = ("train.batch_tokens",)
"""Settings of training that recipes with batches of a number of examples do not use."""
NO_SMOOTHING = ("train.label_smoothing",)
"""Settings of training that recipes without label smoothing do not use."""
NO_CLASS_WEIGHTS = ("data.class_weights",)
"""Settings of images that recipes without a classifier do not use."""

_READING = (
    *("data.format", "data.header", "data.encoding", "data.separator", "data.images"),
    *(f"data.{name}_column" for name in ("source", "text", "token", "file")),
)
"""Settings that say how a file of inputs is read."""
_TEST = ("data.test", "data.test_target", "data.test_images", "data.references")
"""Settings that name test data."""
_OF_FILES = (*_TEST, "data.format", "data.encoding")
"""Settings of files that do not hold for other files."""
_LABELED = (*_TEST, "data.on_bad", *(f"data.{name}_column" for name in ("target", "label", "tag")))
"""Settings of test data besides those of inputs."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of a recipe, defined in its config.py, which imports no torch."""

    name: str
    summary: str = ""
    """Description in one line, for lists; the docstring of `config` if not given."""
    config: type[Any]
    """Settings of a run."""
    answers: tuple[str, ...] = ()
    """Settings of answers, which predict, look and evaluate may change: decode, threshold ..."""
    answer: type[Any] | Callable[[Any], type[Any]] = dict
    """Type of an answer as JSON (regard.recipes.base.answers), or a function that returns that of a
    run with these settings; by default, any object."""
    scores: tuple[str, ...] = ()
    """Settings of metrics, which evaluate may change, too."""
    input: Literal["text", "image", "points", "sound", "tracks", "vector"] = "text"
    """Kind of input: a line of text or of numbers, or a file."""
    unused: tuple[str, ...] = ()
    """Paths of settings that the recipe shares with others but does not use."""
    needs_data: bool = False
    """True if there is no built-in or synthetic data, so that --data.train must be given."""
    recipe: type[Any] | str
    """The recipe's class, or MODULE:CLASS, imported when it is used."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", self.summary or self.config.__doc__ or "")

    def load_class(self) -> type[Any]:
        if not isinstance(self.recipe, str):
            return self.recipe
        module, _, name = self.recipe.partition(":")
        return getattr(importlib.import_module(module), name)

    def input_of(self, config: Any) -> str:
        """Return the kind of input of a run: that of its data, if it has several kinds."""
        return getattr(config.data, "input", self.input)

    def answer_of(self, config: Any) -> type[Any]:
        """Return the type of an answer of a run as JSON."""
        return self.answer if isinstance(self.answer, type) else self.answer(config)

    def may_change(self, path: str, *, for_test: bool = False) -> bool:
        """Return True for a setting of answers, and for_test also of test data and metrics."""
        known = (*self.answers, *_READING, *((*self.scores, *_LABELED) if for_test else ()))
        return path in known or path.partition(".")[0] in known

    def change(self, config: Any, values: Mapping[str, Any], *, for_test: bool = False) -> Any:
        """Return the settings of a run with changes of those that `may_change` allows.

        values: by the last part of their paths, or nested: beam=4, decode={"beam": 4}.
        Raises: TypeError for a name that is no such setting; UserError for a wrong value.
        """
        allowed = {}
        for path in settings_by_path(config):
            if self.may_change(path, for_test=for_test):
                allowed[path.rpartition(".")[2]] = path
        if values.get("test") is not None:
            config = without_test(config)
        changes: dict[str, Any] = {}
        for name, given in values.items():
            value = to_plain(given) if is_dataclass(given) else given
            if value is None:
                continue
            if name not in allowed and name not in (*self.answers, *self.scores):
                expected = ", ".join(allowed) or "none"
                raise TypeError(f"unknown option {name!r}; the options are: {expected}")
            node = changes
            *above, last = allowed.get(name, name).split(".")
            for part in above:
                node = node.setdefault(part, {})
            is_group = isinstance(value, Mapping)
            node[last] = node.get(last, {}) | value if is_group else value
        return apply_changes(config, changes, called=lambda path: path.removeprefix("data."))

    def check(self, config: Any) -> None:
        """Raise UserError for a setting that the recipe does not use, or without training data."""
        if self.needs_data and config.data.train is None:
            raise UserError(
                "no training data: --data.train must be a file, a folder or a data set (hf:NAME)"
            )
        default = self.config()
        for path in self.unused:
            *above, name = path.split(".")
            own, given = default, config
            for part in above:
                own, given = getattr(own, part, None), getattr(given, part, None)
            if not hasattr(given, name):
                continue
            defaults = [getattr(source, name, None) for source in (own, type(given)())]
            if getattr(given, name) not in defaults:
                raise UserError(f"{option_name(path)} has no effect in {self.name}: leave it out")


def without_test(config: Any) -> Any:
    """Return settings without test data, and without the format and encoding of other files."""
    return replace(config, data=replace(config.data, **_defaults_of_files(config)))


def keep_test(config: Any, other: Any) -> Any:
    """Return settings with the test data of others, as far as they have none."""
    test = {}
    for name, default in _defaults_of_files(config).items():
        own = getattr(config.data, name)
        test[name] = getattr(other.data, name) if own == default else own
    return replace(config, data=replace(config.data, **test))


def _defaults_of_files(config: Any) -> dict[str, Any]:
    default = type(config.data)()
    names = [path.partition(".")[2] for path in _OF_FILES]
    return {name: getattr(default, name) for name in names if hasattr(default, name)}
