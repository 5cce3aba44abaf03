"""`regard sweep RECIPE --over NAME V ...`: train over a grid of settings and seeds."""

import importlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Annotated

from regard.cli.runs import announce_compiling
from regard.cli.train import TrainOptions, read_training
from regard.errors import DONE, INTERRUPTED, UserError
from regard.recipes.registry import RECIPES, get_entry
from regard.recipes.run_folder import check_run_folder
from regard.recipes.sweep import SweepRun, format_sweep, summarize, train_all, write_summary
from regard.settings.declare import settings
from regard.settings.help import show_help
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups
from regard.system.allocator import keep_freed_memory
from regard.system.progress import report_slow, show_progress
from regard.system.verbosity import print_notice

USAGE = "regard sweep RECIPE --over NAME V ... [--over NAME V ...] [options of train]"
ABOUT = (
    "Train a recipe with each combination of values of some settings, each with several seeds, and "
    "sort the combinations by the validation metric of the recipe. The folder of --run receives a "
    "run for each, sweep.json, sweep.csv and curves.png. After Ctrl-C the same command continues; "
    "further values may be added. Other options are those of `regard train RECIPE`."
)


@settings
class SweepOptions(TrainOptions):
    """Options of `regard sweep`."""

    run: Path | None = None
    """Folder of the sweep; runs/RECIPE-sweep if not given."""
    over: tuple[str, ...] = ()
    """A setting and its values, such as --over train.lr 1e-3 3e-3; may be repeated."""
    seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds of each combination: that of --seed and the following ones."""
    halving: bool = False
    """Successive halving: pause all runs early, continue the better half of the combinations to
    twice the number of steps, and so on; one is trained to its end, as it is without pauses."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(argv: list[str]) -> int:
    """Parse the options, train the runs and print their scores."""
    if not argv or argv[0].startswith("-"):
        show_help(argv, USAGE, ABOUT, collect_groups(SweepOptions()))
        raise UserError(f"RECIPE is missing: {USAGE}; the recipes are {', '.join(RECIPES)}")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("regard sweep trains in one process: torchrun is for regard train")
    words, grid = _take_grid(argv)
    if argv[0] == "language" and any(name.startswith("tokenizer.") for name in grid):
        raise UserError("--over: runs of language are compared by nll per token of one tokenizer")
    first, options = read_training(words, SweepOptions(), usage=USAGE, about=ABOUT)
    folder = options.run or Path("runs") / f"{first.recipe}-sweep"
    combinations = _list_runs(words, grid, options, folder)
    for one in chain(*combinations):
        get_entry(one.run.recipe).check(one.run.config)
        check_run_folder(one.folder, one.run)
    keep_freed_memory()
    announce_compiling()
    with report_slow(print_notice, "loading PyTorch"):
        importlib.import_module("regard.recipes.training")
    with show_progress():
        is_complete = train_all(
            combinations, halving=options.halving, threads=options.threads, notify=print_notice
        )
    if not is_complete:
        print_notice("The same command continues the sweep.")
        return INTERRUPTED
    summary = summarize(combinations)
    write_summary(summary, combinations, folder)
    print(json.dumps(summary, ensure_ascii=False) if options.json else format_sweep(summary))
    print_notice(f"{folder / 'sweep.json'}, sweep.csv and curves.png are written.")
    return DONE


def _take_grid(argv: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the command line without --over, and the values by setting."""
    rest, words, grid = list[str](), list(argv), dict[str, list[str]]()
    while words:
        word = words.pop(0)
        if word != "--over":
            rest.append(word)
            continue
        values: list[str] = []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        if len(values) < 2:
            raise UserError("--over needs a setting and its values: --over train.lr 1e-3 3e-3")
        grid[values[0]] = values[1:]
    return rest, grid


def _list_runs(
    words: Sequence[str], grid: dict[str, list[str]], options: SweepOptions, folder: Path
) -> list[list[SweepRun]]:
    """Return the runs of each combination. Raises: UserError as `regard train`."""
    combinations, names = [], set[str]()
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        given = [f"--{name}={value}" for name, value in chosen.items()]
        run, own = read_training([*words, *given], SweepOptions(), usage=USAGE, about=ABOUT)
        combinations.append(list[SweepRun]())
        for seed in range(own.seed, own.seed + options.seeds):
            parts = [f"{name}={value}" for name, value in (chosen | {"seed": str(seed)}).items()]
            name = re.sub(r"[^\w.=+,-]", "-", "_".join(parts))
            if name in names:
                raise UserError(f"--over has a value twice: two runs are named {name}")
            names.add(name)
            combinations[-1].append(SweepRun(chosen, replace(run, seed=seed), folder / name))
    return combinations
