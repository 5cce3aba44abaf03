"""Base class of recipes: a task from its data to its answers.

    load(split)                      dataset of a split: train, val or test
    fit(train)                       artifacts: vocabularies, labels, scales; `open` reads them
    batches(), model()               for regard.training.loop.fit
    metrics(inference, dataset)      scores; `metric` selects the best checkpoint

    preprocess(given, number)        an input -> rows of the model
    forward(inference, rows)         rows -> outputs, a batch at a time
    postprocess(example)             an input with its rows and outputs -> its answer
    sample(inference, example, i)    title, labels and pictures for `regard look`

The rest is the same for all: regard.recipes.base.trained and regard.recipes.training.
"""

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.config import Tables
from regard.data.held_out import split_data
from regard.data.tables import TABLES, Input, read_column
from regard.data.tokenizer import Tokenizer, TrainedTokenizer, load_tokenizer
from regard.errors import UserError
from regard.layers.pool import ClassToken, MeanPooling
from regard.look.maps import SampleMaps
from regard.look.sample import Sample
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.entry import Entry
from regard.recipes.base.run import ARTIFACTS, Run
from regard.system.files import plain_name
from regard.trace import Trace
from regard.training.protocols import TrainingBatches

ConfigT = TypeVar("ConfigT")
DataT = TypeVar("DataT")


class EmptyAnswerError(UserError):
    """The answer to an input is empty, so it has no probability to differentiate."""


class Prompt(NamedTuple):
    """A text, its ids without EOS, and the number of the input, which seeds its sampling."""

    text: str
    ids: list[int]
    number: int


class Ranked(NamedTuple):
    """One of the best answers as text, and its score."""

    text: str
    score: float


class File(NamedTuple):
    """Name and content of a file that is an input."""

    name: str
    content: bytes


@dataclass
class Answer:
    """Answer to one input, in all of its forms."""

    value: Any
    """Return value of `TrainedRun.predict`."""
    json: Mapping[str, Any]
    """Output of `regard predict --json` (docs/answers.md)."""
    lines: list[str]
    """Output of `regard predict`."""
    ranked: list[Ranked] = field(default_factory=list)
    """The best answers, best first, of recipes with the setting `n_best`."""
    num_tokens: int = 0
    """Number of tokens that were decoded."""
    is_finished: bool = True
    """False if the answer is cut at the maximum length."""


class Results(NamedTuple):
    """Metrics of examples, and what the same metrics of others of them are computed from."""

    scores: dict[str, Any]
    rescore: Callable[[Sequence[int]], Mapping[str, Any]]
    """Returns metrics of examples by index, which may be repeated."""
    outputs: Sequence[str] = ()
    """Texts that sacrebleu scores, if any."""
    references: Sequence[Sequence[str]] = ()


class View(Sequence[Any]):
    """Sequence whose items are computed when they are read."""

    def __init__(self, count: int, get: Callable[[int], Any]):
        self._count, self._get = count, get

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._get(index)


@dataclass(frozen=True)
class Dataset(Generic[DataT]):
    """Examples of a split."""

    data: DataT
    """The examples in the form of the recipe."""
    origin: str
    """Name of the data, for messages."""
    inputs: Sequence[Any]
    """Input of each example for `TrainedRun.predict`."""
    references: Sequence[Any] | None = None
    """Target of each example in the form of `Answer.json`."""
    names: Sequence[str] | None = None
    """Name of each example for reports; by default, its input."""
    notes: tuple[str, ...] = ()
    """What was left out, a line each."""
    targets: Any = None
    """Encoded targets, if `encode` adds them."""

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class Example:
    """One input of a prediction with its rows of the model (one, several, or none)."""

    name: str
    rows: list[Any]
    outputs: list[Any] = field(default_factory=list)
    """Output of the model for each row."""
    number: int = 1
    """Number of the input, from 1."""


class Recipe(ABC, Generic[ConfigT]):
    """Data, model, metrics and answers of one run."""

    metric: str
    """Entry of `metrics` that selects the best checkpoint."""
    higher_is_better: bool = True
    monitored: tuple[str, ...] = ()
    """Entries of `metrics` that are computed for the validation data; all numbers if empty."""
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
    input_name: str = "file"
    """Usual name of the column of inputs in tables."""
    columns: Mapping[str, type] = {}
    """Columns of answers in tables, and their types; of `Answer.ranked`: the text, its score."""
    reads_tokens: bool = False
    """True if an input may be a list of tokens instead of a text."""
    predictions_hint: str = ""
    """Why answers to test examples say nothing of a model, and what does, as a sentence."""
    look_hint: str = ""
    """What to look at in a model without attention, as the end of a sentence."""
    batch_rows: int = sys.maxsize
    """Maximum number of rows of a batch of answers; by default, all rows are one batch."""

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        self.run, self.notify, self.entry = run, notify, entry
        self.config: ConfigT = run.config
        self._test: Dataset[Any] | None = None

    @property
    def settings(self) -> Any:
        """The config without its type, for code that several recipes share."""
        return self.config

    def change(self, values: Mapping[str, Any], *, for_test: bool = False) -> Self:
        """Return the recipe with changed settings of answers, and for_test of the test data.

        values: by name, such as {"beam": 4} or {"decode": {"beam": 4}} (`Entry.change`).
        """
        if not values:
            return self
        changed = copy.copy(self)
        changed.config = self.entry.change(self.config, values, for_test=for_test)
        return changed

    # Data

    @abstractmethod
    def load(self, split: str) -> Dataset[Any]:
        """Return the examples of a split as read: train, val or test."""

    def encode(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Drop the examples that do not fit the artifacts (length, label), and encode targets.

        Raises: UserError for one that does not fit, unless `data.on_bad` is skip.
        """
        return dataset

    def has_test(self) -> bool:
        """Return True if there is test data; built-in and synthetic data always have it."""
        data = self.settings.data
        return not getattr(data, "train", None) or bool(getattr(data, "test", None))

    def read(self, split: str) -> Dataset[Any]:
        """Load a split, and report what was left out."""
        dataset = self.load(split)
        for note in dataset.notes:
            self.notify(note)
        return dataset

    def read_encoded(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Encode a dataset, and report what was left out."""
        encoded = self.encode(dataset)
        for note in encoded.notes:
            if note not in dataset.notes:
                self.notify(note)
        return encoded

    @cached_property
    def train(self) -> Dataset[Any]:
        return self.read("train")

    @cached_property
    def val(self) -> Dataset[Any]:
        return self.read("val")

    @cached_property
    def encoded_val(self) -> Dataset[Any]:
        return self.read_encoded(self.val)

    def check(self) -> None:
        """Read all data of the run, so that a wrong file is reported before training."""
        _ = self.train, self.val
        if self.has_test():
            self._test = self.read("test")

    def check_test(self) -> None:
        """Encode validation and test data, so that a wrong label is reported before training."""
        _ = self.encoded_val
        if self._test is not None:
            self.encode(self._test)
            self._test = None

    # Training

    @abstractmethod
    def fit(self, train: Dataset[Any]) -> Mapping[str, Any]:
        """Compute the artifacts from the training data: objects with `save(path)`, by file name."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Load the artifacts of a run folder as attributes."""

    def fit_tokenizer(
        self, texts: Iterable[str], origin: str, *, keeps_space: bool = False
    ) -> Tokenizer:
        """Load the tokenizer of the initial run, or train one on texts."""
        if self.run.init is not None:
            return load_tokenizer(Path(self.run.init.folder) / ARTIFACTS / "tokenizer.json")
        config = self.settings.tokenizer
        return TrainedTokenizer.train(texts, config, keeps_space=keeps_space, origin=origin)

    def pretrain(self, folder: Path) -> None:  # one recipe has something to do here
        """Train the models that the main model needs, each in a folder of its own."""

    @abstractmethod
    def batches(self) -> TrainingBatches:
        """Return the training batches."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a model initialized from torch's random generator; see `Trainable`."""

    def parts(self) -> dict[str, Any]:
        """Return parts of the model in place of those of the settings, for a recipe of one's own.

        score, choice, norm, positions, feedforward, attention: as `Transformer` takes them. writer:
        a class, or a function, that is called as the writer of the recipe is.
        """
        return {}

    def check_model(self, model: Any) -> None:  # one recipe has something to check
        """Raise UserError for settings of answers that the model cannot follow."""

    @abstractmethod
    def metrics(self, inference: ActiveModel, dataset: Dataset[Any]) -> dict[str, Any]:
        """Return the metrics of an encoded dataset, and their description as `signature`."""

    def results(self, inference: ActiveModel, dataset: Dataset[Any]) -> Results:
        """Return `metrics` of an encoded dataset, and those of its examples if they are known."""
        return Results(self.metrics(inference, dataset), lambda _indices: {})

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the validation metrics of a model."""
        scores = self.metrics(self.inference(model), self.encoded_val)
        names = self.monitored or tuple(scores)
        return {name: scores[name] for name in names if isinstance(scores[name], int | float)}

    def calibrate(self, model: Any) -> dict[str, float]:
        """Scale the scores of the selected model so that probabilities fit the validation data.

        Returns the validation metrics that change, and the temperature; nothing if none is fitted.
        """
        return {}

    def inference(self, model: nn.Module) -> ActiveModel:
        """Return the model in eval mode, with its engine."""
        return ActiveModel(model, decodes=self.decodes, recipe=self.run.recipe)

    def describe(self) -> str:
        """Return a description of inputs and outputs, shown beside the number of parameters."""
        return ""

    # Answers

    def is_table(self, path: Path) -> bool:
        """Return True if `read_inputs` reads this file; others hold one input, or one per line."""
        has_format = getattr(self.settings.data, "format", "auto") != "auto"
        return has_format or plain_name(path).endswith(self.tables)

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterable[Input]:
        """Yield the inputs of a file of data, read as for `evaluate`.

        An input that cannot be read has a `problem`, if the file is a list of inputs. Of other
        files, it is an error, or left out and reported (skip_bad).
        """
        if name := self.input_column(path):
            yield from self._read_column(path, name)
            return
        options = {"test": str(path), "on_bad": "skip" if skip_bad else None}
        dataset = self.change(options, for_test=True).read("test")
        data = self.settings.data
        images = getattr(data, "test_images", None) or getattr(data, "images", None)
        for i, value in enumerate(dataset.inputs):
            if isinstance(value, str) or dataset.names is None:
                yield Input(value, str(path), i + 1)
            else:
                yield Input(value, dataset.names[i], folder=str(images or path.parent))

    def input_column(self, path: Path) -> str:
        """Return the usual name of the column of inputs; empty if a file is read as data."""
        return ""

    def _read_column(self, path: Path, name: str) -> Iterator[Input]:
        """Yield the texts in a column, or the images whose files are named in it."""
        data, chosen = self.settings.data, getattr(self.settings.data, f"{name}_column", None)
        config = data if isinstance(data, Tables) else Tables()
        cells = read_column(path, name, chosen, config, getattr(data, "format", "auto"))
        for number, cell in enumerate(cells):
            if number == 0 and chosen is None and cell.column != name:
                self.notify(f"{path}: without a column {name}, {cell.column!r} is read")
            file = str(path.parent / cell.value.strip())
            yield cell._replace(value=file, file=file, line=None) if name == "file" else cell

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        """Return an answer as rows of a table: those of the best answers, or one of the keys of
        `Answer.json`.

        suffix: of the table, such as .csv; number: of the input, from 1.
        """
        if answer.ranked and self.columns:
            return [dict(zip(self.columns, one, strict=True)) for one in answer.ranked]
        return [dict(answer.json)]

    def notify_unknown(self, tokenizer: Tokenizer, ids: list[int], text: str, number: int) -> None:
        """Report the words or characters of an input that are not in the vocabulary."""
        if tokenizer.specials.unk in ids:
            parts = join_items([repr(part) for part in tokenizer.unknown(text)])
            self.notify(f"input {number}: never seen in training, so read as unknown: {parts}")

    def shorten(self, value: Any) -> Any:
        """Return an input cut to the maximum length of the model."""
        raise UserError(f"the recipe {self.run.recipe} has no maximum length to truncate to")

    def shorten_embedded(self, value: Any) -> Any:
        """Return an input cut to the maximum length of an input that has a vector."""
        return self.shorten(value)

    @abstractmethod
    def preprocess(self, given: Any, number: int) -> list[Any]:
        """Return an input as rows of the model: a text, a file (`File`) or an array.

        number: of the input, from 1, for messages.
        Raises: UserError for an input that cannot be read.
        """

    def plan(self, rows: Sequence[Any]) -> Iterable[range]:
        """Return which rows are in a batch; by default, `batch_rows` at a time."""
        return plan_by_count(rows, self.batch_rows)

    @abstractmethod
    def forward(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> Sequence[Any]:
        """Return the output for each row.

        trace: for searches, which fill it if attention is recorded; its row i is rows[i].
        """

    def forward_for_look(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> Sequence[Any]:
        """Return the output for each row for `look`, by default that of `forward`."""
        return self.forward(inference, rows, trace)

    @abstractmethod
    def postprocess(self, example: Example) -> Answer:
        """Return the answer to an input, which has its outputs."""

    def check_progress(self) -> None:
        """Raise UserError if outputs cannot be read while they are decoded."""
        if not self.decodes:
            problem = "its answers cannot be read before they are complete"
            raise UserError(f"the recipe {self.run.recipe} does not decode tokens: {problem}")

    def partial_text(self, row: Any, tokens: Sequence[int]) -> str:
        """Return the beginning of the text of an answer, from the first tokens of a row's output.

        The end is left out as long as further tokens could change it; by default, all of it.
        """
        return ""

    @torch.no_grad()
    def compute_outputs(
        self,
        inference: ActiveModel,
        examples: Sequence[Example],
        trace: Trace | None = None,
        step: Callable[..., Any] | None = None,
    ) -> None:
        """Compute the outputs of the rows by batches, and samples if attention is recorded.

        step: function in place of `forward`.
        """
        step = step or self.forward
        places = [(example, i) for example in examples for i in range(len(example.rows))]
        rows = [example.rows[i] for example, i in places]
        traced: list[tuple[list[Sample | None], range]] = []
        for batch in self.plan(rows):
            samples: list[Sample | None] = []
            if trace is not None:
                samples += [Sample() for _ in batch]
            with nullcontext() if trace is None else trace.segment(samples):
                outputs = step(inference, rows[batch.start : batch.stop], trace)
            for row, output in zip(batch, outputs, strict=True):
                places[row][0].outputs.append(output)
            traced.append((samples, batch))
        if trace is not None:
            for samples, batch in traced:  # described when the outputs are known
                samples[:] = [self.sample(inference, *places[row]) for row in batch]

    @torch.no_grad()
    def trace_again(
        self, inference: ActiveModel, examples: Sequence[Example], trace: Trace
    ) -> None:
        """Let the model compute the outputs that examples have, row by row, for a recording."""
        for example in examples:
            for i, (row, output) in enumerate(zip(example.rows, example.outputs, strict=True)):
                sample = self.sample(inference, example, i)
                if sample is not None:
                    sample.input = example.number
                with trace.segment([sample]):
                    self.read_output(inference, row, output, trace)

    def read_output(self, inference: ActiveModel, row: Any, output: Any, trace: Trace) -> None:
        """Let the model compute the output of a row, for a recording; by default by `forward`.

        Recipes that decode read it with teacher forcing.
        """
        self.forward(inference, [row], trace)

    def answers(self, inference: ActiveModel, inputs: Sequence[Any]) -> list[Answer]:
        """Return the answer to each input, as `predict` does."""
        examples = []
        for number, value in enumerate(inputs, start=1):
            examples.append(Example(str(number), self.preprocess(value, number)))
        self.compute_outputs(inference, examples)
        return [self.postprocess(example) for example in examples]

    def encode_scored(self, given: Any, number: int) -> list[Any]:
        """Return a text, or a pair of texts, as `TeacherInputs`. Raises: UserError as `preprocess`.

        A recipe without log-probabilities of given texts refuses all of them.
        """
        raise UserError(
            f"runs of {self.run.recipe} score no texts, but those of language, translate and dates"
        )

    def preprocess_embedded(self, given: Any, number: int) -> list[Any]:
        """Return an input as rows that have a vector. Raises: UserError if it has none."""
        rows = self.preprocess(given, number)
        if not rows:
            raise UserError(f"input {number} is empty: it has no vector")
        return rows

    def collate(self, rows: Sequence[Any]) -> Any:
        """Return rows as the source of the model."""
        raise UserError(f"runs of {self.run.recipe} have no vectors of inputs")

    def embed(self, pooling: str, inference: ActiveModel, rows: Sequence[Any], *_: Any) -> Tensor:
        """Return a vector of each row: that from which the model classifies (`auto`), or the mean
        of the items that its encoder returns."""
        model = inference.model
        encoded = model.encoder(self.collate(rows).to(next(model.parameters()).device))
        pool = getattr(model.writer, "pool", None)
        if pooling == "auto" and pool is not None:
            return pool(encoded)
        first = pool.count if isinstance(pool, ClassToken) else 0
        return MeanPooling()(Padded(encoded.items[:, first:], encoded.lengths - first))

    def stack(self, values: list[Any]) -> Any:
        """Combine the values of answers to the result of `predict`; by default a list."""
        return values

    # Looks

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample | None:
        """Return the description of row i of an input for captures; None to hide it."""
        return Sample(title=example.name)

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        """Return maps whose numbers sum to the scores of output i; None by default."""

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        """Return log p of output i as a differentiable scalar.

        Raises: EmptyAnswerError if the answer is empty; UserError if it has no probability.
        """
        raise UserError(f"answers of {self.run.recipe} have no probability to differentiate")


class FileRecipe(Recipe[ConfigT]):
    """Recipe whose data is read from files, or is synthetic: one rule for its splits."""

    def load(self, split: str) -> Dataset[Any]:
        data = self.settings.data
        if split == "test" and data.test is not None:
            return self.to_dataset(self.read_split(split))
        if data.train is None:
            return self.to_dataset(self.generate(split))
        return self.to_dataset(self._splits[split == "val"])

    def check(self) -> None:
        """Read all data, and report validation and test texts that are also training texts."""
        super().check()
        data = self.settings.data
        if self.entry.input_of(self.config) != "text" or not (data.val or data.test):
            return
        for name, dataset in (("val", self.val), ("test", self._test)):
            if dataset is None or not getattr(data, name):
                continue
            own = [*map(str, dataset.inputs)]
            also = {*own}.intersection(map(str, self.train.inputs))
            if also:
                count = sum(text in also for text in own)
                share = f"{count:,} of {len(own):,} texts"
                self.notify(f"{dataset.origin}: {share} are also in the training data")

    @cached_property
    def _splits(self) -> tuple[Any, Any]:
        train = self.read_split("train")
        if self.settings.data.val is not None:
            return train, self.read_split("val")
        return self.hold_out(train)

    @abstractmethod
    def read_split(self, split: str) -> Any:
        """Return the data of a split from the files that the settings name."""

    @abstractmethod
    def generate(self, split: str) -> Any:
        """Return the synthetic data of a split, without training data of the user."""

    @abstractmethod
    def hold_out(self, train: Any) -> tuple[Any, Any]:
        """Return the training data without the part for validation, and that part."""

    @abstractmethod
    def to_dataset(self, data: Any) -> Dataset[Any]:
        """Return data of a split as a dataset."""

    def split_off(self, train: Any, noun: str, **options: Any) -> tuple[Any, Any]:
        """Return training and validation data by a random sample (`split_data`)."""
        share, seed = self.settings.data.val_share, self.run.seed
        return split_data(train, share, noun, seed=seed, **options)


def one_line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def unknown_text(number: int, tokenizer: Tokenizer) -> str:
    """Return a notice about a text whose tokens are all unknown."""
    noun = tokenizer.noun
    return f"input {number}: all of its {noun} are unknown, so the answer does not depend on them"


def plan_by_count(rows: Sized, most: int) -> list[range]:
    """Return ranges of at most `most` rows."""
    return [range(i, min(i + most, len(rows))) for i in range(0, len(rows), most)]


def join_items(items: Sequence[object]) -> str:
    """Return the first items of a list for a message, and their number."""
    more = f" ... ({len(items)} in all)" if len(items) > 10 else ""
    return ", ".join(map(str, items[:10])) + more
