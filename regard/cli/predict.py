"""`regard predict RUN [TEXT|FILE ...|-]`: the predictions of a trained model, line by line.

    name of an existing file   its lines (for a run that reads images: the image; the lines of FILE.txt are file names)
    - or nothing               lines of standard input, answered as they arrive
    anything else              the text itself

Prints one line for each input line, in order (several for boxes, events and tracks); with several outputs per line,
tab-separated rows of input number, rank, score and text; with --json one object per input, in the form of the recipe.
The output of an empty line is empty. A run that generates images prints the names of the files written.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from io import BufferedIOBase
from itertools import chain
from typing import Any, cast

from regard.cli.inputs import decode_argument, is_file, is_single_input, read_lines, read_stream_lines
from regard.cli.runs import DecodingOptions, load_trained, read_run_argument
from regard.errors import DONE, UserError
from regard.recipes.base.config import NoOptions, defaults_of_run
from regard.recipes.base.run import Run
from regard.recipes.registry import RECIPES, get_entry
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import parse, peek_option, wants_help
from regard.settings.tree import collect_groups

USAGE = "regard predict RUN [TEXT|FILE ...|-] [options]"
ABOUT = (
    "Predict the output for a text, for each line of one or more files, or for each line of standard input (with - or "
    "nothing). Prints one line per input line; with --decode.n-best N (--n-best N for classes), N rows of input "
    "number, rank, score and text, separated by tabs. Texts longer than the run's max_length are refused."
)

_MOST = 100_000
_TOGETHER = 256
"""Number of files in a batch, if each file is one input."""


@settings
class PredictOptions(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object per input, with its number and the answer: boxes, events, tags, outputs with scores ..."""


def run(argv: list[str]) -> int:
    """Parse the options, predict and print the outputs."""
    folder, record = read_run_argument(argv, USAGE)
    defaults = NoOptions() if record is None else defaults_of_run(get_entry(record.recipe).options, record.config)
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*collect_groups(PredictOptions()), *collect_groups(defaults)]))
        return DONE
    _check_energy(argv, record)
    parsed = parse(
        _with_beam(argv, defaults),
        PredictOptions(),
        defaults,
        max_positionals=1 + _MOST,
        expected="a run folder and a text or files",
    )
    form = "json" if parsed.own.json else "ranked" if getattr(parsed.config, "n_best", 1) > 1 else "lines"
    blocks = _blocks(parsed.positionals[1:] or ["-"], record)
    trained = load_trained(folder, parsed.own, record)
    first = 1
    for inputs in blocks:
        _answer(trained, inputs, parsed.config, first=first, form=form)
        first += len(inputs)
        sys.stdout.flush()
    return DONE


def _check_energy(argv: Sequence[str], record: Run | None) -> None:
    """Raise UserError for --energy of a recipe whose models have none."""
    if record is None or "--energy" not in {word.partition("=")[0] for word in argv}:
        return
    names = [name for name, entry in RECIPES.items() if "energy" in {item.name for item in fields(entry.options)}]
    if record.recipe not in names:
        raise UserError(
            f"the recipe {record.recipe} has no energy: its model predicts an output for an input, and does not "
            f"reconstruct the input; --energy is for runs of {', '.join(names)}"
        )


def _answer(trained: Any, inputs: Sequence[str], options: Any, *, first: int, form: str) -> None:
    """Answer a block of inputs and print the answers in a form: json, ranked (several outputs per input) or lines."""
    recipe = trained.recipe
    files = recipe.files(inputs, options, first)
    for index, given in enumerate(trained.answer(inputs, options, first=first)):
        answer = recipe.save(given, files[index]) if files else given
        if form == "json":
            print(json.dumps({"input": first + index} | recipe.json(answer), ensure_ascii=False))
        elif form == "ranked":
            for rank, (text, score) in enumerate(recipe.rank_texts(answer), start=1):
                print(first + index, rank, f"{score:.4f}", " ".join(text.splitlines()), sep="\t")
        else:
            print("\n".join(recipe.lines(answer)))


def _with_beam(argv: list[str], options: Any) -> list[str]:
    """Widen the beam to the number of outputs, unless a beam is given."""
    beam, n_best = getattr(getattr(options, "decode", None), "beam", None), peek_option(argv, "decode.n_best")
    if beam is None or n_best is None or not n_best.isdecimal() or peek_option(argv, "decode.beam"):
        return argv
    return [argv[0], "--decode.beam", str(max(beam, int(n_best))), *argv[1:]]


def _blocks(words: Sequence[str], record: Run | None) -> Iterator[list[str]]:
    """Yield blocks of inputs, each with those that are available."""
    if len(words) > 1 and not all(is_file(word) for word in words):
        raise UserError(
            f"{words[1]!r} is one argument too many: several inputs must be existing files; put a text of several "
            "words in quotes"
        )
    if all(is_single_input(word, record) for word in words):
        return (list(words[i : i + _TOGETHER]) for i in range(0, len(words), _TOGETHER))
    return chain.from_iterable([[word]] if is_single_input(word, record) else _lines(word) for word in words)


def _lines(word: str) -> Iterator[list[str]]:
    if word == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed: give a text or a file")
        return read_stream_lines(cast("BufferedIOBase", sys.stdin.buffer), "standard input")
    if is_file(word):
        return read_lines(word)
    if not word.strip():
        raise UserError("the text is empty: there is nothing to predict")
    return iter([[decode_argument(word)]])
