"""`regard bench RUN`: what this machine reaches for a trained run, and where the time goes."""

import importlib
import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from regard.cli.bench_words import in_words, panels
from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.inputs import is_file, is_input_itself, lines_of
from regard.cli.notices import tell
from regard.cli.options import NoSettings, parse, wants_help
from regard.cli.use import UseOptions, one_run
from regard.errors import UserError
from regard.look.files import check_path
from regard.ranges import Range, check_ranges
from regard.recipes.folder import Run
from regard.recipes.settings import groups
from regard.run_files import check_output
from regard.train.allocator import keep_freed_memory

USAGE = "regard bench RUN [options]"
ABOUT = (
    "What this machine reaches for a trained run: its own limits, steps of training on the run's own batches (with "
    "copies of the weights), answers one at a time and many at once, and where the time goes. About a minute for a "
    "small run; the run's folder is only read. Other work on the machine slows what is measured."
)

_MOST = 10_000
"""Lines of a file that are asked, the first ones."""


@dataclass(frozen=True, kw_only=True)
class Options(UseOptions):
    """Options of the command."""

    seconds: Annotated[float, Range(0.001, 3_600)] = 1.5
    """Time for each of about ten measurements."""
    batches: Annotated[int, Range(1, 10_000)] = 8
    """Different training batches, from all over an epoch, that steps are made of."""
    input: Path | None = None
    """What is asked: a file with a text a line, or an image, a sound or a recording, as the run reads them (of such,
    FILE.txt is a list of names); the run's test or validation data if not given."""
    engine: tuple[str, ...] = ("auto",)
    """What answers: auto, torch, compiled, ctranslate2; of several (--engine torch compiled), each is measured."""
    json: bool = False
    """Print one JSON object instead of tables."""
    out: Path | None = None
    """Also draw where the time goes, into this file: .png, .svg or .pdf."""
    force: bool = False
    """Replace the file if it exists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self)


def run(argv: list[str]) -> int:
    """Read the options; measure; print."""
    folder, record = one_run(argv, USAGE)
    if wants_help(argv):
        print(page(USAGE, ABOUT, groups(Options())))
        return DONE
    options = parse(argv, Options(), NoSettings(), most_positionals=1, what="one run folder, and options").own
    if options.out is not None:
        check_output(options.out)
        if options.out.exists() and not options.force:
            raise UserError(f"{options.out} exists; it is replaced only with --force")
        check_path(options.out, options.force)
    inputs = _inputs(options.input, record)
    # Else torch's profiler announces itself on stderr; it is read when torch is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    keep_freed_memory()  # as training does
    work = importlib.import_module("regard.recipes.bench.bench")
    found = work.bench(
        folder,
        device=options.device,
        engines=options.engine,
        seconds=options.seconds,
        batches=options.batches,
        inputs=inputs,
        tell=tell,
    )
    print(json.dumps(found, ensure_ascii=False) if options.json else in_words(found))
    if options.out is not None:
        _draw(found, options)
    return DONE


def _inputs(path: Path | None, record: Run | None) -> list[str]:
    """What a file asks. Raises UserError if there is no such file, or nothing in it."""
    if path is None:
        return []
    if not is_file(str(path)):
        raise UserError(f"{path}: there is no such file")
    if is_input_itself(str(path), record):
        return [str(path)]
    lines = [*islice((line for block in lines_of(str(path)) for line in block if line.strip()), _MOST)]
    if not lines:
        raise UserError(f"{path} is empty: there is nothing to ask")
    return lines


def _draw(found: dict, options: Options) -> None:
    shown = panels(found)
    if not shown:
        tell("nothing could be measured, so that there is nothing to draw")
        return
    picture = importlib.import_module("regard.recipes.bench.picture")
    machine = found["machine"]
    title = f"{found['run']} on {machine['processor']}, {machine['threads']} threads: where the time goes"
    tell(str(picture.draw_shares(shown, options.out, title=title, overwrite=options.force)))
