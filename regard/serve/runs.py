"""A run that is served: its options, limits and description."""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from regard.errors import UserError
from regard.recipes.base.recipe import Example, Recipe
from regard.recipes.base.trained import TrainedRun
from regard.serve.config import LimitsConfig
from regard.serve.metrics import Metrics
from regard.serve.openapi.example import example_input
from regard.serve.queue import Workers
from regard.serve.replies import RequestError
from regard.serve.requests import read_inputs
from regard.serve.schemas import convert_option, option_schemas, option_settings
from regard.settings.ranges import short_repr
from regard.settings.tree import to_plain
from regard.system.files import hash_file

_WORKERS = 2
"""Workers of a compiled engine; torch computes one batch at a time on all threads."""
_TEXTS, _OTHERS = 16, 64
"""Inputs of a batch: texts that are decoded, of which more take as long each, and others."""


class ServedRun:
    """A trained run with its workers."""

    def __init__(
        self,
        name: str,
        trained: TrainedRun,
        limits: LimitsConfig,
        metrics: Metrics,
        workers: int | None = None,
    ):
        trained.check_classifier()
        self.name, self.trained, self.limits = name, trained, limits
        weights = trained.folder / "model.safetensors"
        self.weights, self.created = hash_file(weights), int(weights.stat().st_mtime)
        """SHA-256 of the weights, and the time when they were written."""
        self.input, self.reads_tokens = trained.input, trained.recipe.reads_tokens
        is_compiled = trained.recipe.decodes and trained.engine.name == "compiled"
        count = (workers or _WORKERS) if is_compiled else 1
        batch = _TEXTS if trained.recipe.decodes else _OTHERS
        self.workers = Workers(trained, count, batch, metrics.waits.observe)
        self.example = example_input(trained)
        self.answered: dict[str, Any] | None = None
        """Answer to the example."""
        entry = trained.recipe.entry
        self.answer = entry.answer_of(trained.config)
        """Type of its answers."""
        most = {"beam": limits.beam, "n_best": limits.beam, "num_samples": limits.beam}
        most |= {"length": limits.length, "max_length": limits.length}
        self.options = option_settings(entry, trained.config, most)
        """Settings of answers that a request may change, by name."""
        change = trained.recipe.change
        self._change = lru_cache(maxsize=256)(lambda key: change(msgspec.json.decode(key)))

    def read_options(self, given: Mapping[str, Any], *, is_text: bool = False) -> dict[str, Any]:
        """Return the options of a request with values of their types.

        is_text: as of `convert_option`.
        Raises: RequestError for an option that does not exist, or exceeds a limit.
        """
        options = {}
        for name, value in given.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                text = f"unknown option {short_repr(name)}; the options are: {known}"
                raise RequestError(422, text, at=name[:100])
            options[name] = convert_option(self.options[name], name, value, is_text=is_text)
        return options

    def change(self, options: Mapping[str, Any]) -> tuple[Recipe[Any], bytes]:
        """Return the recipe with options, and the options as a key of batches.

        Raises: RequestError for options that contradict each other.
        """
        key = msgspec.json.encode(options, order="sorted")
        try:
            return self._change(key), key
        except (TypeError, ValueError) as error:
            raise RequestError(422, str(error)) from error

    def read(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of a request, or their errors: see `read_inputs`."""
        tokens = self.reads_tokens
        return read_inputs([*inputs], self.input, self.limits, reads_tokens=tokens)

    def prepare(
        self, inputs: Sequence[Any], recipe: Recipe[Any], is_skipping: bool
    ) -> tuple[list[Example | UserError], list[str]]:
        """Return inputs as examples or errors of those that are skipped, and notes on them.

        Raises: RequestError with the place of the first input that cannot be used.
        """
        notes: list[str] = []
        recipe = copy.copy(recipe)
        recipe.notify = notes.append
        examples = self.trained.prepare(self.read(inputs), recipe, is_skipping=True)
        for index, one in enumerate(examples):
            if isinstance(one, UserError) and not is_skipping:
                raise RequestError(422, str(one), at=f"inputs[{index}]") from one
        return examples, notes

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The entry of this run in `GET /v1/runs`."""
        recipe, engine = self.trained.recipe, self.trained.engine
        labels = getattr(getattr(recipe, "target", recipe), "labels", None)
        name = f"{engine.name} {engine.compute_type}" if recipe.decodes else "torch"
        return {
            "name": self.name,
            "recipe": recipe.entry.name,
            "input": self.input,
            "streams": recipe.decodes and self.input == "text",
            "labels": None if labels is None else list(labels.names),
            "options": option_schemas(self.options),
            "limits": to_plain(self.limits),
            "engine": name,
            "weights": self.weights,
            "parameters": self.trained.num_parameters,
            "example": self.example,
        }

    @cached_property
    def copy(self) -> TrainedRun:
        """Run with a copy of the model, for looks: recording adds hooks to its modules."""
        own = copy.copy(self.trained)
        own._active = copy.deepcopy(own._active)
        return own

    def warm_up(self) -> None:
        """Compute one answer, so that loops are compiled before the first request."""
        if self.example is not None:
            (self.answered,) = self.trained.answer(self.read([self.example]))
