"""What a recipe is to a run: its data, a model for it, how good that is, and how it is used afterwards.

    task = task_of(run)          data and metric, from the run's settings
    task.learn(folder)           vocabularies, labels, scales: what training data decides before there is a model
    task.pretrain(folder)        other models, where the model needs some
    task.open(folder)            the same, from the folder
    task.model(), .batches()     what regard.train.fit trains, and on what
    task.measure(model)          what a validation finds; task.metric names the figure that decides
    task.trained(folder)         the finished model, ready to predict, evaluate and look

Everything else of a run (its folder, resuming, reports) is the same for all recipes: regard.recipes.running.
"""

import importlib
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.engines.engine import Engine
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.listen import NoReadsError
from regard.look.map import GRADIENT, Map, Seen
from regard.look.record import record
from regard.models.size import fitting_memory
from regard.recipes.active import MANY, ActiveModel, default_dtype
from regard.recipes.folder import Run, read_run
from regard.recipes.learned import check_learned
from regard.recipes.registry import entry
from regard.train.contracts import Batches
from regard.train.distribution import pick_device
from regard.train.weights import load_weights


class NothingSaidError(UserError):
    """The answer to an input is that nothing is there: it has no probability to be differentiated."""


class Trained(ABC):
    """A model, its settings and its folder. `load` makes one."""

    decodes = False
    """Whether its answers are decoded token after token, by an engine (regard.engines)."""

    def __init__(self, task: "Task", model: nn.Module, folder: Path):
        self.task = task
        self._active = ActiveModel(model, decodes=self.decodes, recipe=task.run.recipe)
        self.run = task.run
        self.folder = folder
        self._names: dict[int, tuple[weakref.ref, str]] = {}

    def __repr__(self) -> str:
        weights = sum(value.numel() for value in self._model.parameters())
        return f"{type(self).__name__}({str(self.folder)!r}, recipe={self.run.recipe!r}, parameters={weights:,})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the names of inputs, which belong to objects of this process."""
        return vars(self) | {"_names": {}}

    @property
    def config(self) -> Any:
        """All settings of the run."""
        return self.run.config

    @property
    def model(self) -> Any:
        """The module. Its caller may change it, so from now on torch answers with it, until `compile` is called."""
        return self._active.hand_out()

    def compile(
        self, engine: str | None = None, *, compute_type: str | None = None, workers: int | None = None
    ) -> None:
        """Answer from now on with a frozen copy of the model in its present state, on as many threads as torch has now.

        Later changes of the module that `model` handed out do not reach the copy, until `compile` is called again, or
        `model` asked for.

        engine:  a name of regard.engines.config.ENGINES, or auto; as when the run was loaded if nothing is given.
        workers: batches decoded side by side; the threads are shared out among them.
        Raises:  UserError for an engine that does not exist, is not installed or cannot run this model, for a compute
                 type that it does not have here, or where nothing is decoded.
        """
        self._active.compile(engine, compute_type=compute_type, workers=workers)

    def engine_for(self, count: int) -> Engine:
        """Return the engine that decodes so many inputs: torch while attention is recorded."""
        return self._active.engine_for(count)

    @property
    def engine(self) -> Engine:
        """The engine that decodes: torch while attention is recorded."""
        return self.engine_for(MANY)

    @property
    def _model(self) -> Any:
        """The module that answers, for this package alone."""
        return self._active.model

    @abstractmethod
    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Score the model on the run's test data, or on other data of its kind."""

    @abstractmethod
    def predict(self, inputs: Any, **options: Any) -> Any:
        """What the model says to each input."""

    @abstractmethod
    def test_input(self, index: int) -> Any:
        """An input of the run's test data, by its number from 0, as `predict` and `look` take it.

        Raises UserError if the run has no test data, or not so many.
        """

    def likelihood(self, given: Any, seen: Seen) -> Tensor:
        """log p of the answer that a scene shows to this input, to be differentiated.

        given:  one of `parts`.
        Raises: UserError for models that give no probability, NothingSaidError if the answer is that nothing is there.
        """
        raise UserError(self._improbable())

    def check_likelihood(self) -> None:
        """Raises UserError if the answers have no probability: there is nothing to differentiate then."""
        if type(self).likelihood is Trained.likelihood:
            raise UserError(self._improbable())

    def parts(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """What each scene of a look at these inputs is of: an input, or a part of one that is read in several."""
        return inputs

    def look(self, inputs: Sequence[Any], *, gradients: bool = False) -> Capture:
        """What the model read while it answered each input: see regard.look.capture.

        gradients: add how much each weight mattered to log p of the answer (regard.look.gradients); where the answer is
                that nothing is there, there is none.
        Raises: UserError if an input is empty or cannot be read, the model does not attend, or gradients are asked for
                of answers that have no probability, or where nothing is said of any input.
        """
        check_inputs(inputs)
        if gradients:
            self.check_likelihood()
        capture = self._recorded(lambda: self.predict(inputs))
        if gradients:
            self._differentiate(capture, inputs)
        return capture

    def _recorded(self, run: Callable[[], Any]) -> Capture:
        """What is read while this runs."""
        try:
            with record(self) as capture:
                run()
        except NoReadsError as error:
            raise UserError(f"this model does not attend: {error}") from error
        if not any(capture.recording.counts().values()):
            raise UserError("the model read nothing: what is a single item long has no other to read")
        return capture

    def _check_test(self) -> None:
        """Raises UserError if the run names no test data."""
        if not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")

    def _named(self, one: Any, name: str) -> Any:
        """The input; from now on it is called so."""
        # By identity, for arrays and images are what their numbers are; the reference tells whether it is still it.
        self._names[id(one)] = weakref.ref(one), name
        return one

    def _called(self, one: Any, otherwise: str) -> str:
        """What an input is called that may be a file."""
        if isinstance(one, str | Path):
            return Path(one).name
        known, name = self._names.get(id(one), (None, ""))
        return name if known is not None and known() is one else otherwise

    def _improbable(self, answers: str = "") -> str:
        """What is told if gradients are asked for; answers: what they are, if they are known to have no probability."""
        if answers:
            return f"this run answers with {answers}, which have no probability whose gradient could be shown"
        return f"the recipe {self.run.recipe} tells no probability of its answers, whose gradient could be shown"

    def _differentiate(self, capture: Capture, inputs: Sequence[Any]) -> None:
        """Answer once more, all at once and with gradients, and add what they tell to each scene."""
        parts = self.parts(inputs)
        if len(capture) != len(parts):
            raise UserError(
                f"gradients are shown of one answer to each input, but {len(parts)} have {len(capture)} scenes"
            )
        found: list[list[Map]] = []
        silent: list[NothingSaidError] = []
        for number, (given, seen) in enumerate(zip(parts, capture, strict=True)):
            found.append([])
            try:
                with torch.enable_grad(), record(self._model, scenes=[seen.scene], gradients=True) as again:
                    again.differentiate(self.likelihood(given, seen))
            except NothingSaidError as error:
                silent.append(error)
                continue
            # Each scene is a recording of its own, whose keys begin anew.
            changed = again[0].find(measure=GRADIENT)
            found[-1] += [replace(one, key=f"scene {number}/{one.key}") for one in changed]
        if len(silent) == len(found):
            raise silent[0]
        capture.add(found)


class Task(ABC):
    """A recipe at work."""

    metric: str
    """The entry of `measure` that chooses weights."""
    maximize: bool = True
    """Whether a larger one is better."""

    def __init__(self, run: Run, tell: Callable[[str], None]):
        self.run = run
        self.tell = tell

    @abstractmethod
    def check(self) -> None:
        """Open all that the run will need, so that a missing or bad file is told before hours of training."""

    @abstractmethod
    def learn(self, folder: Path) -> None:
        """Write to the folder what training data decides before there is a model."""

    def pretrain(self, folder: Path) -> None:  # noqa: B027  # few tasks have something to do here
        """Train what is trained before the model, in folders of its own, unless that is done."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Read what `learn` wrote. Raises UserError naming the file that is missing or damaged."""

    @abstractmethod
    def batches(self) -> Batches:
        """What is trained on."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A model with fresh weights from torch's generator; see regard.train.contracts.Trainable."""

    @abstractmethod
    def measure(self, model: nn.Module) -> dict[str, float]:
        """What a validation finds."""

    @abstractmethod
    def trained(self, model: nn.Module, folder: Path) -> Trained:
        """The model in use."""

    @abstractmethod
    def has_test(self) -> bool:
        """Whether the run names test data."""

    def describe(self) -> str:
        """What else there is to say of the model beside its weights."""
        return ""

    def ceiling(self) -> float | None:
        """The best score that any model can have, where the data tells."""
        return None


def numbered(inputs: Sequence[Any], index: int, origin: str) -> Any:
    """The input of this number, from 0. Raises UserError if there are not so many."""
    if not 0 <= index < len(inputs):
        raise UserError(f"{origin} has {len(inputs)} inputs, from 0 to {len(inputs) - 1}; there is no number {index}")
    return inputs[index]


def check_inputs(inputs: Sequence[Any]) -> None:
    """Raises: TypeError for one text in place of a list, UserError if there is no input or one is empty."""
    if isinstance(inputs, str | Path):
        raise TypeError(f"inputs must be a list, but is one: {str(inputs)[:40]!r}")
    if not len(inputs):
        raise UserError("there is nothing to look at: no input is given")
    for number, one in enumerate(inputs, start=1):
        if isinstance(one, str | list | tuple) and not (one.strip() if isinstance(one, str) else one):
            raise UserError(f"input {number} is empty: there is nothing to look at")


def task_of(run: Run, tell: Callable[[str], None]) -> Task:
    """The recipe of a run, at work; `tell` is told of lines that were left out."""
    found = entry(run.recipe)
    make = found.task or importlib.import_module(found.module).task
    return make(run, tell)


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    engine: str = "auto",
    compute_type: str | None = None,
    workers: int | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Any:
    """The model of a run folder, ready to use.

    device:  cpu, cuda, cuda:1, mps ..., or auto: an accelerator if there is one.
    engine:  what decodes: torch, compiled, ctranslate2, or auto; compute_type (such as int8) and workers as in
             `Trained.compile`.
    tell:    gets a sentence where data is left out.
    Raises:  UserError, naming the file, if the folder is no run, or a file is missing, damaged or from a
             newer version; and as `Trained.compile`. Nothing that a file names is imported.
    """
    folder = Path(folder)
    run = read_run(folder)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise UserError(f"{weights} is missing: the run has no weights yet; `regard train` goes on with it")
    check_learned(folder)
    task = task_of(run, tell)
    # Whatever the caller's default device, default dtype and inference mode: weights are ordinary float32 tensors.
    with torch.inference_mode(mode=False), torch.device("cpu"), default_dtype(torch.float32), fitting_memory():
        task.open(folder)
        model = task.model()
        load_weights(weights, model)
    trained = task.trained(model.to(pick_device(device)), folder)
    trained._active.is_owned = True
    if engine != "auto" or compute_type or workers:
        trained.compile(engine, compute_type=compute_type, workers=workers)
    return trained
