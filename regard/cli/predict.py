"""`regard predict RUN [TEXT|FILE ...|-]`: what a trained model says, line by line.

    a name of a file that exists   its lines (where a run reads images: the image; the lines of FILE.txt are names)
    - or nothing                   lines on standard input, answered as they come
    anything else                  the text itself

One line out for each line in, in their order; with several outputs a line, tab-separated: number of the
input, rank, score, text. An empty line has an empty answer. Of a run that
draws, an answer is the name of the file that was drawn.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.inputs import is_file, is_input_itself, lines_in, lines_of, text_of
from regard.cli.options import given_first, parse, wants_help
from regard.cli.use import DecodingOptions, one_run, opened
from regard.decode.config import DecodeConfig, DrawingConfig, SampleConfig
from regard.errors import UserError
from regard.ranges import Range, check_ranges
from regard.recipes.config import Draw, Language
from regard.recipes.folder import Run
from regard.recipes.registry import entry
from regard.recipes.settings import groups

USAGE = "regard predict RUN [TEXT|FILE ...|-] [options]"
ABOUT = (
    "What a trained model says to a text, to each line of one or more files, or to each line of standard input (with - "
    "or nothing). One line out for each line in; with --decode.n-best N (--n-best N for classes), N lines: number of "
    "the input, rank, score, text, separated by tabs. Texts longer than the run's max_length are refused."
)

_MOST = 100_000
_TOGETHER = 256
"""Files that are answered together, where they are inputs themselves."""


@dataclass(frozen=True, kw_only=True)
class Options(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print JSON objects, one a line, each with input, rank, score and text."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How outputs are searched for."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """How outputs are searched for; the defaults are the run's own."""

    @property
    def n_best(self) -> int:
        """How many outputs a line gets."""
        return self.decode.n_best


@dataclass(frozen=True, kw_only=True)
class ClassSettings:
    """Which answers are given."""

    n_best: Annotated[int, Range(1, 1_000)] = 1
    """How many classes to give for each input, likeliest first, with their probabilities."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How texts are gone on with."""

    sample: SampleConfig = field(default_factory=SampleConfig)
    """How texts are gone on with; the defaults are the run's own."""

    n_best: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True)
class DrawSettings:
    """Where drawings go, and how they are made; what is printed are the files' names."""

    out: Path | None = None
    """The file to draw into, .png or another format of images; the text with dashes for spaces if not given. Several
    texts or drawings are numbered: FILE-1.png."""
    force: bool = False
    """Replace files that exist."""
    n_best: Annotated[int, Range(1, 1_000)] = 1
    """How many drawings to make of each text; their scores are mean log-probabilities of a code."""
    decode: DrawingConfig = field(default_factory=DrawingConfig)
    """How images are drawn; the defaults are the run's own."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(argv: list[str]) -> int:
    """Read the options; answer."""
    folder, record = one_run(argv, USAGE)
    settings = _settings(record)
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*groups(Options()), *groups(settings)]))
        return DONE
    if isinstance(settings, Settings):
        argv = _with_beam(argv, settings.decode.beam)
    parsed = parse(argv, Options(), settings, most_positionals=1 + _MOST, what="a run folder and a text or files")
    blocks = _blocks(parsed.positionals[1:] or ["-"], record)
    trained = opened(folder, parsed.own)
    chosen = parsed.config
    how: dict[str, Any] = {"n_best": chosen.n_best}
    if isinstance(chosen, DrawSettings):
        how |= {"decode": chosen.decode, "out": chosen.out, "overwrite": chosen.force}
    elif isinstance(chosen, Settings):
        how = {"decode": chosen.decode}
    elif isinstance(chosen, TextSettings):
        how = {"sampling": chosen.sample}
    show = _as_json if parsed.own.json else _as_rows if chosen.n_best > 1 else _as_text
    if record is not None and entry(record.recipe).answers_in_lines and not parsed.own.json:
        show = _as_is
    first = 1
    for lines in blocks:
        for number, predictions in enumerate(trained.answers(lines, first=first, **how), start=first):
            show(number, predictions)
        first += len(lines)
        sys.stdout.flush()
    return DONE


def _settings(record: Run | None) -> Settings | ClassSettings | TextSettings | DrawSettings:
    """What can be set for a run of this kind."""
    if record is not None and isinstance(record.config, Draw):
        return DrawSettings(decode=record.config.decode)
    if record is not None and isinstance(record.config, Language):
        return TextSettings(sample=record.config.sample)
    decode = getattr(record.config, "decode", None) if record else DecodeConfig()
    return ClassSettings() if decode is None else Settings(decode=decode)


def _with_beam(argv: list[str], beam: int) -> list[str]:
    """N best outputs need a beam of N: widen it unless it is given."""
    wanted = given_first(argv, "decode.n_best")
    if wanted is None or not wanted.isdecimal() or given_first(argv, "decode.beam"):
        return argv
    return [argv[0], "--decode.beam", str(max(beam, int(wanted))), *argv[1:]]


def _blocks(given: Sequence[str], record: Run | None) -> Iterator[list[str]]:
    """The texts of all that is given, as many at a time as there are now."""
    if len(given) > 1 and not all(is_file(one) for one in given):
        raise UserError(
            f"{given[1]!r} is one argument too many: several inputs must be files that exist; write a text of several "
            "words in quotes"
        )
    if all(is_input_itself(one, record) for one in given):
        return (list(given[i : i + _TOGETHER]) for i in range(0, len(given), _TOGETHER))
    return chain.from_iterable([[one]] if is_input_itself(one, record) else _lines(one) for one in given)


def _lines(given: str) -> Iterator[list[str]]:
    if given == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed: there is nothing to predict; give a text or a file")
        return lines_in(cast("BufferedIOBase", sys.stdin.buffer), "standard input")
    if is_file(given):
        return lines_of(given)
    if not given.strip():
        raise UserError("the text is empty: there is nothing to predict")
    return iter([[text_of(given)]])


def _as_text(_number: int, predictions: Sequence[Any]) -> None:
    print(_one_line(predictions[0].text))


def _as_is(_number: int, predictions: Sequence[Any]) -> None:
    print(predictions[0].text)


def _as_rows(number: int, predictions: Sequence[Any]) -> None:
    for rank, (text, score) in enumerate(predictions, start=1):
        print(number, rank, f"{score:.4f}", _one_line(text), sep="\t")


def _as_json(number: int, predictions: Sequence[Any]) -> None:
    for rank, (text, score) in enumerate(predictions, start=1):
        row = {"input": number, "rank": rank, "score": score, "text": text}
        print(json.dumps(row, ensure_ascii=False))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
