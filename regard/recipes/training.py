"""Training of a run from its settings to its report.

    RUN/run.json                      settings
    RUN/...                           files computed from the training data (vocabularies, labels, scales)
    RUN/learned.json                  fingerprints of these files, and digests of the data
    RUN/model.safetensors             final parameters
    RUN/report.json                   test scores and some outputs, written when the run is finished
    RUN/checkpoints, log.jsonl, tb    checkpoints and logs of the training, see regard.train

Everything specific to a recipe is in its class (regard.recipes.base.recipe.Recipe).
"""

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import UserError
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import Run, data_paths, find_moved_data, training_fingerprint
from regard.recipes.learned_files import check_data, check_learned, learn
from regard.recipes.load import create_recipe, load
from regard.recipes.run_folder import check_claim, check_own_files, claim, clean, has_begun, read_run, release
from regard.settings.tree import find_differences, to_plain
from regard.system.files import check_file, read_json
from regard.system.fingerprints import Content, add_checksum, record_digests, summarize, verify_checksum
from regard.system.lock import DirectoryChangedError, RunDirectory, lock_directory
from regard.system.model_size import COPIES_IN_TRAINING, check_model_fits
from regard.system.pipes import cache_named_pipes
from regard.system.writing import write_atomically
from regard.train.distribution import World, join_process_group
from regard.train.loop import Result, fit
from regard.train.precision import Precision, resolve_precision

_REPORT = "report.json"


class RunResult(NamedTuple):
    """Outcome of `train` on the calling process."""

    report: dict[str, Any] | None
    """Content of report.json; None if interrupted, and on processes other than the main one."""
    is_interrupted: bool
    was_finished: bool
    """True if the run was finished before, so that nothing was done."""


def train(
    folder: str | Path, run: Run, *, threads: int | None = None, notify: Callable[[str], None] = print
) -> RunResult:
    """Train a run in its folder, resuming from its last checkpoint if there is one, and evaluate it on its test data.

    The precision `auto` becomes the one the run started with, or else the faster one here; run.json records it.

    threads: number of CPU threads; torch's default if None.
    notify:  called with progress messages, on the main process.
    Raises:  UserError if the folder holds another run, another process trains in it, or the data is not usable or was
             edited since the run started; DirectoryChangedError, after a save, if `folder` now names another directory;
             Diverged at a NaN loss. A folder created for the run is removed if nothing was written to it.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(folder)
    with join_process_group(run.config.train.device) as world, cache_named_pipes(), ExitStack() as stack:
        notify = notify if world.is_main else _discard
        requested = run
        run, reason = world.run_on_main(lambda: _resolve_precision(folder, requested, world.device))
        is_resumed = world.run_on_main(lambda: check_claim(folder, run))
        report = world.run_on_main(lambda: _load_report(folder, run, notify) if is_resumed else None)
        if report:
            return RunResult(report if world.is_main else None, is_interrupted=False, was_finished=True)
        directory = world.run_on_main(lambda: stack.enter_context(_lock_folder(folder)))
        if is_resumed:
            notify(f"continuing the run in {folder}")
        result = _fit(directory, run, world, notify, reason=reason)
        if result.is_interrupted or not world.is_main:
            return RunResult(None, is_interrupted=result.is_interrupted, was_finished=False)
        report = _make_report(directory.path, run, result, device=str(world.device), notify=notify)
        content = json.dumps(add_checksum(report), indent=2, ensure_ascii=False) + "\n"
        directory.write(lambda root: write_atomically(root / _REPORT, content))
        directory.check("it holds this finished run")
    return RunResult(report, is_interrupted=False, was_finished=False)


@contextmanager
def _lock_folder(folder: Path) -> Generator[RunDirectory, None, None]:
    """Create and lock the folder for this process; folders created here are removed again if they stay empty."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock_directory(folder) as directory:
            check_own_files(directory.path)
            clean(directory.path)
            try:
                yield directory
            finally:
                with suppress(OSError, DirectoryChangedError):  # files that could not be removed earlier
                    clean(directory.path)
    finally:
        with suppress(OSError):
            for path in created:
                path.rmdir()


def _resolve_precision(folder: Path, run: Run, device: torch.device) -> tuple[Run, str]:
    """Return the run with `auto` replaced by the precision to use, and the reason for it."""
    setting, earlier = run.config.train.precision, "auto"
    if setting == "auto" and (folder / "run.json").exists():
        before = read_run(folder)
        others = find_differences(training_fingerprint(before), training_fingerprint(run)).keys() - {"train.precision"}
        if has_begun(folder) or (before.recipe == run.recipe and not others):
            earlier = before.config.train.precision
    if earlier == "auto":
        precision = resolve_precision(setting, device)
    else:
        precision = Precision(earlier, "the run started with it")
    config = replace(run.config, train=replace(run.config.train, precision=precision.name))
    return replace(run, config=config), precision.reason


def _fit(directory: RunDirectory, run: Run, world: World, notify: Callable[[str], None], *, reason: str) -> Result:
    recipe = create_recipe(run, notify)
    with record_digests() as digests:
        recipe.check()
    by_ending = getattr(run.config.data, "format", "auto") == "auto"
    data = summarize(digests, data_paths(run), by_ending=by_ending)
    is_new = world.run_on_main(lambda: directory.write(lambda root: _claim_with_data(root, run, recipe, data, notify)))
    check_learned(directory.path)
    if is_new:
        world.run_on_main(lambda: recipe.pretrain(directory.path))
    try:
        recipe.open(directory.path)
        batches = recipe.batches()
        torch.manual_seed(run.seed)
        with check_model_fits(copies=COPIES_IN_TRAINING):
            model = recipe.model()
    except Exception:
        if is_new and world.is_main and not has_begun(directory.path):
            release(directory.path)
        raise
    notify(_describe(recipe, model))
    notify(f"precision {run.config.train.precision}" + (f": {reason}" if reason else ""))
    return fit(
        model,
        batches,
        config=run.config.train,
        folder=directory,
        seed=run.seed,
        validate=recipe.measure,
        metric=recipe.metric,
        maximize=recipe.higher_is_better,
        fingerprint=training_fingerprint(run),
    )


def _claim_with_data(
    folder: Path, run: Run, recipe: Recipe, data: Mapping[str, Content], notify: Callable[[str], None]
) -> bool:
    """Claim the folder after the data has been checked. Return True if training has no checkpoint yet.

    Vocabularies, labels and scales are not written again once training started with them.
    """
    if not has_begun(folder):
        learn(folder, recipe.learn, claim=lambda: claim(folder, run), data=data)
        return True
    check_data(folder, data)
    check_learned(folder)
    for name, (before, now) in find_moved_data(read_run(folder), run).items():
        notify(f"{name} has moved from {before} to {now}; its content is the same")
    claim(folder, run)
    return not any((folder / "checkpoints").glob("step-*"))


def _make_report(
    folder: Path, run: Run, result: Result, *, device: str, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Return the content of report.json, evaluated with the saved parameters."""
    progress = result.progress
    trained = load(folder, device=device, notify=notify)
    test = None
    if trained.recipe.has_test():
        upper_bound = trained.recipe.upper_bound()
        test = trained.evaluate() | ({} if upper_bound is None else {"upper_bound": upper_bound})
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
        "validation": result.metrics,
        "test": test,
    }


def _load_report(folder: Path, run: Run, notify: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the report of a run that is finished with exactly these settings, else None."""
    path = folder / _REPORT
    for name in (_REPORT, "model.safetensors", "log.jsonl"):
        # These will be written: report a folder or pipe of that name before training, not after it.
        if os.path.lexists(folder / name):
            check_file(folder / name)
    if not path.exists() or read_run(folder).config != run.config:
        return None
    try:
        report = read_json(path)
        if not isinstance(report, dict):
            raise UserError(f"{path}: damaged: must be a JSON object, got {type(report).__name__}")
        report = verify_checksum(path, report)
        same = report.get("config") == to_plain(run.config)
        training, test = report.get("training"), report.get("test")
        if same and not (isinstance(training, dict) and "stop_reason" in training and isinstance(test, dict | None)):
            raise UserError(f"{path}: damaged: it must hold training and test")
    except UserError as error:
        notify(f"{error}; it is written again")
        return None
    return report if same and (folder / "model.safetensors").exists() else None


def _describe(recipe: Recipe, model: nn.Module) -> str:
    size = f"model with {sum(parameter.numel() for parameter in model.parameters()):,} parameters"
    details = recipe.describe()
    return f"{size}; {details}" if details else size


def _discard(_text: str) -> None:
    """Discard a message: `notify` of processes other than the main one."""
