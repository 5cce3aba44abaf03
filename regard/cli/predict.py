"""`regard predict RUN [INPUT ...|-]`: the predictions of a trained model (regard.cli.inputs: what
an INPUT is).

Prints one line for each input, in order (several for boxes, events and tracks). Where inputs are
several files, the name of the file comes first. With several outputs per input, tab-separated rows
of input number, rank, score and text; with --json one object per input, in the form of the recipe
(docs/answers.md). A run that generates images prints the names of the files written.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.cli.inputs import check_words, exists, is_single_input, read_inputs
from regard.cli.notices import print_notice
from regard.cli.runs import (
    DecodingOptions,
    help_ending,
    input_settings,
    load_trained,
    read_run_argument,
    with_config,
)
from regard.data.images.coco import read_coco
from regard.errors import DONE, UserError
from regard.recipes.base.entry import select_groups
from regard.recipes.base.inputs import Input
from regard.recipes.base.run import Run
from regard.recipes.registry import RECIPES, get_entry
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import parse, wants_help
from regard.settings.tree import collect_groups, settings_by_path
from regard.system.files import plain_name
from regard.system.progress import show_progress, track
from regard.system.writing import open_text_atomically

USAGE = "regard predict RUN [INPUT ...|-] [options]"
ABOUT = (
    "Predict the output for each INPUT: a text; a file, which is an image, a sound ..., or a table "
    "as for training "
    "(.tsv, .csv, .jsonl, .conll, COCO), whose targets are ignored, or has one input per line; a "
    "folder or a pattern; "
    "or standard input, line by line (with - or nothing). Prints one line per input, after the "
    "name of the file where "
    "inputs are several files; with --decode.n-best N (--n-best N for classes), N rows of input "
    "number, rank, score "
    "and text, separated by tabs. Runs of tags split a text at white space only: separate "
    "punctuation as in training. "
    "docs/answers.md describes the objects of --json."
)

_MOST = 1_000_000


@settings
class PredictOptions(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object per input: its number, its file or source, and the answer: boxes,
    events, tags, outputs."""
    coco: bool = False
    """For boxes: print one JSON list in COCO's format of results (image_id, category_id, bbox,
    score). The ids are those of the COCO file that is the INPUT; for other inputs, images are
    numbered from 1, and categories in the order of the labels of the run. All boxes are printed, as
    average precision requires, unless --threshold is given."""
    on_bad: Literal["error", "skip", "truncate"] = "error"
    """Handling of inputs that cannot be used (too long, not UTF-8, damaged, an empty text to
    classify): error stops; skip gives an empty output in their place and counts them; truncate also
               cuts texts that are too long."""
    out: Path | None = None
    """File to write in place of standard output; it appears when it is complete. -: standard
    output. Runs of draw write images to it, which are else named after the text."""
    force: bool = False
    """Replace the file of --out if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, predict and print the outputs."""
    folder, record = read_run_argument(argv, USAGE)
    config, allowed = input_settings(record)
    if wants_help(argv):
        groups = select_groups(collect_groups(config), allowed)
        options = collect_groups(PredictOptions())
        print(page(USAGE, ABOUT, [*options, *groups]) + help_ending("predict", record))
        return DONE
    _check_options(argv, record, (*settings_by_path(PredictOptions()), *allowed))
    if "--coco" in argv and hasattr(config, "threshold"):  # average precision is of all boxes
        config = replace(config, threshold=0.0)
    parsed = parse(argv, PredictOptions(), config, allowed=allowed, max_positionals=1 + _MOST)
    is_drawing = record is not None and record.recipe == "draw"
    words = parsed.positionals[1:] or ["-"]
    if record is not None:
        check_words(words, get_entry(record.recipe).input_of(record.config))
    out = None if is_drawing or parsed.own.out == Path("-") else parsed.own.out
    if out is not None and out.exists() and not parsed.own.force:
        raise UserError(f"{out} exists; it is replaced only with --force")
    form = "lines"
    decode = getattr(parsed.config, "decode", None)
    if parsed.own.json:
        form = "json"
    elif max(getattr(part, "n_best", 1) for part in (parsed.config, decode)) > 1:
        form = "ranked"
    if parsed.own.coco:
        form = "coco"
        if record is not None and record.recipe != "boxes":
            raise UserError(f"--coco is for runs of boxes, and {folder} is one of {record.recipe}")
    trained = load_trained(folder, parsed.own, with_config(record, parsed.config))
    ids = _coco_ids(words, trained) if parsed.own.coco else None
    printer = _Printer(
        trained,
        parsed.own,
        form,
        is_named=_are_named(words, trained),
        ids=ids,
    )
    # Answers on a terminal show how far it is.
    with show_progress(is_enabled=out is not None or not sys.stdout.isatty()), _open_output(out):
        for inputs in track(
            read_inputs(words, trained, skip_bad=parsed.own.on_bad != "error"), "inputs"
        ):
            if inputs:
                printer.answer(inputs)
            sys.stdout.flush()
        printer.end()
    if printer.skipped:
        print_notice(
            f"skipped {printer.skipped} of {printer.count} inputs, whose outputs are empty"
        )
    return DONE


class CocoIds(NamedTuple):
    """Ids of a file in COCO's format: of images by file name, and of categories by name."""

    images: dict[str, int]
    categories: dict[str, int]


def _coco_ids(words: Sequence[str], trained: Any) -> CocoIds:
    """Return the ids of images and categories: of the COCO file that is the only input.

    For other inputs, images have numbers from 1, and categories the ids of the COCO file of
    training, if it exists.
    """
    labels = trained.recipe.labels.names
    if len(words) == 1 and plain_name(words[0]).endswith(".json"):
        ids = _read_coco_ids(words[0])
        for name in labels:
            if name not in ids.categories:
                raise UserError(f"{words[0]}: has no category {name!r}, which the run detects")
        return ids
    training = trained.recipe.config.data.train
    if training and plain_name(training).endswith(".json"):
        with suppress(UserError):  # no longer there
            categories = _read_coco_ids(training).categories
            if all(name in categories for name in labels):
                return CocoIds({}, categories)
    numbers = {name: number for number, name in enumerate(labels, start=1)}
    shown = ", ".join(f"{number} {name}" for name, number in numbers.items())
    print_notice(f"categories have the ids {shown}")
    return CocoIds({}, numbers)


def _read_coco_ids(path: str) -> CocoIds:
    coco = read_coco(Path(path))
    images = {image["file_name"]: key for key, image in coco.imgs.items()}
    return CocoIds(images, {str(item["name"]): key for key, item in coco.cats.items()})


@contextmanager
def _open_output(out: Path | None) -> Iterator[None]:
    """Redirect standard output to a file, if one is given, which appears when it is complete."""
    if out is None:
        yield
        return
    with open_text_atomically(out) as file, redirect_stdout(file):
        yield


def _are_named(words: Sequence[str], trained: Any) -> bool:
    """Return True if outputs need the name of their file."""
    if trained.input in ("text", "vector"):
        return len(words) > 1 and any(map(exists, words))
    return not (len(words) == 1 and is_single_input(words[0], trained))


def _check_options(argv: Sequence[str], record: Run | None, known: Iterable[str]) -> None:
    """Raise UserError for an option of other recipes. known: paths of the options of this one."""
    if record is None:
        return
    endings = {path.rpartition(".")[2] for path in known}
    for option in (word.partition("=")[0] for word in argv if word.startswith("--")):
        name = option[2:].replace("-", "_")
        others = [entry.name for entry in RECIPES.values() if name in entry.answers]
        if others and name not in endings:
            raise UserError(
                f"{option} is for runs of {', '.join(others)}, and {argv[0]} is one of "
                f"{record.recipe}"
            )


class _Printer:
    """Answers blocks of inputs and prints the answers in a form: json, coco, ranked (several per
    input) or lines."""

    def __init__(
        self,
        trained: Any,
        options: PredictOptions,
        form: str,
        *,
        is_named: bool,
        ids: CocoIds | None,
    ):
        self.ids, self._results = ids, 0
        self.trained, self.options, self.form, self.is_named = trained, options, form, is_named
        self.on_bad = options.on_bad
        self.count, self.skipped = 0, 0

    def answer(self, inputs: Sequence[Input]) -> None:
        """Answer a block of inputs and print the answers."""
        recipe, first = self.trained.recipe, self.count + 1
        self.count += len(inputs)
        if self.on_bad == "truncate":
            inputs = [
                given if given.problem else self._shorten(given, first + i)
                for i, given in enumerate(inputs)
            ]
        values = [given.value for given in inputs]
        files = []
        if hasattr(recipe, "files"):  # of images, whose names are printed
            files = recipe.files(values, self.options.out, first, force=self.options.force)
        try:
            if problem := next((given.problem for given in inputs if given.problem), ""):
                raise UserError(problem)
            answers = self.trained.compute_answers(values, first=first)
        except UserError as error:
            if self.on_bad == "error":
                if len(inputs) > 1:  # the outputs of the inputs before the bad one
                    self.count -= len(inputs)
                    self.answer(inputs[: len(inputs) // 2])
                    self.answer(inputs[len(inputs) // 2 :])
                    return
                raise UserError(self._locate(error, inputs[0])) from error
            answers = [
                self._answer_one(given, number) for number, given in enumerate(inputs, start=first)
            ]
        for index, (given, answer) in enumerate(zip(inputs, answers, strict=True)):
            found = (
                recipe.save(answer, files[index])
                if files and not isinstance(answer, UserError)
                else answer
            )
            self._print(first + index, given, found)

    def _answer_one(self, given: Input, number: int) -> Any:
        """Return the answer to an input, or the error."""
        try:
            if given.problem:
                raise UserError(given.problem)
            return self.trained.compute_answers([given.value], first=number)[0]
        except UserError as error:
            self.skipped += 1
            error = UserError(self._locate(error, given))
            print_notice(f"skipped: {error}")
            return error

    def _locate(self, error: UserError, given: Input) -> str:
        """Return the message of an error, with the file and line of its input."""
        has_place = not given.file or not given.line or given.file in str(error)
        return str(error) if has_place else f"{given.file}, line {given.line}: {error}"

    def _shorten(self, given: Input, number: int) -> Input:
        value = self.trained.recipe.shorten(given.value)
        if len(value) < len(given.value.strip() if isinstance(given.value, str) else given.value):
            print_notice(
                f"truncated: input {number}"
                + (f" ({given.file}, line {given.line})" if given.file else "")
            )
        return given._replace(value=value)

    def _print(self, number: int, given: Input, answer: Any) -> None:
        is_bad = isinstance(answer, UserError)
        if self.ids is not None:
            self._print_results(number, given, [] if is_bad else answer.json["boxes"], self.ids)
            return
        if self.form == "json":
            found = {"error": str(answer)} if is_bad else answer.json
            print(
                json.dumps({"input": number} | given.describe() | dict(found), ensure_ascii=False)
            )
            return
        name = (given.file or "") if self.is_named else None  # a text among files has none
        if self.form == "ranked":
            if is_bad:
                print(name or number, "", "", "", sep="\t")
                return
            for rank, (text, score) in enumerate(answer.ranked, start=1):
                print(name or number, rank, f"{score:.4f}", " ".join(text.splitlines()), sep="\t")
            return
        lines = [] if is_bad else answer.lines
        print("\n".join(lines if name is None else [f"{name}\t{line}" for line in lines] or [name]))

    def _print_results(self, number: int, given: Input, boxes: Sequence[Any], ids: CocoIds) -> None:
        """Print the boxes of an image as entries of COCO's list of results."""
        image = ids.images[given.file or ""] if ids.images else number
        for box in boxes:
            sides = [round(box[name], 3) for name in ("x", "y", "width", "height")]
            entry = {"image_id": image, "category_id": ids.categories[box["label"]], "bbox": sides}
            print(
                "," if self._results else "[",
                json.dumps(entry | {"score": round(box["score"], 5)}),
                sep="\n",
            )
            self._results += 1

    def end(self) -> None:
        """Print the end of COCO's list."""
        if self.ids is not None:
            print("]" if self._results else "[]")
