"""`regard bench RUN`: speed of training and inference of a trained run on this machine."""

import importlib
import json
import os
from pathlib import Path
from typing import Annotated

from regard.bench.report import format_report
from regard.cli.inputs import read_inputs
from regard.cli.runs import UseOptions, load_trained, read_command, say_if_slow
from regard.errors import DONE
from regard.settings.declare import settings
from regard.settings.ranges import Range
from regard.system.allocator import keep_freed_memory
from regard.system.verbosity import print_notice

USAGE = "regard bench RUN [options]"
ABOUT = (
    "Measure the speed of a trained run on this machine: the machine's limits, training steps on "
    "the run's own batches, inference one input at a time and in batches, and where the time goes. "
    "Takes about a minute for a small run; the run folder is only read. Other load on the machine "
    "slows the measurements."
)


@settings
class BenchOptions(UseOptions):
    """Options of `regard bench`."""

    seconds: Annotated[float, Range(0.001, 3_600)] = 1.5
    """Duration of each of about ten measurements, in seconds."""
    batches: Annotated[int, Range(1, 10_000)] = 8
    """Number of different training batches, spread over an epoch."""
    input: Path | None = None
    """File or folder of inputs for inference, as for `predict`; by default the run's test data."""
    engine: tuple[str, ...] = ("auto",)
    """Engines to measure: auto, torch, compiled; one or several (--engine torch compiled)."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(argv: list[str]) -> int:
    """Parse the options, run the measurements and print the report."""
    command = read_command(argv, BenchOptions(), usage=USAGE, about=ABOUT)
    options = command.own
    # Silence torch's profiler on stderr; the variable is read when torch is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    inputs = []
    if options.input is not None:
        trained = load_trained(command.folder, options, command.run)
        for block in read_inputs([str(options.input)], trained):
            inputs += [given.value for given in block if not given.problem]
    keep_freed_memory()  # as in training
    with say_if_slow("loading PyTorch"):
        module = importlib.import_module("regard.bench.bench")
    results = module.bench(command.folder, options, inputs, print_notice)
    print(json.dumps(results, ensure_ascii=False) if options.json else format_report(results))
    return DONE
