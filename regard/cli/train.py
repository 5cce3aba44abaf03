"""`regard train RECIPE`: train a model, or resume a run that was stopped."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from regard.cli.notices import announce_compiling, print_notice
from regard.errors import DONE, INTERRUPTED, UserError
from regard.recipes.base.entry import Entry
from regard.recipes.base.run import Run
from regard.recipes.metrics.report import score_table
from regard.recipes.presets import apply_preset
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.recipes.run_folder import check_data_files, check_run_folder, read_init, read_run
from regard.settings.declare import settings
from regard.settings.help import page, two_columns
from regard.settings.options import (
    apply_variants,
    parse,
    peek_option,
    wants_help,
)
from regard.settings.ranges import Seed, Threads
from regard.settings.tree import apply_changes, collect_groups, to_plain
from regard.settings.yaml_file import read_settings
from regard.system.allocator import keep_freed_memory
from regard.system.progress import report_slow
from regard.system.verbosity import verbosity

USAGE = "regard train RECIPE [options]"
ABOUT = (
    "Train the model of a recipe. Settings, parameters, logs and the report are written to the run "
    "folder. After "
    "Ctrl-C or a crash, the same command resumes the run, and so does `regard train --run RUN`, "
    "with the settings of "
    "the run; options change those that may change: limits (--train.steps ...), intervals, "
    "threads, the device, and "
    "paths of data that moved. A folder with another run is never "
    "overwritten. "
    "With several processes: torchrun --nproc-per-node N -m regard -- train ..."
)


@settings
class TrainOptions:
    """Options of the command."""

    run: Path | None = None
    """Run folder; runs/RECIPE if not given."""
    seed: Seed = 1
    """Random seed of the initialization, the data order and dropout; the same seed gives the same
    run with the same number of threads (sums are rounded differently with others)."""
    threads: Threads | None = None
    """Number of CPU threads; torch's default if not given."""
    preset: str | None = None
    """Model of a paper by name, with its sizes; `regard presets` lists them. --config and other
    options override it."""
    init: Path | None = None
    """Run whose parameters and tokenizers the new run starts from; its other settings, except those
    of data and training, are the defaults."""
    config: Path | None = None
    """YAML file with settings of the recipe, nested by name; options on the command line override
    it."""
    print_config: bool = False
    """Print all settings in the format of --config, and exit."""


def run(argv: list[str]) -> int:
    """Parse the options, train and print the test scores."""
    before, options = None, TrainOptions()
    if argv and not argv[0].startswith("-"):
        recipe, *rest = argv
        chosen = get_entry(recipe)
        config = chosen.config()
    else:
        if wants_help(argv):
            print(_help_without_recipe())
            return DONE
        folder = peek_option(argv, "run")
        if folder is None:
            raise UserError(_describe_missing_recipe(argv))
        before, rest = read_run(folder), argv
        recipe, chosen, config = before.recipe, get_entry(before.recipe), before.config
        options = replace(options, seed=before.seed)
    preset, file = peek_option(rest, "preset"), peek_option(rest, "config")
    init, start = peek_option(rest, "init"), None if before is None else before.init
    if init is not None:
        if before is not None or preset is not None:
            raise UserError(
                "--init starts a new run of a RECIPE with the settings of that run: leave out "
                "--preset"
            )
        start, config = read_init(Path(init), recipe)
    if preset is not None:
        if before is not None:
            raise UserError(
                f"--preset needs a RECIPE: the run {peek_option(rest, 'run')} has its own settings"
            )
        config = apply_preset(preset, recipe, config)
    if file is not None:
        config = apply_changes(
            config, read_settings(Path(file)), called=lambda name: f"{file}: {name}"
        )
    if wants_help(rest):
        print(_help(chosen, apply_variants(config, rest)))
        return DONE
    parsed = parse(rest, options, config)
    if parsed.own.print_config:
        print(yaml.safe_dump(to_plain(parsed.config), sort_keys=False, allow_unicode=True), end="")
        return DONE
    folder = parsed.own.run or Path("runs") / recipe
    return _train(
        folder,
        Run(recipe=recipe, seed=parsed.own.seed, config=parsed.config, init=start),
        parsed.own.threads,
    )


def _train(folder: Path, run: Run, threads: int | None) -> int:
    entry = get_entry(run.recipe)
    try:
        entry.check(run.config)
    except UserError as error:
        if entry.needs_data and run.config.data.train is None and (folder / "run.json").exists():
            raise UserError(
                f"{error}. To continue the run in {folder}: regard train --run {folder}"
            ) from error
        raise
    check_run_folder(folder, run)
    if not (folder / "run.json").exists():
        check_data_files(run.recipe, run.config.data)
    keep_freed_memory()
    announce_compiling()
    with report_slow(print_notice, "loading PyTorch"):
        training = importlib.import_module("regard.recipes.training")
    result = training.train_run(folder, run, threads=threads, notify=print_notice)
    if result.is_interrupted:
        return INTERRUPTED
    if not result.report or verbosity() == "quiet":
        return DONE
    if result.was_finished:
        reason = result.report["training"]["stop_reason"]
        print(f"The run in {folder} is finished: it stopped by {reason}.")
        if any((folder / "checkpoints").glob("step-*")):
            print(
                f"To train it longer, raise that limit, as in regard train --run {folder} "
                f"--train.steps N."
            )
        else:
            print(
                "It kept no checkpoints (--train.keep-finished model), so that it cannot be "
                "trained longer; a new run"
            )
            print(
                f"can start from its parameters: regard train {run.recipe} --init {folder} --run "
                f"OTHER, and options of "
                "its data."
            )
    test = result.report["test"]
    print(
        score_table(test)
        if test
        else "No test data was given (--data.test), so there is no test score."
    )
    program = "regard" if run.recipe in NAMES else f"python {sys.argv[0]}"
    print(f"\nThe run is in {folder}: try  {program} predict {folder} INPUT")
    return DONE


def _describe_missing_recipe(argv: list[str]) -> str:
    if late := next((word for word in argv if word in RECIPES), None):
        return f"RECIPE must come first: {USAGE.replace('RECIPE', late)}"
    return f"RECIPE is missing: {USAGE}; the recipes are {', '.join(RECIPES)}. To continue a run, give --run RUN"


def _help_without_recipe() -> str:
    recipes = two_columns([(name, recipe.summary) for name, recipe in RECIPES.items()])
    ending = "`regard train RECIPE --help` explains the settings of a recipe."
    return (
        f"{page(USAGE, ABOUT, collect_groups(TrainOptions()))}\n\nRecipes.\n{recipes}\n\n{ending}"
    )


def _help(chosen: Entry, config: Any) -> str:
    usage = USAGE.replace("RECIPE", chosen.name)
    return page(
        usage, ABOUT, [*collect_groups(TrainOptions()), *chosen.hide_unused(collect_groups(config))]
    )
