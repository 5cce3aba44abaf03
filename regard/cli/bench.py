"""`regard bench RUN`: training and inference speed of a trained run on this machine, with a
profile."""

import importlib
import json
import os
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from regard.bench.report import format_report, profiles
from regard.cli.inputs import exists, read_inputs
from regard.cli.notices import print_notice
from regard.cli.runs import UseOptions, load_trained, read_run_argument, say_if_slow
from regard.errors import DONE, UserError
from regard.look.figures.output import check_path
from regard.recipes.base.run import Run
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import NoSettings, parse, wants_help
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups
from regard.system.allocator import keep_freed_memory
from regard.system.output_files import check_output

USAGE = "regard bench RUN [options]"
ABOUT = (
    "Measure the speed of a trained run on this machine: the machine's limits, training steps on "
    "the run's own batches "
    "(with copies of the parameters), inference one input at a time and in batches, and where the "
    "time goes. Takes "
    "about a minute for a small run; the run folder is only read. Other load on the machine slows "
    "the measurements."
)

_MOST = 10_000
"""Maximum number of inputs that are used."""


@settings
class BenchOptions(UseOptions):
    """Options of the command."""

    seconds: Annotated[float, Range(0.001, 3_600)] = 1.5
    """Duration of each of about ten measurements, in seconds."""
    batches: Annotated[int, Range(1, 10_000)] = 8
    """Number of different training batches, spread over an epoch."""
    input: Path | None = None
    """File or folder of inputs for inference, read as for `predict`; the run's test or validation
    data if not given."""
    engine: tuple[str, ...] = ("auto",)
    """Inference engines to measure: auto, torch, compiled, ctranslate2; one or several (--engine
    torch compiled)."""
    json: bool = False
    """Print one JSON object instead of tables."""
    out: Path | None = None
    """File to which a chart of where the time goes is written: .png, .svg or .pdf; none if not
    given."""
    force: bool = False
    """Replace the file if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, run the measurements and print the report."""
    folder, record = read_run_argument(argv, USAGE)
    if wants_help(argv):
        print(page(USAGE, ABOUT, collect_groups(BenchOptions())))
        return DONE
    options = parse(
        argv,
        BenchOptions(),
        NoSettings(),
        max_positionals=1,
        expected="one run folder, and options",
    ).own
    if options.out is not None:
        check_output(options.out)
        if options.out.exists() and not options.force:
            raise UserError(f"{options.out} exists; it is replaced only with --force")
        check_path(options.out, options.force)
    # Silence torch's profiler on stderr; the variable is read when torch is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    inputs = _read_inputs(options.input, folder, record)
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    keep_freed_memory()  # as in training
    with say_if_slow("loading PyTorch"):
        module = importlib.import_module("regard.bench.bench")
    results = module.bench(
        folder,
        device=options.device,
        engines=options.engine,
        seconds=options.seconds,
        batches=options.batches,
        inputs=inputs,
        notify=print_notice,
    )
    print(json.dumps(results, ensure_ascii=False) if options.json else format_report(results))
    if options.out is not None:
        _draw(results, options)
    return DONE


def _read_inputs(path: Path | None, folder: Path, record: Run | None) -> list[Any]:
    """Return the inputs in a file or a folder, read as for `predict`. Raises UserError if there is
    none."""
    if path is None:
        return []
    if not exists(str(path)):
        raise UserError(f"{path}: no such file")
    trained = load_trained(folder, UseOptions(), record)
    values = (given.value for block in read_inputs([str(path)], trained) for given in block)
    inputs = [
        *islice((value for value in values if not isinstance(value, str) or value.strip()), _MOST)
    ]
    if not inputs:
        raise UserError(f"{path}: is empty, expected one input per line")
    return inputs


def _draw(results: dict, options: BenchOptions) -> None:
    panels = [(name, profile["profile"]) for name, profile in profiles(results)]
    if not panels:
        print_notice("nothing was profiled, so there is nothing to plot")
        return
    picture = importlib.import_module("regard.bench.picture")
    machine = results["machine"]
    title = f"{results['run']} on {machine['processor']}, {machine['threads']} threads: where the time goes"
    print_notice(
        str(picture.draw_shares(panels, options.out, title=title, overwrite=options.force))
    )
