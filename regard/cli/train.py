"""`regard train RECIPE`: train, or go on with a run that was stopped."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regard.cli.exits import INTERRUPTED
from regard.cli.help import page, two_columns
from regard.cli.notices import tell
from regard.cli.options import given_first, parse, wants_help, with_variants
from regard.cli.report import score_table
from regard.errors import UserError
from regard.ranges import Seed, Threads, check_ranges
from regard.recipes.folder import Run
from regard.recipes.registry import RECIPES, Entry, entry
from regard.recipes.settings import changed, groups, plain
from regard.train.allocator import keep_freed_memory

USAGE = "regard train RECIPE [options]"
ABOUT = (
    "Train a recipe's model. The run's folder gets its settings, weights, logs and report. Stopped by Ctrl-C "
    "or a crash, the same command goes on where it was; a folder with another run is never overwritten. "
    "On several processes: torchrun --nproc-per-node N -m regard -- train ..."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    run: Path | None = None
    """Folder of the run; runs/RECIPE if not given."""
    seed: Seed = 1
    """Decides the first weights, the order of the data, dropout: the same seed gives the same run."""
    threads: Threads | None = None
    """Processor threads to compute with; torch's choice if not given."""
    config: Path | None = None
    """YAML file with settings of the recipe, nested by their names; options given beside it go before it."""
    print_config: bool = False
    """Print all settings, as such a file, and stop."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(argv: list[str]) -> int:
    """Read the options; train; say what came out."""
    if not argv or argv[0].startswith("-"):
        if wants_help(argv):
            print(_help_without_recipe())
            return 0
        raise UserError(f"which recipe? {USAGE}; the recipes are {', '.join(RECIPES)}")
    recipe, *rest = argv
    chosen = entry(recipe)
    config = chosen.config()
    file = given_first(rest, "config")
    if file is not None:
        given = importlib.import_module("regard.cli.settings_file").read_settings(Path(file))
        config = changed(config, given.settings, called=given.called)
    if wants_help(rest):
        print(_help(chosen, with_variants(config, rest)))
        return 0
    parsed = parse(rest, Options(), config, most_positionals=0, what=f"only options after `{recipe}`")
    if parsed.own.print_config:
        print(yaml.safe_dump(plain(parsed.config, whole=True), sort_keys=False, allow_unicode=True), end="")
        return 0
    folder = parsed.own.run or Path("runs") / recipe
    return _train(folder, Run(recipe=recipe, seed=parsed.own.seed, config=parsed.config), parsed.own.threads)


def _train(folder: Path, run: Run, threads: int | None) -> int:
    keep_freed_memory()
    importlib.import_module("regard.cli.waits").tell_of_compiling()
    work = importlib.import_module("regard.recipes.running")
    ended = work.train(folder, run, threads=threads, tell=tell)
    if ended.is_interrupted:
        return INTERRUPTED
    if not ended.report:
        return 0
    if ended.was_finished:
        print(f"{folder} holds this run, finished. To train it longer, raise its limit (it stopped by")
        print(f"{ended.report['training']['stopped']}), for example --train.steps N; or choose another --run.")
    test = ended.report["test"]
    print(score_table(test) if test else "No test data was named (--data.test), so there is no test score.")
    print(f"\nthe run is in {folder}: try  regard predict {folder} INPUT")
    return 0


def _help_without_recipe() -> str:
    recipes = two_columns([(name, one.summary) for name, one in RECIPES.items()])
    ending = "`regard train RECIPE --help` explains the settings of each."
    return f"{page(USAGE, ABOUT, groups(Options()))}\n\nRecipes.\n{recipes}\n\n{ending}"


def _help(chosen: Entry, config: Any) -> str:
    usage = USAGE.replace("RECIPE", chosen.name)
    return page(usage, ABOUT, [*groups(Options()), *groups(config)])
