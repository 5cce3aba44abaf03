"""Base classes of recipes (the data, model and metric of a run) and of trained runs, and checks of their inputs.

    recipe = create_recipe(run, notify)  data and metric, from the run's settings
    recipe.learn(folder)               write vocabularies, labels and scales, computed from the training data
    recipe.pretrain(folder)            train the models that the main model needs
    recipe.open(folder)                read the files of `learn` and `pretrain`
    recipe.model(), .batches()         model and training batches, for regard.train.loop.fit
    recipe.measure(model)              validation metrics; `recipe.metric` selects the best checkpoint
    recipe.build_run(model, folder)    the trained model with predict, evaluate and look

Everything else of a run (its folder, resuming, reports) is shared by all recipes: regard.recipes.training.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.engines.engine import Engine
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.hooks import NoReadsError
from regard.look.maps import GRADIENT, AttentionMap, SampleMaps
from regard.look.record import record
from regard.look.sample import Sample
from regard.recipes.base.active import MANY, ActiveModel
from regard.recipes.base.run import Run
from regard.trace import Trace
from regard.train.protocols import TrainingBatches


class EmptyAnswerError(UserError):
    """The answer to an input is empty, so it has no probability to differentiate."""


class TrainedRun(ABC):
    """A trained model with its recipe, settings and folder, as returned by `load`."""

    decodes = False
    """True if answers are decoded token by token, by an engine (regard.engines)."""

    def __init__(self, recipe: "Recipe", model: nn.Module, folder: Path):
        self.recipe = recipe
        self._active = ActiveModel(model, decodes=self.decodes, recipe=recipe.run.recipe)
        self.run = recipe.run
        self.folder = folder
        self._names: dict[int, tuple[weakref.ref, str]] = {}
        self.trace: Trace | None = None
        """Trace that receives what the run computes; None unless its attention is recorded (regard.look.record)."""

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self._model.parameters())
        return f"{type(self).__name__}({str(self.folder)!r}, recipe={self.run.recipe!r}, parameters={count:,})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the trace, and without the names of inputs, which belong to this process."""
        return vars(self) | {"_names": {}, "trace": None}

    @property
    def config(self) -> Any:
        """All settings of the run."""
        return self.run.config

    @property
    def model(self) -> Any:
        """The module. The caller may change it, so the torch engine runs it from now on, until `compile` is called."""
        return self._active.hand_out()

    def compile(
        self, engine: str | None = None, *, compute_type: str | None = None, workers: int | None = None
    ) -> None:
        """Freeze a copy of the model in its present state, which computes all answers from now on.

        It uses as many threads as torch has now. Later changes of the module that `model` returned do not reach the
        copy, until `compile` is called again or `model` is accessed.

        engine:  a name in regard.engines.config.ENGINES, or auto; by default, the engine given to `load`.
        workers: batches decoded in parallel; the threads are divided among them.
        Raises:  UserError if the engine does not exist, is not installed, does not support this model or the compute
                 type, or if the recipe decodes no tokens.
        """
        self._active.compile(engine, compute_type=compute_type, workers=workers)

    def engine_for(self, count: int) -> Engine:
        """Return the engine that decodes `count` inputs; always torch while attention is recorded."""
        return self._active.engine_for(count, traced=self.trace is not None)

    @property
    def engine(self) -> Engine:
        """The engine that decodes; always torch while attention is recorded."""
        return self.engine_for(MANY)

    @property
    def _model(self) -> Any:
        """The module that computes answers. Only for this package: reading it does not end a compiled engine."""
        return self._active.model

    @abstractmethod
    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Score the model on the run's test data, or on other data of its kind."""

    @abstractmethod
    def predict(self, inputs: Any, **options: Any) -> Any:
        """Return the model's answer to each input."""

    @abstractmethod
    def test_input(self, index: int) -> Any:
        """Return input `index` (from 0) of the run's test data, in the form that `predict` and `look` take.

        Raises UserError if the run has no test data or the index is out of range.
        """

    def likelihood(self, given: Any, maps: SampleMaps) -> Tensor:
        """Return log p of the answer recorded in a sample of a capture, as a differentiable scalar.

        given:  an item of `split_inputs`.
        Raises: UserError for models without probabilities, EmptyAnswerError if the answer is empty.
        """
        raise UserError(self._no_probability_message())

    def check_likelihood(self) -> None:
        """Raise UserError if the answers have no probability, so that there is nothing to differentiate."""
        if type(self).likelihood is TrainedRun.likelihood:
            raise UserError(self._no_probability_message())

    def split_inputs(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return one item for each sample of a look at these inputs: an input, or a segment of a long one."""
        return inputs

    def look(self, inputs: Sequence[Any], *, gradients: bool = False) -> Capture:
        """Return the attention maps recorded while the model answers each input (regard.look.capture).

        gradients: add the gradient of log p of the answer for each attention weight (regard.look.measures), except
                for samples whose answer is empty.
        Raises: UserError if an input is empty or cannot be read, if the model has no attention, or if gradients are
                asked for and answers have no probability or all of them are empty.
        """
        check_inputs(inputs)
        if gradients:
            self.check_likelihood()
        capture = self._record(lambda: self.predict(inputs))
        if gradients:
            self._differentiate(capture, inputs)
        return capture

    def _record(self, run: Callable[[], Any]) -> Capture:
        """Return the attention maps recorded while `run` is called."""
        try:
            with record(self) as capture:
                run()
        except NoReadsError as error:
            raise UserError(f"this model does not attend: {error}") from error
        if not any(capture.recording.counts().values()):
            raise UserError("no attention was recorded: inputs of a single item have no other item to attend to")
        return capture

    @contextmanager
    def _segment(self, make_samples: Callable[[], list[Sample]]) -> Iterator[list[Sample]]:
        """Assign the rows of the calls in this context to samples; not traced, there are none."""
        if self.trace is None:
            yield []
        else:
            with self.trace.segment(make_samples()) as samples:
                yield samples

    def _check_test(self) -> None:
        """Raise UserError if the run has no test data."""
        if not self.recipe.has_test():
            raise UserError(f"the run {self.folder} has no test data: give it with --data.test")

    def _set_name(self, value: Any, name: str) -> Any:
        """Store the name of an input for titles, and return the input."""
        # By identity: arrays and images have no name of their own. The weak reference detects a reused id.
        self._names[id(value)] = weakref.ref(value), name
        return value

    def _get_name(self, value: Any, fallback: str) -> str:
        """Return the file name of an input, the name given to `_set_name`, or the fallback."""
        if isinstance(value, str | Path):
            return Path(value).name
        reference, name = self._names.get(id(value), (None, ""))
        return name if reference is not None and reference() is value else fallback

    def _no_probability_message(self, answers: str = "") -> str:
        """Return the error message for gradients of answers without a probability."""
        if answers:
            return f"this run predicts {answers}, which have no probability to differentiate"
        return f"the recipe {self.run.recipe} gives no probability of its answers to differentiate"

    def _differentiate(self, capture: Capture, inputs: Sequence[Any]) -> None:
        """Run each answer once more with teacher forcing and gradients, and add the gradient maps to the capture."""
        parts = self.split_inputs(inputs)
        if len(capture) != len(parts):
            raise UserError(
                f"gradients need one answer for each input, but {len(parts)} inputs have {len(capture)} samples"
            )
        gradients: list[list[AttentionMap]] = []
        empty: list[EmptyAnswerError] = []
        for number, (given, maps) in enumerate(zip(parts, capture, strict=True)):
            gradients.append([])
            try:
                with torch.enable_grad(), record(self._model, samples=[maps.sample], gradients=True) as rerun:
                    rerun.differentiate(self.likelihood(given, maps))
            except EmptyAnswerError as error:
                empty.append(error)
                continue
            # Each sample is recorded separately, so its keys start from zero again.
            gradients[-1] += [replace(m, key=f"scene {number}/{m.key}") for m in rerun[0].find(measure=GRADIENT)]
        if len(empty) == len(gradients):
            raise empty[0]
        capture.add(gradients)


class Recipe(ABC):
    """Data, model and metric of one run."""

    metric: str
    """Entry of `measure` that selects the best checkpoint."""
    higher_is_better: bool = True
    """Direction of the metric."""

    def __init__(self, run: Run, notify: Callable[[str], None]):
        self.run = run
        self.notify = notify

    @abstractmethod
    def check(self) -> None:
        """Read all data of the run, so that a missing or malformed file is reported before training."""

    @abstractmethod
    def learn(self, folder: Path) -> None:
        """Write vocabularies, labels and scales computed from the training data to the folder."""

    def pretrain(self, folder: Path) -> None:  # noqa: B027  # few recipes have something to do here
        """Train the models that the main model needs, each in a folder of its own, unless that is done."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Read what `learn` wrote. Raises UserError naming the file that is missing or damaged."""

    @abstractmethod
    def batches(self) -> TrainingBatches:
        """Return the training batches."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a model initialized from torch's random generator; see regard.train.protocols.Trainable."""

    @abstractmethod
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the validation metrics of the model."""

    @abstractmethod
    def build_run(self, model: nn.Module, folder: Path) -> TrainedRun:
        """Return the trained run of this model."""

    @abstractmethod
    def has_test(self) -> bool:
        """Return True if the run has test data."""

    def describe(self) -> str:
        """Return a description of inputs and outputs, shown beside the number of parameters."""
        return ""

    def upper_bound(self) -> float | None:
        """Return the best score that any model can reach on the test data, if it is known."""
        return None


def get_input(inputs: Sequence[Any], index: int, origin: str) -> Any:
    """Return input `index`. Raises UserError if it is out of range."""
    if not 0 <= index < len(inputs):
        raise UserError(f"{origin} has {len(inputs)} inputs, from 0 to {len(inputs) - 1}; there is no input {index}")
    return inputs[index]


def check_inputs(inputs: Sequence[Any]) -> None:
    """Raise TypeError for a single text instead of a list, UserError if there is no input or one is empty."""
    if isinstance(inputs, str | Path):
        raise TypeError(f"inputs must be a list, got one text: {str(inputs)[:40]!r}")
    if not len(inputs):
        raise UserError("there is nothing to look at: no input is given")
    for number, value in enumerate(inputs, start=1):
        if isinstance(value, str | list | tuple) and not (value.strip() if isinstance(value, str) else value):
            raise UserError(f"input {number} is empty: there is nothing to look at")
