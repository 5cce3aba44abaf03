"""`regard predict RUN [TEXT|FILE ...|-]`: the predictions of a trained model, line by line.

    name of an existing file   its lines (for a run that reads images: the image; the lines of FILE.txt are file names)
    - or nothing               lines of standard input, answered as they arrive
    anything else              the text itself

Prints one line for each input line, in order; with several outputs per line, tab-separated rows of input number, rank,
score and text. The output of an empty line is empty. A run that generates images prints the names of the files written.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import field
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from regard.cli.exits import DONE
from regard.cli.inputs import decode_argument, is_file, is_single_input, read_lines, read_stream_lines
from regard.cli.runs import DecodingOptions, load_trained, read_run_argument
from regard.decode.config import DecodeConfig, DrawingConfig, SampleConfig
from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.draw.config import DrawRunConfig
from regard.recipes.language.config import LanguageRunConfig
from regard.recipes.registry import get_entry
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import parse, peek_option, wants_help
from regard.settings.ranges import Range
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
    """Print one JSON object per line, with input, rank, score and text."""


@settings
class PredictionSettings:
    """Decoding options."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Decoding; the defaults are the run's own."""

    @property
    def n_best(self) -> int:
        """Number of outputs per line."""
        return self.decode.n_best


@settings
class ClassPredictionSettings:
    """Classification options."""

    n_best: Annotated[int, Range(1, 1_000)] = 1
    """Number of classes to print for each input, most probable first, with their probabilities."""


@settings
class TextPredictionSettings:
    """Text generation options."""

    sample: SampleConfig = field(default_factory=SampleConfig)
    """Sampling of the continuation of a text; the defaults are the run's own."""

    n_best: ClassVar[int] = 1


@settings
class DrawPredictionSettings:
    """Image generation options; the names of the files are printed."""

    out: Path | None = None
    """Image file to write, .png or another format; named after the text, with dashes for spaces, if not given. Several
    images are numbered: FILE-1.png."""
    force: bool = False
    """Replace existing files."""
    n_best: Annotated[int, Range(1, 1_000)] = 1
    """Number of images for each text; their scores are mean log-probabilities per code."""
    decode: DrawingConfig = field(default_factory=DrawingConfig)
    """Sampling of images; the defaults are the run's own."""


def run(argv: list[str]) -> int:
    """Parse the options, predict and print the outputs."""
    folder, record = read_run_argument(argv, USAGE)
    settings = _settings(record)
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*collect_groups(PredictOptions()), *collect_groups(settings)]))
        return DONE
    if isinstance(settings, PredictionSettings):
        argv = _with_beam(argv, settings.decode.beam)
    parsed = parse(
        argv, PredictOptions(), settings, max_positionals=1 + _MOST, expected="a run folder and a text or files"
    )
    blocks = _blocks(parsed.positionals[1:] or ["-"], record)
    trained = load_trained(folder, parsed.own)
    chosen = parsed.config
    options: dict[str, Any] = {"n_best": chosen.n_best}
    if isinstance(chosen, DrawPredictionSettings):
        options |= {"decode": chosen.decode, "out": chosen.out, "overwrite": chosen.force}
    elif isinstance(chosen, PredictionSettings):
        options = {"decode": chosen.decode}
    elif isinstance(chosen, TextPredictionSettings):
        options = {"sampling": chosen.sample}
    show = _print_json if parsed.own.json else _print_rows if chosen.n_best > 1 else _print_text
    if record is not None and get_entry(record.recipe).answers_in_lines and not parsed.own.json:
        show = _print_unchanged
    first = 1
    for lines in blocks:
        for number, predictions in enumerate(trained.answers(lines, first=first, **options), start=first):
            show(number, predictions)
        first += len(lines)
        sys.stdout.flush()
    return DONE


def _settings(
    record: Run | None,
) -> PredictionSettings | ClassPredictionSettings | TextPredictionSettings | DrawPredictionSettings:
    """Return the default settings for a run of this recipe."""
    if record is not None and isinstance(record.config, DrawRunConfig):
        return DrawPredictionSettings(decode=record.config.decode)
    if record is not None and isinstance(record.config, LanguageRunConfig):
        return TextPredictionSettings(sample=record.config.sample)
    decode = getattr(record.config, "decode", None) if record else DecodeConfig()
    return ClassPredictionSettings() if decode is None else PredictionSettings(decode=decode)


def _with_beam(argv: list[str], beam: int) -> list[str]:
    """Widen the beam to the number of outputs, unless a beam is given."""
    n_best = peek_option(argv, "decode.n_best")
    if n_best is None or not n_best.isdecimal() or peek_option(argv, "decode.beam"):
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


def _print_text(_number: int, predictions: Sequence[Any]) -> None:
    print(_one_line(predictions[0].text))


def _print_unchanged(_number: int, predictions: Sequence[Any]) -> None:
    print(predictions[0].text)


def _print_rows(number: int, predictions: Sequence[Any]) -> None:
    for rank, (text, score) in enumerate(predictions, start=1):
        print(number, rank, f"{score:.4f}", _one_line(text), sep="\t")


def _print_json(number: int, predictions: Sequence[Any]) -> None:
    for rank, (text, score) in enumerate(predictions, start=1):
        row = {"input": number, "rank": rank, "score": score, "text": text}
        print(json.dumps(row, ensure_ascii=False))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
