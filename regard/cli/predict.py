"""`regard predict RUN [INPUT ...|-]`: predictions of a trained model. Inputs: regard.cli.inputs."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from os.path import exists
from pathlib import Path
from typing import Any, Literal

from regard.cli.inputs import MANY, BadInputs, add_input, check_words, is_single_input, read_inputs
from regard.cli.runs import DecodingOptions, check_new, input_settings, load_trained, read_command
from regard.data.images.coco import read_coco
from regard.data.tables import Input
from regard.errors import DONE, UserError
from regard.recipes.base.run import Run
from regard.recipes.registry import get_entry
from regard.settings.declare import settings
from regard.system.files import suffix_of
from regard.system.progress import show_progress, track
from regard.system.table_writer import SUFFIXES, TableWriter, open_table_atomically, shorten_numbers
from regard.system.writing import open_text_atomically, valid_text

USAGE = "regard predict RUN [INPUT ...|-] [options]"
ABOUT = (
    "Predict the output for each INPUT: a text; a file, which is an image, a sound ..., or a table "
    "as for training (.tsv, .csv, .jsonl, .conll, COCO), whose targets are ignored, or has one "
    "input per line; a folder; or standard input, line by line (with - or nothing). Prints one "
    "line per input, after the name of the file where inputs are several files, and the answer to "
    "a single text of the command line with its line ends; with "
    "--decode.n-best N (--n-best N for classes), N rows of input number, rank, score and text, "
    "separated by tabs. docs/answers.md describes the objects of --json, and tables."
)


@settings
class PredictOptions(DecodingOptions):
    """Options of `regard predict`."""

    json: bool = False
    """Print one JSON object per input: number, file or source, boxes, events, tags or outputs."""
    coco: bool = False
    """For boxes: print one JSON list in COCO's format of results (image_id, category_id, bbox,
    score). The ids are those of the COCO file that is the INPUT; for other inputs, images are
    numbered from 1, and categories in the order of the labels of the run. All boxes are printed, as
    average precision requires, unless --threshold is given."""
    on_bad: Literal["error", "skip", "truncate"] = "error"
    """Handling of inputs that cannot be used (too long, not UTF-8, damaged): error stops; skip
    gives an empty output in their place and counts them, as is always done for blank lines of a
    file; truncate also cuts texts that are too long."""
    out: Path | None = None
    """File to write in place of standard output; it appears when it is complete. FILE.csv, .tsv,
    .jsonl or .parquet: a table, with the columns of the input and those of the answer. -: standard
    output. Runs of draw write images to it, which are else named after the text."""
    force: bool = False
    """Replace the file of --out if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, predict and print the outputs."""
    settings_of = _all_boxes if "--coco" in argv else input_settings
    folder, record, options, words = read_command(
        argv, PredictOptions(), usage=USAGE, about=ABOUT, max_words=MANY, settings_of=settings_of
    )
    words = words or ["-"]
    check_words(words, get_entry(record.recipe).input_of(record.config))
    if options.coco and record.recipe != "boxes":
        raise UserError(f"--coco is for runs of boxes, and {folder} is one of {record.recipe}")
    out = options.out
    if record.recipe == "draw" or out == Path("-"):  # draw writes images to it
        out = None
    table_path = _table_path(out, options)
    check_new(out, force=options.force)
    trained = load_trained(folder, options, record)
    if trained.input in ("text", "vector"):
        is_named = len(words) > 1 and any(map(exists, words))
    else:
        is_named = len(words) > 1 or not is_single_input(words[0], trained)
    is_single = len(words) == 1 and out is None
    predictor = _Predictor(trained, options, is_named=is_named, is_single=is_single)
    results: Any = _CocoResults(words, trained) if options.coco else predictor
    with ExitStack() as stack:
        # Answers on a terminal show how far it is.
        stack.enter_context(show_progress(is_enabled=out is not None or not sys.stdout.isatty()))
        if table_path is not None:
            table = stack.enter_context(open_table_atomically(table_path, trained.recipe.columns))
            results = _TableRows(trained.recipe, table, is_ranked=predictor.is_ranked)
        elif out is not None:
            stack.enter_context(redirect_stdout(stack.enter_context(open_text_atomically(out))))
        inputs = read_inputs(words, trained, skip_bad=options.on_bad != "error")
        for block in track(inputs, "inputs"):
            for number, given, answer in predictor.answer(block):
                results.add(number, given, answer)
            sys.stdout.flush()
        if options.coco:
            print(json.dumps(results.entries))
    predictor.bad.report()
    return DONE


def _table_path(out: Path | None, options: PredictOptions) -> Path | None:
    """Return the file of --out if it is a table, by its suffix."""
    if out is None or suffix_of(out) not in SUFFIXES:
        if out is not None and out.suffix.lower() in (".xlsx", ".xls", ".ods"):
            raise UserError(f"{out}: is not written here: name one of {', '.join(SUFFIXES)}")
        return None
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"{out}: tables are not compressed here: name {out.with_suffix('')}")
    if options.json and out.suffix.lower() == ".jsonl":
        return None
    if options.json or options.coco:
        option = "--json" if options.json else "--coco"
        raise UserError(f"{option} writes JSON, and {out} is a table: name a .json file")
    return out


def _all_boxes(run: Run) -> tuple[Any, list[str]]:
    """Return the settings of a run that gives all boxes, of which average precision is computed."""
    config, paths = input_settings(run)
    return (replace(config, threshold=0.0) if hasattr(config, "threshold") else config), paths


class _Predictor:
    """Answers blocks of inputs, and prints the answers: JSON, several ranked ones, or lines."""

    def __init__(self, trained: Any, options: PredictOptions, *, is_named: bool, is_single: bool):
        self.trained, self.options = trained, options
        self.is_named, self.is_single = is_named, is_single
        config = trained.config
        decode = getattr(config, "decode", None)
        self.is_ranked = getattr(config, "n_best", getattr(decode, "n_best", 1)) > 1
        self.bad = BadInputs(trained, options.on_bad)

    def answer(self, inputs: Sequence[Input]) -> Iterator[tuple[int, Input, Any]]:
        """Yield the number, the input and its answer, or the error of one that is skipped."""
        first, recipe, files = self.bad.count + 1, self.trained.recipe, list[Any]()
        if hasattr(recipe, "files"):  # of images, whose names are printed
            texts = [given.value for given in inputs]
            files = recipe.files(texts, self.options.out, first, force=self.options.force)
        for number, given, answer in self.bad.answer(inputs, self.trained.compute_answers):
            is_image = files and not isinstance(answer, UserError)
            yield number, given, recipe.save(answer, files[number - first]) if is_image else answer

    def add(self, number: int, given: Input, answer: Any) -> None:
        """Print the answer to an input; an empty one in place of an error."""
        is_bad = isinstance(answer, UserError)
        name = (given.file or "") if self.is_named else None  # a text among files has none
        if self.options.json:
            found = {"error": str(answer)} if is_bad else answer.json
            entry = {"input": number} | given.describe() | dict(found)
            print(valid_text(json.dumps(entry, ensure_ascii=False)))
        elif self.is_ranked and not is_bad:
            for rank, (text, score) in enumerate(answer.ranked, start=1):
                print(name or number, rank, f"{score:.4f}", " ".join(text.splitlines()), sep="\t")
        elif self.is_ranked:
            print(name or number, "", "", "", sep="\t")
        else:
            lines = [] if is_bad else answer.lines
            is_text = self.is_single and given.file is None
            if is_text and not is_bad and isinstance(answer.value, str):
                lines = [answer.value]
            if name is not None:
                lines = [f"{name}\t{line}" for line in lines] or [name]
            print("\n".join(lines))


class _TableRows:
    """Rows of a table: the columns of the inputs, then those of the answers."""

    def __init__(self, recipe: Any, table: TableWriter, *, is_ranked: bool):
        self.recipe, self.table, self.is_ranked = recipe, table, is_ranked

    def add(self, number: int, given: Input, answer: Any) -> None:
        """Write the rows of an answer; one without an answer in place of an error."""
        found, empty = [], dict.fromkeys(self.recipe.columns)
        if not isinstance(answer, UserError):
            found = self.recipe.to_rows(answer, self.table.suffix, number)
        for rank, row in enumerate(found or [empty], start=1):
            cells = shorten_numbers(row)
            if self.is_ranked:
                cells = {"input": number, "rank": rank if found else None} | cells
            self.table.write(add_input(cells, given, self.recipe.input_name, self.table.path))


class _CocoResults:
    """Boxes in COCO's format of results, with the ids of the COCO file that is the only input."""

    def __init__(self, words: Sequence[str], trained: Any):
        self.entries: list[dict[str, Any]] = []
        self._images: dict[str, int] = {}
        names = trained.recipe.labels.names
        self._categories = {name: number for number, name in enumerate(names, start=1)}
        if len(words) == 1 and words[0].lower().endswith(".json"):
            coco = read_coco(Path(words[0]))
            self._images = {image["file_name"]: key for key, image in coco.imgs.items()}
            self._categories = {item["name"]: key for key, item in coco.cats.items()}
            missing = [name for name in names if name not in self._categories]
            if missing:
                raise UserError(f"{words[0]}: has no category {missing[0]!r}")

    def add(self, number: int, given: Input, answer: Any) -> None:
        if isinstance(answer, UserError):
            return
        image = self._images[given.file or ""] if self._images else number
        for box in answer.json["boxes"]:
            sides = [box[name] for name in ("x", "y", "width", "height")]
            entry = {"image_id": image, "category_id": self._categories[box["label"]]}
            self.entries.append(entry | {"bbox": sides, "score": box["score"]})
