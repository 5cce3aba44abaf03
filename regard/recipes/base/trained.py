"""Trained runs: `predict`, `evaluate` and `look` of all recipes, as returned by `regard.load`."""

import copy
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.data.arrays import stack_vectors
from regard.decode.progress import DecodingProgress
from regard.engines.engine import Engine
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.hooks import NoReadsError
from regard.look.maps import GRADIENT, AttentionMap
from regard.look.output import load_figures
from regard.look.record import record
from regard.look.sample import Axis
from regard.models.outline import Outline, outline
from regard.models.writers.vector import NoTermsError
from regard.recipes.base.answers import TextScore
from regard.recipes.base.recipe import (
    Answer,
    Dataset,
    EmptyAnswerError,
    Example,
    File,
    Recipe,
    Results,
    plan_by_count,
)
from regard.recipes.base.scoring import score_texts
from regard.recipes.metrics.report import round_scores
from regard.system.files import read_bytes
from regard.system.writing import valid_text
from regard.trace import Trace

_EMBEDDED_INPUTS = 64
"""Maximum number of inputs of a batch of vectors."""


@final
class TrainedRun:
    """A trained model with its recipe, settings and folder, as returned by `load`."""

    def __init__(self, recipe: Recipe[Any], model: nn.Module, folder: Path):
        self.recipe = recipe
        self.run = recipe.run
        self.folder = folder
        self._active = recipe.inference(model)
        self._own_test: Dataset[Any] | None = None
        self.trace: Trace | None = None
        """Trace of what the run computes; None unless its attention is recorded."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"trace": None}

    def __repr__(self) -> str:
        shown = f"recipe={self.run.recipe!r}, parameters={self.num_parameters:,}"
        return f"TrainedRun({str(self.folder)!r}, {shown})"

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._active.module.parameters())

    @property
    def config(self) -> Any:
        return self.run.config

    @property
    def model(self) -> Any:
        """The module, which the caller may change: torch computes with it until `compile`."""
        return self._active.unfreeze()

    @property
    def input(self) -> str:
        """Kind of input: text, image, sound, tracks or vector."""
        return self.recipe.entry.input_of(self.config)

    @property
    def engine(self) -> Engine:
        """The engine that decodes; always torch while attention is recorded."""
        return self._active.engine_for(traced=self.trace is not None)

    @property
    def _model(self) -> Any:
        """The module that computes answers, for this package: a compiled engine remains."""
        return self._active.model

    def compile(
        self,
        engine: str | None = None,
        *,
        compute_type: str | None = None,
        workers: int | None = None,
    ) -> None:
        """Freeze a copy of the model, which computes all answers from now on.

        It uses as many threads as torch has now. Later changes of the module that `model` returned
        do not reach the copy: call `compile` again.

        engine:  a name in regard.engines.config.ENGINES, or auto. Without arguments, those of the
                 last call of `compile`, or else of `load`, are used again.
        workers: batches decoded in parallel; the threads are divided among them.
        Raises:  UserError if the engine does not exist, is not installed, does not support this
                 model or the compute type, or if the recipe decodes no tokens.
        """
        is_default = engine is None and compute_type is None and workers is None
        self._active.compile(None if is_default else (engine or "auto", compute_type, workers))

    def predict(
        self, inputs: Sequence[Any], *, on_bad: Literal["error", "skip"] = "error", **options: Any
    ) -> Any:
        """Return the model's answer to each input.

        inputs:  texts, or files and arrays, as the recipe reads them (docs/recipes).
        on_bad:  handling of inputs that cannot be used (too long, damaged): error raises; skip
                 returns None in their place, and `notify` of `load` says why.
        options: settings of answers of the run that change, by name, such as threshold=0.2. With
                 n_best, the best answers to each input with their scores.
        Raises:  UserError naming an input that cannot be read, or an option that is out of range;
                 TypeError for an option that does not exist, and for inputs that are no list.
        """
        recipe = self.recipe.change(options)
        answers = self._answers(inputs, recipe, on_bad)
        found = [answer for answer in answers if isinstance(answer, Answer)]
        if _gives_n_best(options):
            values = [answer.ranked for answer in found]
        else:
            values = recipe.stack([answer.value for answer in found]) if found else []
        if len(found) == len(answers):
            return values
        rest = iter(values)
        return [next(rest) if isinstance(answer, Answer) else None for answer in answers]

    def answer(
        self, inputs: Sequence[Any], *, on_bad: Literal["error", "skip"] = "error", **options: Any
    ) -> list[dict[str, Any]]:
        """Return the model's answer to each input as JSON, as `regard predict --json` prints it.

        The arguments and errors are those of `predict`. An input that is skipped has the answer
        {"error": message}.
        """
        answers = []
        for answer in self._answers(inputs, self.recipe.change(options), on_bad):
            is_answer = isinstance(answer, Answer)
            answers.append(dict(answer.json) if is_answer else {"error": str(answer)})
        return answers

    def check_classifier(self) -> None:
        """Raise UserError for a run that is imported without a classifier."""
        if self.run.origin is not None and self.run.origin.base is not None:
            raise UserError(
                f"{self.folder} is imported without a classifier ({self.run.origin.base}): "
                f"regard train {self.run.recipe} --init {self.folder} trains one"
            )

    def compute_answers(
        self,
        inputs: Sequence[Any],
        recipe: Recipe[Any] | None = None,
        *,
        first: int = 1,
        is_skipping: bool = False,
    ) -> list[Any]:
        """Return the `Answer` to each input (`first`: its number), or the UserError if skipped."""
        self.check_classifier()
        recipe = recipe or self.recipe
        answers = self.prepare(inputs, recipe, first=first, is_skipping=is_skipping)
        return _replace_examples(answers, lambda examples: self.compute(examples, recipe))

    def prepare(
        self,
        inputs: Sequence[Any],
        recipe: Recipe[Any],
        *,
        names: Sequence[str] = (),
        first: int = 1,
        is_skipping: bool = False,
        encode: Callable[[Any, int], list[Any]] | None = None,
    ) -> list[Any]:
        """Return the inputs as an `Example` each, or the UserError of one that is skipped.

        encode: function from an input and its number to rows, in place of the recipe's.
        """
        is_text = isinstance(inputs, str | Path | bytes | Mapping)
        if is_text or not hasattr(inputs, "__len__") or not hasattr(inputs, "__getitem__"):
            raise TypeError(f"inputs must be a list, got {type(inputs).__name__}")
        examples: list[Any] = []
        with self._without_autocast():
            for number, value in enumerate(inputs, start=first):
                try:
                    if isinstance(value, UserError):  # of a row that could not be read
                        raise value
                    given = value if encode is not None else self._read_input(value, number)
                    rows = (encode or recipe.preprocess)(given, number)
                except UserError as error:
                    if not is_skipping:
                        raise
                    examples.append(error)
                    continue
                name = names[number - first] if names else ""
                if not name and isinstance(given, File):
                    name = Path(given.name).name
                name = valid_text(name) or f"{self.input} {number}"
                examples.append(Example(name, rows, number=number))
        return examples

    def compute(
        self,
        examples: Sequence[Example],
        recipe: Recipe[Any],
        progress: DecodingProgress | None = None,
    ) -> list[Answer]:
        """Return the answer to each prepared input; together they are computed by batches.

        progress: receives the tokens of the rows of all examples, in order, while they are decoded
                  (`Recipe.partial_text` is their text).
        Raises: UserError if the recipe does not decode, or decodes by beam search.
        """
        if progress is not None:
            recipe.check_progress()
        follow = nullcontext() if progress is None else progress.follow()
        with self._without_autocast(), follow:
            recipe.compute_outputs(self._active, examples, self.trace)
            return [recipe.postprocess(example) for example in examples]

    def score(
        self, inputs: Sequence[Any], *, on_bad: Literal["error", "skip"] = "error"
    ) -> list[TextScore | None]:
        """Return the log-probability of each text, or of the target of each pair (source, target).

        torch computes it, without label smoothing, whatever engine decodes. The first token of a
        text is only read (unless the tokenizer puts one before it); in a run of documents, EOS is
        read before each text, and predicted after it. A text longer than the context of the model
        is read in windows, as by `evaluate`. on_bad and errors: as in `predict`.
        """
        return self._report_skipped(self.compute_scores(inputs, is_skipping=_skips(on_bad)))

    def compute_scores(
        self, inputs: Sequence[Any], *, first: int = 1, is_skipping: bool = False
    ) -> list[Any]:
        """Return the `TextScore` of each text (`first`: its number), or a UserError if skipped."""
        options: Any = {"first": first, "is_skipping": is_skipping}
        found = self.prepare(inputs, self.recipe, encode=self.recipe.encode_scored, **options)
        with self._without_sample():
            return _replace_examples(found, partial(score_texts, self._model))

    def embed(
        self,
        inputs: Sequence[Any],
        *,
        pooling: Literal["auto", "mean"] = "auto",
        on_bad: Literal["error", "skip"] = "error",
    ) -> NDArray[np.float32]:
        """Return a vector of each input: (inputs, width).

        pooling: auto: the vector from which the model classifies. Of a model without one, and with
                 mean: the mean of the items that its encoder returns, or the decoder of a language
                 model.
        on_bad:  as in `predict`; an input that is skipped has NaN in place of a vector.
        Raises: UserError if the recipe has no vectors, or for an input that it cannot use.
        """
        if pooling not in ("auto", "mean"):
            raise UserError(f"pooling must be auto or mean, got {pooling!r}")
        found = self.compute_vectors(inputs, pooling, is_skipping=_skips(on_bad))
        return stack_vectors(self._report_skipped(found))

    def compute_vectors(
        self, inputs: Sequence[Any], pooling: str, *, first: int = 1, is_skipping: bool = False
    ) -> list[Any]:
        """Return the vector of each input (`first`: its number), or the UserError if skipped."""
        recipe, options = self.recipe, {"first": first, "is_skipping": is_skipping}

        def encode(value: Any, number: int) -> list[Any]:
            return recipe.preprocess_embedded(self._read_input(value, number), number)

        def compute(examples: Sequence[Example]) -> Iterator[NDArray[np.float32]]:
            for part in plan_by_count(examples, _EMBEDDED_INPUTS):
                block = examples[part.start : part.stop]
                recipe.compute_outputs(self._active, block, step=partial(recipe.embed, pooling))
                for example in block:  # a long sound has several rows
                    yield torch.stack(example.outputs).mean(0).float().cpu().numpy()

        found = self.prepare(inputs, recipe, encode=encode, **options)
        with self._without_sample():
            return _replace_examples(found, compute)

    def share(self) -> "TrainedRun":
        """Return a run with the same weights, for another thread.

        Its engine decodes one batch at a time, with buffers of its own.
        """
        shared = copy.copy(self)
        shared._active = self._active.share()
        return shared

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        notify: Callable[[str], None] | None = None,
        predictions: IO[str] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Return the metrics on the run's test data, or on other data of the same kind.

        options: settings of data, answers and metrics that change, by name, such as on_bad="skip"
                 or decode={"beam": 4}.
        notify:  called with a message where data is left out; by default that of `load`.
        predictions: file that receives one line of JSON per example: source or file, the answer as
                 `regard predict --json` gives it, and the reference.
        Raises:  UserError if there is no test data, for predictions of a run that continues texts,
                 or as reading does.
        """
        if path is not None:
            options["test"] = str(path)
        recipe = self.recipe.change(options, for_test=True)
        if predictions is not None and recipe.predictions_hint:
            raise UserError(f"no predictions are written: {recipe.predictions_hint}")
        if notify is not None:
            recipe = copy.copy(recipe)
            recipe.notify = notify
        dataset = self._read_test(recipe)
        with torch.no_grad(), self._without_autocast():
            scores = round_scores(recipe.metrics(self._active, dataset))
        if "samples" not in scores:
            count = min(5, len(dataset))
            chosen = [i * len(dataset) // count for i in range(count)]
            scores["samples"] = self._samples(recipe, dataset, chosen)
        if predictions is not None:
            self._write_predictions(recipe, dataset, predictions)
        return {"data": dataset.origin, "examples": len(dataset)} | scores

    def test_input(self, index: int) -> Any:
        """Return input `index` (from 0) of the run's test data, as `predict` and `look` take it."""
        dataset = self._read_test(self.recipe)
        if not 0 <= index < len(dataset):
            raise UserError(f"{dataset.origin} has {len(dataset)} inputs, from 0: no input {index}")
        return dataset.inputs[index]

    def look(
        self,
        inputs: Sequence[Any],
        *,
        names: Sequence[str] = (),
        gradients: bool = False,
        vectors: bool = False,
        **options: Any,
    ) -> Capture:
        """Return the attention maps recorded while the model answers each input.

        names:     of the inputs, for titles; by default those of files.
        gradients: add the gradient of log p of the answer for each attention weight
                   (regard.look.measures), except for samples whose answer is empty.
        vectors:   record items, queries, keys, values, scores and outputs too.
        options:   as of `predict`: threshold=0.2, beam=1, ...
        Raises: UserError if an input is empty or cannot be read, if the model has no attention, or
                if gradients are asked for and answers have no probability or all of them are empty.
        """
        recipe = self.recipe.change(options)
        with self._without_autocast():
            examples = self.prepare(inputs, recipe, names=names)
            compute = partial(recipe.compute_outputs, step=recipe.forward_for_look)
            capture = self.look_again(examples, recipe, compute, vectors=vectors)
            if gradients:
                rows = _rows_of(examples)
                if len(capture) != len(rows):
                    raise UserError("gradients are those of one answer: n_best must be 1 for them")
                self._differentiate(recipe, capture, rows)
        return capture

    def look_again(
        self,
        examples: Sequence[Example],
        recipe: Recipe[Any],
        compute: Callable[..., None] | None = None,
        *,
        vectors: bool = False,
    ) -> Capture:
        """Return the attention maps of the outputs that `compute` of this class gave to examples.

        torch computes them from these outputs, whatever engine decoded them; those of a beam search
        without its other hypotheses.

        compute: function from a model, the examples and a trace that is recorded instead.
        Raises: UserError as `look`.
        """
        empty = [example.name for example in examples if not example.rows]
        if empty or not examples:
            raise UserError(f"{', '.join(empty) or 'the list'} is empty: nothing to look at")
        with self._without_autocast():
            try:
                with record(self, vectors=vectors) as capture:
                    (compute or recipe.trace_again)(self._active, examples, capture.trace)
            except NoReadsError as error:
                hint = f"; {recipe.look_hint}" if recipe.look_hint else ""
                raise UserError(f"the model has no attention layers: {error}{hint}") from error
            if not len(capture.recording):
                raise UserError("no attention was recorded: the inputs have a single item each")
            rows = _rows_of(examples)
            if len(rows) == len(capture):
                self._explain(recipe, capture, rows)
        return capture

    def plot_answer(self, given: Any, out: str | Path, *, overwrite: bool = False) -> None:
        """Plot an input of an autoencoder and its reconstruction to an image file."""
        recipe: Any = self.recipe
        row = self.prepare([given], recipe)[0].rows[0]
        recipe.plot_answer(self._active, row, Path(out), overwrite=overwrite)

    def plot_manifold(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Plot the manifold of an autoencoder of two numbers, its data and its energy."""
        recipe: Any = self.recipe
        if not hasattr(recipe, "plot_manifold"):
            raise UserError(f"the recipe {self.run.recipe} has no manifold of reconstructions")
        recipe.plot_manifold(self._active, Path(out), overwrite=overwrite)

    def outline(self) -> Outline:
        """Return the stages of the model with their shapes (regard.models.outline)."""
        return outline(self._model)

    def plot_model(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Plot the model as encoder, predictor and decoder to an image file."""
        figures = load_figures("model")
        title = f"{self.run.recipe}: {self.folder}; {self.recipe.describe()}"
        figures.plot_outline(self.outline(), Path(out), title=title, overwrite=overwrite)

    def plot_positions(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Plot the positional encodings of the model to an image file."""
        figures = load_figures("positions")
        figures.plot_positions(self._model, Path(out), overwrite=overwrite)

    def _answers(self, inputs: Sequence[Any], recipe: Recipe[Any], on_bad: str) -> list[Any]:
        """Return the `Answer` to each input, or the UserError of one that is skipped and named."""
        answers = self.compute_answers(inputs, recipe, is_skipping=_skips(on_bad))
        self._report_skipped(answers)
        return answers

    def _report_skipped(self, found: Sequence[Any]) -> list[Any]:
        """Report the inputs that are skipped, and return None in their place."""
        for one in found:
            if isinstance(one, UserError):
                self.recipe.notify(f"skipped: {one}")
        return [None if isinstance(one, UserError) else one for one in found]

    @contextmanager
    def _without_sample(self) -> Generator[None]:
        """Compute without gradients, and for no sample of a recording around it."""
        hidden = nullcontext() if self.trace is None else self.trace.segment([])
        with torch.no_grad(), self._without_autocast(), hidden:
            yield

    def _without_autocast(self) -> torch.autocast:
        """Return a context without the autocast of the caller: recipes answer in their own type."""
        return torch.autocast(next(self._active.module.parameters()).device.type, enabled=False)

    def _read_test(self, recipe: Recipe[Any]) -> Dataset[Any]:
        """Return the encoded test data of a recipe; that of the run is read once."""
        is_own = recipe is self.recipe
        if is_own and self._own_test is not None:
            return self._own_test
        if not recipe.has_test():
            raise UserError(f"the run {self.folder} has no test data: give it with --data.test")
        dataset = recipe.read_encoded(recipe.read("test"))
        if is_own:
            self._own_test = dataset
        return dataset

    def _read_input(self, value: Any, number: int) -> Any:
        if self.input == "text" and isinstance(value, bytes):
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"input {number} is not UTF-8: {error}") from error
        if self.input == "text":
            reads_tokens = self.recipe.reads_tokens
            is_list = reads_tokens and isinstance(value, list | tuple)
            if not all(isinstance(text, str) for text in (value if is_list else [value])):
                expected = "a text or a list of tokens" if reads_tokens else "a text"
                raise UserError(f"input {number} must be {expected}, got {type(value).__name__}")
            return value
        if self.input == "vector" or not isinstance(value, str | Path | bytes):
            return value
        if isinstance(value, bytes):
            return File(f"{self.input} {number}", value)
        try:
            return File(str(value), read_bytes(Path(value)))
        except UserError as error:
            raise UserError(f"input {number}: {error}") from error

    def _write_predictions(self, recipe: Recipe[Any], dataset: Dataset[Any], file: IO[str]) -> None:
        kind = "source" if self.input in ("text", "vector") else "file"  # as in `predict --json`
        for indices in plan_by_count(dataset, 1000):
            values = [dataset.inputs[i] for i in indices]
            answers = self.compute_answers(values, recipe, first=indices.start + 1)
            for i, value, answer in zip(indices, values, answers, strict=True):
                source = value
                if not isinstance(value, str):
                    source = dataset.names[i] if dataset.names is not None else None
                line = {"input": i + 1, kind: source} | answer.json
                if dataset.references is not None:
                    line["reference"] = dataset.references[i]
                file.write(valid_text(json.dumps(line, ensure_ascii=False)) + "\n")

    def read_results(self) -> tuple[Dataset[Any], Results]:
        """Return the test data, or validation data if there is none, and its metrics by example."""
        if not self.recipe.has_test():
            self._own_test = self.recipe.encoded_val
        dataset = self._read_test(self.recipe)
        with torch.no_grad(), self._without_autocast():
            return dataset, self.recipe.results(self._active, dataset)

    def samples(self, chosen: Sequence[int]) -> list[dict[str, str]]:
        """Return examples of the test data by index, with their answers and references."""
        return self._samples(self.recipe, self._read_test(self.recipe), chosen)

    def _samples(
        self, recipe: Recipe[Any], dataset: Dataset[Any], chosen: Sequence[int]
    ) -> list[dict[str, str]]:
        if dataset.references is None:
            return []
        answers = self.compute_answers([dataset.inputs[i] for i in chosen], recipe)
        samples = []
        for i, answer in zip(chosen, answers, strict=True):
            source = dataset.inputs[i] if dataset.names is None else dataset.names[i]
            output = ", ".join(line.replace("\t", " ") for line in answer.lines)
            reference = dataset.references[i]
            if isinstance(reference, Mapping):
                values = reference.values()
                shown = [f"{one:.5g}" if isinstance(one, float) else str(one) for one in values]
                reference = ", ".join(shown)
            elif isinstance(reference, list):
                labels = [
                    one.get("label", one) if isinstance(one, Mapping) else one for one in reference
                ]
                reference = " ".join(map(str, labels))
            samples.append({"source": source, "output": output, "reference": str(reference)})
        return samples

    def _explain(
        self, recipe: Recipe[Any], capture: Capture, rows: Sequence[tuple[Example, int]]
    ) -> None:
        """Add the contributions to the scores of each output, if the recipe has them."""
        axes: list[Mapping[str, Axis]] = []
        added: list[list[AttentionMap]] = []
        with self._without_sample():
            for number, (row, maps) in enumerate(zip(rows, capture, strict=True)):
                try:
                    found = recipe.explain(self._active, *row, maps.sample)
                except NoTermsError as error:
                    recipe.notify(f"contributions to the scores are not shown: {error}")
                    return
                if found is None:
                    return  # as for every other row of this model
                axes.append(found.sample.axes)
                added.append([replace(own, key=f"{own.key}/{number}") for own in found.maps])
        capture.add(added, axes)

    def _differentiate(
        self, recipe: Recipe[Any], capture: Capture, rows: Sequence[tuple[Example, int]]
    ) -> None:
        """Run each output again with teacher forcing, and add gradient maps to the capture."""
        gradients: list[list[AttentionMap]] = []
        empty: EmptyAnswerError | None = None
        for number, (row, maps) in enumerate(zip(rows, capture, strict=True)):
            gradients.append([])
            samples, model = [maps.sample], self._model
            try:
                with torch.enable_grad(), record(model, samples=samples, gradients=True) as rerun:
                    rerun.differentiate(recipe.log_prob(model, *row))
            except EmptyAnswerError as error:
                empty = error
                continue
            # Each sample is recorded separately, so its keys start from zero again.
            for found in rerun[0].find(measure=GRADIENT):
                gradients[-1].append(replace(found, key=f"scene {number}/{found.key}"))
        if empty is not None and not any(gradients):
            raise empty
        capture.add(gradients)


def _rows_of(examples: Sequence[Example]) -> list[tuple[Example, int]]:
    return [(example, i) for example in examples for i in range(len(example.rows))]


def _replace_examples(found: list[Any], compute: Callable[[list[Example]], Iterable[Any]]) -> Any:
    """Return a list with what is computed of its examples in their place."""
    results = iter(compute([one for one in found if isinstance(one, Example)]))
    return [next(results) if isinstance(one, Example) else one for one in found]


def _skips(on_bad: str) -> bool:
    """Return True if inputs that cannot be used are skipped."""
    if on_bad not in ("error", "skip"):
        raise UserError(f"on_bad must be error or skip, got {on_bad!r}")
    return on_bad == "skip"


def _gives_n_best(options: Mapping[str, Any]) -> bool:
    """Return True if n_best is given by itself or in a dictionary, or is above 1 in a dataclass."""
    for value in options.values():
        if "n_best" in value if isinstance(value, Mapping) else getattr(value, "n_best", 1) > 1:
            return True
    return options.get("n_best") is not None
