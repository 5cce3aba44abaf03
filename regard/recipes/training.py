"""Training of a run from its settings to its report.

The files of a run are listed in regard.recipes.run_folder. Everything specific to a recipe is in
its class (regard.recipes.base.recipe.Recipe).
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from regard.errors import UserError, is_out_of_memory
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import ARTIFACTS, Run, data_paths, training_fingerprint
from regard.recipes.base.trained import TrainedRun
from regard.recipes.initial import check_init, copy_parameters
from regard.recipes.load import create_recipe, load
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import RunFolder, initial_settings, open_run_folder
from regard.settings.declare import field_kinds
from regard.settings.declare import settings as settings_class
from regard.settings.ranges import Seed, Threads
from regard.settings.tree import apply_changes, to_plain
from regard.system.extras import check_extra
from regard.system.files import copy_pipe
from regard.system.progress import report_slow
from regard.system.verbosity import set_verbosity
from regard.training.checkpoint import list_checkpoints, remove_checkpoints
from regard.training.distribution import World, join_process_group
from regard.training.loop import Result, fit
from regard.training.precision import emulates_bfloat16, resolve_precision
from regard.training.tensors import tensors_of, ties_of, write_tensors


class RunResult(NamedTuple):
    """Result of `train_run` on the calling process."""

    report: dict[str, Any] | None
    """Content of report.json; None if interrupted or paused, and on processes other than the main
    one."""
    is_interrupted: bool
    was_finished: bool
    """True if the run was finished before, so that nothing was done."""


@settings_class
class _Arguments:
    """Arguments of `train` that are numbers, to check them."""

    seed: Seed
    threads: Threads | None


def train(
    recipe: str | Entry,
    folder: str | Path,
    *,
    seed: int = 1,
    preset: str | None = None,
    init: str | Path | None = None,
    threads: int | None = None,
    notify: Callable[[str], None] = print,
    quiet: bool = False,
    **settings: Any,
) -> TrainedRun:
    """Train a run in a folder, as `regard train RECIPE --run FOLDER` does, and return the run.

        data, short = {"train": "films.tsv"}, {"steps": 500}
        run = regard.train("reviews", "runs/films", data=data, train=short)
        run.predict(["what a lovely film"])

    A run that was stopped is continued, and a finished one is loaded. The number of threads and the
    random numbers of torch are as before when it returns.

    recipe:   a name, or the Entry of a recipe of your own (docs/howto/write-your-own.md).
    seed, preset, init: as the options of `regard train`.
    threads:  number of CPU threads while it trains; torch's default if None.
    notify:   called with progress messages.
    quiet:    print nothing but warnings, and do not call `notify`.
    settings: of the recipe, nested as `regard train RECIPE --print-config` prints them.
    Raises:   UserError as `train_run`, and for a setting that does not exist or is out of range;
              TypeError for an argument that does not exist; KeyboardInterrupt after a checkpoint is
              saved, if training is interrupted.
    """
    _Arguments(seed=seed, threads=threads)
    entry = get_entry(recipe)
    own = None if isinstance(recipe, str) else entry
    config, start = initial_settings(entry, init, preset)
    if unknown := settings.keys() - field_kinds(type(config)).keys():
        raise TypeError(f"train has no argument {min(unknown)!r} with recipe {entry.name}")
    config = apply_changes(config, settings, called=str)
    run = Run(recipe=entry.name, seed=seed, config=config, init=start, own=own)
    notify = _discard if quiet else notify
    threads_before = torch.get_num_threads()
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(used), set_verbosity("quiet") if quiet else nullcontext():
            result = train_run(folder, run, threads=threads, notify=notify)
    finally:
        torch.set_num_threads(threads_before)
    if result.is_interrupted:
        raise KeyboardInterrupt
    return load(folder, recipe=recipe, device=config.train.device, notify=notify)


def train_run(
    folder: str | Path,
    run: Run,
    *,
    threads: int | None = None,
    notify: Callable[[str], None] = print,
    until: float = 1.0,
) -> RunResult:
    """Train a run in its folder, or resume its last checkpoint, and evaluate it on its test data.

    The precision `auto` becomes the one the run started with, or else the faster one here.

    notify:  called with progress messages, on the main process.
    until:   fraction of the run from which on it pauses after a validation (`fit`).
    Raises:  UserError if the folder holds another run, another process works in it, or the data is
             not usable or was edited since the run started; Diverged at a NaN loss.
    """
    check_extra("train", "training")
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(folder)
    get_entry(run.own or run.recipe).check(run.config)
    with ExitStack() as stack:
        world = stack.enter_context(join_process_group(run.config.train.device))
        notify = notify if world.is_main else _discard
        run = _copy_pipes(run, Path(stack.enter_context(TemporaryDirectory(prefix="regard-"))))
        opening = open_run_folder(
            folder,
            run,
            resolve=partial(resolve_precision, run.config.train.precision, world.device),
            notify=notify,
        )
        opened = world.run_on_main(partial(stack.enter_context, opening))
        if opened.report:
            report = opened.report if world.is_main else None
            return RunResult(report, is_interrupted=False, was_finished=True)
        if opened.is_resumed:
            count = torch.get_num_threads()
            notify(
                f"continuing the run in {folder} with threads={count}: as many as before give the "
                "same parameters"
            )
        recipe = create_recipe(opened.run, notify)
        result = _fit(recipe, opened, world, notify, until)
        if result.stop_reason in ("interrupted", "paused") or not world.is_main:
            return RunResult(None, is_interrupted=result.is_interrupted, was_finished=False)
        report = _make_report(folder, recipe, result, device=str(world.device), notify=notify)
        opened.write_report(report)
        if run.config.train.keep_finished == "model":
            for path in (folder, *(path.parent for path in folder.glob("*/checkpoints"))):
                remove_checkpoints(path)
    return RunResult(report, is_interrupted=False, was_finished=False)


def _copy_pipes(run: Run, folder: Path) -> Run:
    """Copy pipes among the data to files in a folder, as they can be read only once."""
    data: dict[str, Any] = {}
    for name, value in to_plain(run.config.data).items():
        if not name.startswith(("train", "val", "test")):
            continue
        if isinstance(value, str):
            data[name] = copy_pipe(value, folder / name)
        elif isinstance(value, list) and all(isinstance(path, str) for path in value):
            data[name] = [copy_pipe(path, folder / f"{name}-{i}") for i, path in enumerate(value)]
    return replace(run, config=apply_changes(run.config, {"data": data}, called=str))


def _fit(
    recipe: Recipe[Any],
    opened: RunFolder,
    world: World,
    notify: Callable[[str], None],
    until: float,
) -> Result:
    run, folder = opened.run, opened.path
    notify(f"reading {', '.join(data_paths(run).values()) or 'the data'}")
    if not opened.is_resumed:
        check_init(recipe)
    recipe.check()
    if getattr(run.config.data, "train", None) and len(recipe.val) < recipe.least_val:
        notify(
            f"{recipe.val.origin}: the size of the validation set is only {len(recipe.val)}, too "
            f"few to select a checkpoint by, or to stop by: give more with --data.val, or a larger "
            f"--data.val-share"
        )
    with report_slow(notify, "preparing vocabularies, labels and scales"):
        world.run_on_main(partial(opened.start, lambda: recipe.fit(recipe.train)))
    is_new = world.run_on_main(lambda: not list_checkpoints(folder))
    if is_new:
        world.run_on_main(partial(recipe.pretrain, folder))
    recipe.open(folder / ARTIFACTS)
    with report_slow(notify, "encoding the data"):
        batches = recipe.batches()
        recipe.check_test()
    replaced = tuple(f"model.core.{name}" for name in recipe.parts())
    replace(recipe.entry, unused=replaced).check(run.config)
    torch.manual_seed(run.seed)
    model = recipe.model()
    recipe.check_model(model)
    training = run.config.train
    if run.init is not None and is_new:
        notify(copy_parameters(model, run.init, folder))
        notify(
            f"fine-tuning with --train.lr {training.lr:g} --train.warmup {training.warmup:g} "
            f"--train.steps {'none' if training.steps is None else training.steps}"
        )
    if training.steps is not None and training.warmup >= training.steps:
        notify(
            f"--train.warmup {training.warmup:,} is not shorter than the run of {training.steps:,} "
            f"steps: the learning rate ends before or at its peak; a tenth of the steps is usual"
        )
    size = f"model with {sum(map(torch.numel, model.parameters())):,} parameters"
    notify("; ".join(filter(None, (size, recipe.describe()))))
    notify(f"precision {training.precision}")
    if training.precision == "bfloat16" and emulates_bfloat16(world.device):
        notify(
            f"{world.device} has no bfloat16 instructions and emulates them, which usually takes "
            f"longer than --train.precision float32"
        )
    try:
        return fit(
            model,
            batches,
            config=training,
            folder=folder,
            seed=run.seed,
            validate=recipe.measure,
            metric=recipe.metric,
            maximize=recipe.higher_is_better,
            fingerprint=training_fingerprint(run),
            unit=recipe.unit,
            until=until,
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        by_count, steps = "train.batch_tokens" in recipe.entry.unused, list_checkpoints(folder)
        option = "--batch" if by_count else "--train.batch-tokens"
        last = f"The last checkpoint is {steps[-1]}" if steps else "There is no checkpoint yet"
        raise UserError(
            f"not enough memory on {world.device}: {error or 'an allocation failed'}. A smaller "
            f"{option} in another run folder takes less, with a larger --train.accumulate in "
            f"steps of the same size. {last}"
        ) from error


def _make_report(
    folder: Path, recipe: Recipe[Any], result: Result, *, device: str, notify: Callable[[str], None]
) -> dict[str, Any]:
    run, progress = recipe.run, result.progress
    trained = load(folder, recipe=run.own, device=device, notify=notify)
    if calibrated := recipe.calibrate(trained._model):
        tensors = {name: value.cpu() for name, value in tensors_of(trained._model).items()}
        write_tensors(folder / "model.safetensors", tensors, ties=ties_of(trained._model))
    test = None
    if trained.recipe.has_test():
        with report_slow(notify, "evaluating on the test data"):
            test = trained.evaluate()
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "config": to_plain(run.config),
        "parameters": sum(value.numel() for value in trained._model.parameters()),
        "training": {
            "stop_reason": result.stop_reason,
            "selected": result.selected,
            "steps": progress.step,
            "epochs": progress.epoch,
            "target_tokens": progress.tokens,
            "minutes": progress.seconds / 60,
        },
        "validation": {**result.metrics, **calibrated},
        "test": test,
    }


def _discard(_text: str) -> None:
    """Discard a message: `notify` of processes other than the main one, and of a quiet run."""
