"""`regard train RECIPE`: train a model, or resume a run that was stopped."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from regard.cli.runs import announce_compiling
from regard.errors import DONE, INTERRUPTED, UserError
from regard.recipes.base.run import Run
from regard.recipes.metrics.report import score_table
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.recipes.run_folder import check_run_folder, initial_settings, longer_command, read_run
from regard.settings.declare import settings
from regard.settings.help import HelpShown, page, show_help, two_columns
from regard.settings.options import apply_variants, parse, peek_option, wants_help
from regard.settings.ranges import Seed, Threads
from regard.settings.tree import apply_changes, collect_groups, to_plain
from regard.system.allocator import keep_freed_memory
from regard.system.progress import report_slow
from regard.system.verbosity import print_notice, verbosity

USAGE = "regard train RECIPE [options]"
ABOUT = (
    "Train the model of a recipe. Settings, parameters, logs and the report are written to the run "
    "folder. After Ctrl-C or a crash, the same command resumes the run, and so does `regard train "
    "--run RUN`, with the settings of the run; options change those that may change: limits "
    "(--train.steps ...), intervals, threads, the device, and paths of data that moved. A folder "
    "with another run is never overwritten. With several processes: torchrun --nproc-per-node N -m "
    "regard -- train ..."
)


@settings
class TrainOptions:
    """Options of `regard train`."""

    run: Path | None = None
    """Run folder; runs/RECIPE if not given."""
    seed: Seed = 1
    """Random seed of the initialization, the data order and dropout; the same seed gives the same
    run with the same number of threads (sums are rounded differently with others) and the same
    --train.precision, which auto may choose differently next time."""
    threads: Threads | None = None
    """Number of CPU threads; torch's default if not given."""
    preset: str | None = None
    """Model of a paper by name; `regard presets` lists them. --config and options override it."""
    init: Path | None = None
    """Run whose parameters and tokenizers the new run starts from; its other settings, except files
    of data and training, are the defaults."""
    config: Path | None = None
    """YAML file with settings of the recipe, nested by name; other options override it."""
    print_config: bool = False
    """Print all settings in the format of --config, and exit."""


OptionsT = TypeVar("OptionsT", bound=TrainOptions)


def run(argv: list[str]) -> int:
    """Parse the options, train and print the test scores."""
    if wants_help(argv) and argv[0].startswith("-"):
        recipes = two_columns([(name, recipe.summary) for name, recipe in RECIPES.items()])
        print(f"{page(USAGE, ABOUT, collect_groups(TrainOptions()))}\n\nRecipes.\n{recipes}\n")
        print("`regard train RECIPE --help` explains the settings of a recipe.")
        return DONE
    run, options = read_training(argv, TrainOptions(), usage=USAGE, about=ABOUT)
    folder = options.run or Path("runs") / run.recipe
    get_entry(run.recipe).check(run.config)
    check_run_folder(folder, run)
    keep_freed_memory()
    announce_compiling()
    with report_slow(print_notice, "loading PyTorch"):
        training = importlib.import_module("regard.recipes.training")
    result = training.train_run(folder, run, threads=options.threads, notify=print_notice)
    if result.is_interrupted:
        return INTERRUPTED
    if not result.report or verbosity() == "quiet":
        return DONE
    if result.was_finished:
        reason = result.report["training"]["stop_reason"]
        print(f"The run in {folder} is finished: it stopped by {reason}. A new run from it, with")
        print(f"its own schedule:  {longer_command(folder, run)}")
    test = result.report["test"]
    print(score_table(test) if test else "No test data was given (--data.test).")
    program = "regard" if run.recipe in NAMES else f"python {sys.argv[0]}"
    print(f"\nThe run is in {folder}: try  {program} predict {folder} INPUT")
    return DONE


def read_training(
    argv: Sequence[str], options: OptionsT, *, usage: str, about: str
) -> tuple[Run, OptionsT]:
    """Parse the options of a training; --help and --print-config print and end the command."""
    init = peek_option(argv, "init")
    preset, file = peek_option(argv, "preset"), peek_option(argv, "config")
    if argv and not argv[0].startswith("-"):
        recipe, *words = argv
        entry = get_entry(recipe)
        config, start = initial_settings(entry, init, preset)
    else:
        folder, words = peek_option(argv, "run"), argv
        if folder is None:
            names = ", ".join(RECIPES)
            raise UserError(
                f"RECIPE is missing: {usage}; the recipes are {names}. --run RUN continues a run"
            )
        if init is not None or preset is not None:
            raise UserError(f"--init and --preset need a RECIPE: {folder} has its own settings")
        before = read_run(folder)
        recipe, config, start = before.recipe, before.config, before.init
        entry, options = get_entry(recipe), replace(options, seed=before.seed)
    if file is not None:
        changes = read_settings(Path(file))
        config = apply_changes(config, changes, called=lambda name: f"{file}: {name}")
    if wants_help(words):
        groups = [*collect_groups(options), *collect_groups(apply_variants(config, words))]
        show_help(words, usage.replace("RECIPE", recipe), about, groups, hidden=entry.unused)
    parsed = parse(words, options, config)
    if parsed.own.print_config:
        print(yaml.safe_dump(to_plain(parsed.config), sort_keys=False, allow_unicode=True), end="")
        raise HelpShown(DONE)
    run = Run(recipe=recipe, seed=parsed.own.seed, config=parsed.config, init=start)
    return run, parsed.own


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings. Raises UserError naming the file if it cannot be read."""
    try:
        # Loads text, lists and dicts only, and never guesses the type of a scalar.
        settings = yaml.load(path.read_text(encoding="utf-8-sig"), yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if isinstance(settings, dict) and "format_version" in settings:
        command = f"regard train --run {path.parent} --print-config"
        raise UserError(f"{path}: is the record of a run; {command} prints its settings")
    if settings and not isinstance(settings, dict):
        raise UserError(f"{path}: must hold settings by name, got {type(settings).__name__}")
    return settings or {}
