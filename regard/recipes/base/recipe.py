"""Base class of recipes: a task from its data to its answers.

    recipe.read(split)                   examples of a split, or of other data
    recipe.learn(folder)                 write vocabularies, labels and scales, computed from the
    training data
    recipe.open(folder)                  read them
    recipe.batches(), .model()           for regard.training.loop.fit
    recipe.score(inference, examples)    metrics; `recipe.metric` selects the best checkpoint

    recipe.prepare(inputs)               inputs -> rows of the model
    recipe.answer(inference, rows)       rows -> answers, a batch at a time
    recipe.join(prepared, answers)       answers of rows -> answers to inputs
    recipe.value, .lines, .json          an answer for Python, as text, and as JSON

Reading files, batching, tracing, notes and evaluation are the same for all recipes:
regard.recipes.base.trained. So are training, the run folder and the report:
regard.recipes.training.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Sample
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.config import defaults_of_run, replace_shared
from regard.recipes.base.entry import Entry
from regard.recipes.base.inputs import TABLES, Input
from regard.recipes.base.run import ARTIFACTS, Run
from regard.system.compression import plain_name
from regard.system.terminal import format_count
from regard.trace import Trace
from regard.training.protocols import TrainingBatches

ConfigT = TypeVar("ConfigT")
DataT = TypeVar("DataT")
ValueT = TypeVar("ValueT")
_NOTES = 10
_LABELS, _LONGEST = 20, 60
"""Number of the most frequent and of the rarest labels that are counted in a line, and length of
each."""


class EmptyAnswerError(UserError):
    """The answer to an input is empty, so it has no probability to differentiate."""


class Ranked(NamedTuple):
    """One of the best answers as text, and its score."""

    text: str
    score: float


class File(NamedTuple):
    """Content of a file that is an input."""

    name: str
    """For messages and titles."""
    content: bytes


@dataclass(frozen=True)
class Examples(Generic[DataT]):
    """Examples of a split, and how each is given to `predict`."""

    data: DataT
    """Data of the examples, in the form of the recipe."""
    origin: str
    """Name of the data, for messages."""
    count: int
    input: Callable[[int], Any]
    """Returns the input of an example, as `predict` takes it."""
    name: Callable[[int], str] | None = None
    """Returns the name of an example for reports; by default, its input if that is a text."""
    reference: Callable[[int], str] | None = None
    """Returns the target of an example as text, for reports."""
    reference_json: Callable[[int], Any] | None = None
    """Returns the target of an example in the form that `Recipe.json` gives its prediction; the
    text by default."""
    on_bad: str = "error"
    """error: examples that cannot be used are refused; skip: they are left out."""
    skipped: tuple[str, ...] = ()
    """Notes on what was left out, one per line."""
    targets: Any = None
    """Encoded targets, if `usable` encodes them."""

    def __len__(self) -> int:
        return self.count


@dataclass
class Prepared:
    """Inputs as rows of the model: one row for an input, several, or none."""

    count: int
    """Number of inputs."""
    rows: list[Any] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    """Index of the input of each row."""
    facts: list[Any] = field(default_factory=list)
    """Data of each row for interpreting its answer: a scale, a start, a text."""
    notes: list[str] = field(default_factory=list)
    """Notes on unusual inputs."""
    names: list[str] = field(default_factory=list)
    """Name of each input, for titles."""

    def add(self, owner: int, row: Any, fact: Any = None) -> None:
        """Add a row of input `owner`."""
        self.rows.append(row)
        self.owner.append(owner)
        self.facts.append(fact)

    def name_of(self, row: int) -> str:
        """Return the name of the input of a row."""
        return self.names[self.owner[row]]


class Recipe(ABC, Generic[ConfigT]):
    """Data, model, metric and answers of one run."""

    metric: str
    """Entry of `score` that selects the best checkpoint."""
    higher_is_better: bool = True
    """Direction of the metric."""
    monitored: tuple[str, ...] = ()
    """Entries of `score` that are computed for the validation data; all numbers if empty."""
    unit: str = "tokens"
    """What rates of training count: tokens, or a name of the examples in the plural."""
    tables: tuple[str, ...] = TABLES
    """Suffixes of files whose rows are inputs (`read_inputs`), besides files of lines."""
    files_of_folder: tuple[str, ...] = ()
    """Suffixes of the files of a folder that are inputs; empty if no folder is an input."""
    least_val: int = 10
    """Number of validation examples below which training notifies that they are few."""
    decodes: bool = False
    """True if answers are decoded token by token, by an engine (regard.engines)."""
    reads_tokens: bool = False
    """True if an input may be a list of tokens instead of a text."""

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        self.run = run
        self.config: ConfigT = run.config
        self.notify = notify
        self.entry = entry
        self.reading: Any = entry.reading.of_run(run.config)
        """Options for reading files of inputs (regard.recipes.base.config.Reading)."""
        self._test: Examples[Any] | None = None

    # Data

    @abstractmethod
    def read(self, split: str, other: Any = None) -> Examples[Any]:
        """Return the examples of a split: train, val or test; or of other data.

        other: the field `data` of the options of `evaluate`, naming one file.
        """

    def usable(self, examples: Examples[Any]) -> Examples[Any]:
        """Return the examples whose lengths and labels fit what was learned. Raises UserError for
        others."""
        return examples

    def has_test(self) -> bool:
        """Return True if there is test data; built-in and synthetic data always have it."""
        data: Any = self.config.data  # type: ignore[attr-defined]
        return not getattr(data, "train", None) or bool(getattr(data, "test", None))

    def load(
        self, split: str, other: Any = None, *, notify: Callable[[str], None] | None = None
    ) -> Examples[Any]:
        """Return the examples of `read`, after reporting what was left out, by default to the
        recipe's `notify`."""
        examples = self.read(split, other)
        for line in examples.skipped:
            (notify or self.notify)(line)
        return examples

    @cached_property
    def train(self) -> Examples[Any]:
        """Training examples, as read."""
        return self.load("train")

    @cached_property
    def val(self) -> Examples[Any]:
        """Validation examples, as read."""
        return self.load("val")

    def load_usable(
        self, examples: Examples[Any], *, notify: Callable[[str], None] | None = None
    ) -> Examples[Any]:
        """Return the usable examples, after reporting what was left out, as `load` does."""
        usable = self.usable(examples)
        for line in usable.skipped:
            if line not in examples.skipped:
                (notify or self.notify)(line)
        return usable

    @cached_property
    def usable_val(self) -> Examples[Any]:
        """Usable validation examples."""
        return self.load_usable(self.val)

    def check(self) -> None:
        """Read all data of the run, so that a missing or malformed file is reported before
        training."""
        self.check_examples("train", self.train)
        self.check_examples("val", self.val)
        if self.has_test():
            self._test = self.load("test")
            self.check_examples("test", self._test)

    def check_test(self) -> None:
        """Check, once vocabularies and labels are known, that the test data read by `check` is
        usable; release it."""
        test, self._test = self._test, None
        if test is not None:
            self.usable(test)

    def check_examples(self, split: str, examples: Examples[Any]) -> None:  # few recipes check more
        """Raise UserError if examples as read cannot be used at all."""

    # Training

    @abstractmethod
    def learn(self, folder: Path) -> None:
        """Write vocabularies, labels and scales computed from the training data to the folder."""

    def take_over(self, load: Callable[[Path], ValueT], learn: Callable[[], ValueT]) -> ValueT:
        """Return what `load` reads from the run that this one starts from; without one, what
        `learn` returns."""
        return learn() if self.run.init is None else load(Path(self.run.init.folder) / ARTIFACTS)

    def pretrain(self, folder: Path) -> None:  # few recipes have something to do here
        """Train the models that the main model needs, each in a folder of its own, unless that is
        done."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Read what `learn` wrote. Raises UserError naming the file that is missing or damaged."""

    @abstractmethod
    def batches(self) -> TrainingBatches:
        """Return the training batches."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a model initialized from torch's random generator; see
        regard.training.protocols.Trainable."""

    @abstractmethod
    def score(
        self, inference: ActiveModel, examples: Examples[Any], options: Any
    ) -> dict[str, Any]:
        """Return the metrics of usable examples.

        options: those of `evaluate`.
        """

    def report(self, inference: ActiveModel, examples: Examples[Any]) -> dict[str, Any]:
        """Return what `evaluate` gives besides metrics: `signature`, and `samples` unless those of
        the base will do."""
        return {}

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the validation metrics of a model."""
        options = defaults_of_run(self.entry.evaluation, self.config)
        scores = self.score(self.inference(model), self.usable_val, options)
        numbers = {name: value for name, value in scores.items() if isinstance(value, int | float)}
        return {
            name: value
            for name, value in numbers.items()
            if not self.monitored or name in self.monitored
        }

    def inference(self, model: nn.Module) -> ActiveModel:
        """Return the model for inference, and the engine that decodes with it."""
        return ActiveModel(model, decodes=self.decodes, recipe=self.run.recipe)

    def describe(self) -> str:
        """Return a description of inputs and outputs, shown beside the number of parameters."""
        return ""

    def upper_bound(self) -> float | None:
        """Return the best score that any model can reach on the test data, if it is known."""
        return None

    # Answers

    def is_table(self, path: Path) -> bool:
        """Return True if `read_inputs` reads this file; others are one input or have one in each
        line."""
        return getattr(self.reading, "format", "auto") != "auto" or plain_name(path).endswith(
            self.tables
        )

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterable[Input]:
        """Return the inputs of a file of data, read as for `evaluate` with the columns of
        `reading`.

        An input that cannot be read has a `problem`, if the file is a list of inputs. Of other
        files, it is an error, or left out and reported (skip_bad).
        Raises: UserError naming the file and the line.
        """
        other = replace_shared(
            defaults_of_run(self.entry.evaluation, self.config).data, self.reading
        )
        policy = {"on_bad": "skip"} if skip_bad and hasattr(other, "on_bad") else {}
        examples = self.load("test", replace(other, test=(str(path),), **policy))
        for i in range(len(examples)):
            value = examples.input(i)
            if isinstance(value, str) or examples.name is None:
                yield Input(value, str(path), i + 1)
            else:
                yield Input(value, examples.name(i))

    def shorten(self, value: Any) -> Any:
        """Return an input cut to the maximum length of the model; the input itself if it is not too
        long.

        Raises: UserError if no input of the recipe is too long.
        """
        raise UserError(
            f"the recipe {self.run.recipe} has no maximum length of an input to truncate to"
        )

    @abstractmethod
    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        """Return inputs as rows: texts, files (`File`) or arrays.

        first:  number of the first input, for messages.
        Raises: UserError naming an input that cannot be read.
        """

    def plan(self, rows: Sequence[Any]) -> Iterable[range]:
        """Return which rows are answered together; by default all."""
        return [range(len(rows))]

    @abstractmethod
    def answer(
        self, inference: ActiveModel, rows: Sequence[Any], options: Any, trace: Trace | None = None
    ) -> Sequence[Any]:
        """Return the answer to each row.

        options: those of `predict`.
        trace:   for searches, which fill it if attention is recorded; its row i is rows[i].
        """

    def follow(
        self, inference: ActiveModel, rows: Sequence[Any], options: Any, trace: Trace | None = None
    ) -> Sequence[Any]:
        """Return the answer to each row in a look; a recipe may run the model in another way than
        in `answer`."""
        return self.answer(inference, rows, options, trace)

    def join(self, prepared: Prepared, answers: Sequence[Any], options: Any) -> list[Any]:
        """Return the answer to each input."""
        return list(answers)

    def values(self, answers: list[Any]) -> Any:
        """Return answers as `predict` returns them."""
        return answers

    def rank_texts(self, answer: Any) -> list[Ranked]:
        """Return the best answers as text, best first, if `predict` has the option n_best."""
        raise NotImplementedError

    def lines(self, answer: Any) -> list[str]:
        """Return an answer as text, by default the best one in one line."""
        text = self.rank_texts(answer)[0].text
        return [" ".join(text.splitlines()) if "\n" in text or "\r" in text else text]

    @abstractmethod
    def json(self, answer: Any) -> Mapping[str, object]:
        """Return an answer as JSON, in a form of regard.recipes.base.answers."""

    def title(self, answer: Any) -> str:
        """Return an answer for tables, by default in one line."""
        return self.lines(answer)[0]

    def files(self, inputs: Sequence[Any], options: Any, first: int) -> list[Any]:
        """Return where `regard predict` saves each answer; empty if answers are only printed.

        Raises: UserError or FileExistsError if a file cannot be written, before anything is
                computed.
        """
        return []

    def save(self, answer: Any, files: Any) -> Any:
        """Save an answer to its files, and return the answer with their names."""
        raise NotImplementedError

    look_hint: str = ""
    """What to look at in a model without attention, as the end of a sentence."""
    plots_answers: bool = False
    """True if `plot_answer` draws an answer."""

    def plot_answer(self, inference: ActiveModel, row: Any, out: Path, *, overwrite: bool) -> None:
        """Plot a row and its answer to an image file."""
        raise NotImplementedError

    def plot_manifold(self, inference: ActiveModel, out: Path, *, overwrite: bool) -> None:
        """Plot the manifold of the reconstructions. Raises UserError if there is none."""
        raise UserError(
            f"the recipe {self.run.recipe} has no manifold of reconstructions; --view manifold is "
            f"for runs of rebuild "
            "with --data vectors of two numbers"
        )

    # Looks

    def check_look(self, prepared: Prepared) -> None:  # few recipes check more
        """Raise UserError for a row that can be answered but not shown."""

    def sample(
        self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[Any]
    ) -> Sample | None:
        """Return the description of a row for captures, given the answers to all rows; None if it
        is not shown."""
        return Sample(title=prepared.name_of(row))

    def explain(
        self, inference: ActiveModel, prepared: Prepared, row: int, answer: Any, sample: Sample
    ) -> SampleMaps | None:
        """Return maps whose numbers sum to the scores of an answer (regard.look.measures); None if
        it has none."""
        return None

    def check_log_prob(self) -> None:
        """Raise UserError if answers have no probability, so that there is nothing to
        differentiate."""
        if type(self).log_prob is Recipe.log_prob:
            raise UserError(self.no_probability_message())

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: Any) -> Tensor:
        """Return log p of the answer to a row, as a differentiable scalar.

        Raises: EmptyAnswerError if the answer is empty.
        """
        raise UserError(self.no_probability_message())

    def no_probability_message(self, answers: str = "") -> str:
        """Return the error message for gradients of answers without a probability."""
        if answers:
            return f"this run predicts {answers}, which have no probability to differentiate"
        return f"the recipe {self.run.recipe} gives no probability of its answers to differentiate"


def plan_by_count(rows: Sequence[Any], most: int) -> list[range]:
    """Return ranges of at most `most` rows."""
    return [range(i, min(i + most, len(rows))) for i in range(0, len(rows), most)]


def plan_by_length(lengths: Sequence[int], most: int) -> list[range]:
    """Return ranges of consecutive rows whose padded items number at most `most`, or single
    rows."""
    # Not sorted by length: the samples of a capture have the order of the inputs.
    ranges, start, longest = [], 0, 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > start and (i + 1 - start) * longest > most:
            ranges.append(range(start, i))
            start, longest = i, length
    return [*ranges, range(start, len(lengths))] if len(lengths) else []


def count_labels(labels: Iterable[str]) -> str:
    """Return the number of each label, such as: circle 1, square 2."""
    return (
        ", ".join(f"{name} {count:,}" for name, count in sorted(Counter(labels).items()))
        or "nothing"
    )


def describe_labels(origin: str, noun: str, labels: Sequence[str]) -> str:
    """Return the line that counts the labels of training data: rare ones may be misspelled.

    noun: what has these labels.
    """
    counts = Counter(labels).most_common()
    shown = [f"{name[:_LONGEST]} {count:,}" for name, count in counts]
    if len(shown) > 2 * _LABELS:
        shown[_LABELS:-_LABELS] = ["..."]
    number = format_count(len(counts), "label")
    return f"{origin}: {len(labels):,} {noun} in training, {number}: {', '.join(shown)}"


def describe_skipped(origin: str, noun: str, skipped: Sequence[str]) -> tuple[str, ...]:
    """Return the note that examples were left out; empty if none were."""
    return (
        (f"{origin}: skipped {len(skipped):,} of the {noun}; first: {skipped[0]}",)
        if skipped
        else ()
    )


def describe_empty(numbers: Sequence[int], one: str, many: str) -> str:
    """Return the note that inputs are empty, with what follows for one or for several of them."""
    *others, last = join_items(numbers).split(", ")
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"inputs {listed} are empty{many}" if others else f"input {listed} is empty{one}"


def describe_too_long(number: int, length: int, noun: str, most: int) -> str:
    """Return the error message about an input of too many tokens."""
    return f"input {number} has {length} {noun}, more than the run's --data.max-length {most}"


def join_items(items: Sequence[object]) -> str:
    """Return the first items of a list for a message, and their number."""
    more = f" ... ({len(items)} in all)" if len(items) > _NOTES else ""
    return ", ".join(str(item) for item in items[:_NOTES]) + more
