"""A run from its settings to its report: data, model, training, test.

    RUN/run.json                      the settings
    RUN/...                           what the task learned from its data (vocabularies, labels, scales)
    RUN/learned.json                  which files these are, and which data they are of
    RUN/model.safetensors             the weights to use
    RUN/report.json                   test scores and some outputs; it is there when the run is finished
    RUN/checkpoints, log.jsonl, tb    of the training, see regard.train

A recipe gives its task (regard.recipes.task); all else is the same for all recipes.
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

from regard.checksums import sealed, unsealed
from regard.digests import Content, recorded, summary
from regard.errors import UserError
from regard.files import check_file, read_json, write_atomically
from regard.models.size import TRAINED, fitting_memory
from regard.pipes import pipes_kept
from regard.recipes.folder import (
    Run,
    check_claim,
    check_own_files,
    claim,
    clean,
    decisive,
    has_begun,
    moved,
    read_run,
    release,
    sources,
)
from regard.recipes.learned import check_data, check_learned, learn
from regard.recipes.settings import differences, plain
from regard.recipes.task import Task, load, task_of
from regard.train.directory import DirectoryChangedError, RunDirectory, held
from regard.train.distribution import World, joined
from regard.train.loop import Result, fit
from regard.train.precision import Precision, resolve_precision

_REPORT = "report.json"


class Ended(NamedTuple):
    """How a run ended, on the process that asks."""

    report: dict[str, Any] | None
    """What report.json holds; None if interrupted, and on other than the main process."""
    is_interrupted: bool
    was_finished: bool
    """Whether it was finished already, so that nothing had to be done."""


def train(folder: str | Path, run: Run, *, threads: int | None = None, tell: Callable[[str], None] = print) -> Ended:
    """Train a run in its folder, from wherever it stands, and report on its test data.

    The precision `auto` becomes the one that the run began with, or else the faster one here; run.json records it.

    threads: processor threads to compute with; torch's choice if None.
    tell:    gets a sentence now and then, on the main process.
    Raises:  UserError if the folder holds another run, another process trains in it, or the data is not usable or was
             edited since the run began; DirectoryChangedError, after a save, if `folder` has become the name of another
             directory; Diverged at a NaN loss. A folder that was made and got nothing is removed.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(folder)
    with joined(run.config.train.device) as world, pipes_kept(), ExitStack() as stack:
        say = tell if world.is_main else _nothing
        asked = run
        run, reason = world.on_main(lambda: _with_precision(folder, asked, world.device))
        goes_on = world.on_main(lambda: check_claim(folder, run))
        report = world.on_main(lambda: _finished(folder, run, say) if goes_on else None)
        if report:
            return Ended(report if world.is_main else None, is_interrupted=False, was_finished=True)
        directory = world.on_main(lambda: stack.enter_context(_occupied(folder)))
        if goes_on:
            say(f"going on with the run in {folder}")
        result = _fit(directory, run, world, say, reason=reason)
        if result.is_interrupted or not world.is_main:
            return Ended(None, is_interrupted=result.is_interrupted, was_finished=False)
        report = _report(directory.path, run, result, device=str(world.device), tell=say)
        content = json.dumps(sealed(report), indent=2, ensure_ascii=False) + "\n"
        directory.write(lambda root: write_atomically(root / _REPORT, content))
        directory.check("it holds this run, finished")
    return Ended(report, is_interrupted=False, was_finished=False)


@contextmanager
def _occupied(folder: Path) -> Generator[RunDirectory, None, None]:
    """The folder, for this process alone; one that was made for it and got nothing is removed again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with held(folder) as directory:
            check_own_files(directory.path)
            clean(directory.path)
            try:
                yield directory
            finally:
                with suppress(OSError, DirectoryChangedError):  # what could not be removed when its time came
                    clean(directory.path)
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


def _with_precision(folder: Path, run: Run, device: torch.device) -> tuple[Run, str]:
    """Return the run with the precision that it computes in instead of `auto`, and the reason for it."""
    setting, began = run.config.train.precision, "auto"
    if setting == "auto" and (folder / "run.json").exists():
        before = read_run(folder)
        others = differences(decisive(before), decisive(run)).keys() - {"train.precision"}
        if has_begun(folder) or (before.recipe == run.recipe and not others):
            began = before.config.train.precision
    precision = resolve_precision(setting, device) if began == "auto" else Precision(began, "the run began in it")
    config = replace(run.config, train=replace(run.config.train, precision=precision.name))
    return replace(run, config=config), precision.reason


def _fit(directory: RunDirectory, run: Run, world: World, say: Callable[[str], None], *, reason: str) -> Result:
    task = task_of(run, say)
    with recorded() as seen:
        task.check()
    by_ending = getattr(run.config.data, "format", "auto") == "auto"
    data = summary(seen, sources(run), by_ending=by_ending)
    is_new = world.on_main(lambda: directory.write(lambda root: _claimed(root, run, task, data, say)))
    check_learned(directory.path)
    if is_new:
        world.on_main(lambda: task.pretrain(directory.path))
    try:
        task.open(directory.path)
        batches = task.batches()
        torch.manual_seed(run.seed)
        with fitting_memory(copies=TRAINED):
            model = task.model()
    except Exception:
        if is_new and world.is_main and not has_begun(directory.path):
            release(directory.path)
        raise
    say(_described(task, model))
    say(f"precision {run.config.train.precision}" + (f": {reason}" if reason else ""))
    return fit(
        model,
        batches,
        config=run.config.train,
        folder=directory,
        seed=run.seed,
        validate=task.measure,
        metric=task.metric,
        maximize=task.maximize,
        fingerprint=decisive(run),
    )


def _claimed(folder: Path, run: Run, task: Task, data: Mapping[str, Content], say: Callable[[str], None]) -> bool:
    """Make the folder this run's own, now that its data is known to be usable; whether its training has yet to begin.

    What was learned stays as it is once training began with it.
    """
    if not has_begun(folder):
        learn(folder, task.learn, claim=lambda: claim(folder, run), data=data)
        return True
    check_data(folder, data)
    check_learned(folder)
    for name, (then, now) in moved(read_run(folder), run).items():
        say(f"{name} has moved from {then} to {now}; its content is the same")
    claim(folder, run)
    return not any((folder / "checkpoints").glob("step-*"))


def _report(folder: Path, run: Run, result: Result, *, device: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """What report.json holds, tested with the weights as they lie in the folder."""
    progress = result.progress
    trained = load(folder, device=device, tell=tell)
    test = None
    if trained.task.has_test():
        ceiling = trained.task.ceiling()
        test = trained.evaluate() | ({} if ceiling is None else {"ceiling": ceiling})
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "config": plain(run.config),
        "weights": sum(value.numel() for value in trained._model.parameters()),
        "training": {
            "stopped": result.stopped,
            "chosen": result.chosen,
            "steps": progress.step,
            "epochs": progress.epoch,
            "target_tokens": progress.tokens,
            "minutes": progress.seconds / 60,
        },
        "validation": result.metrics,
        "test": test,
    }


def _finished(folder: Path, run: Run, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The report of a run that was finished with these very settings."""
    path = folder / _REPORT
    for name in (_REPORT, "model.safetensors", "log.jsonl"):
        # Each will be written; one that is a folder or a pipe would be found out after all the training.
        if os.path.lexists(folder / name):
            check_file(folder / name)
    if not path.exists() or read_run(folder).config != run.config:
        return None
    try:
        report = read_json(path)
        if not isinstance(report, dict):
            raise UserError(f"{path}: damaged: must be a JSON object, but is {type(report).__name__}")
        report = unsealed(path, report)
        same = report.get("config") == plain(run.config)
        training, test = report.get("training"), report.get("test")
        if same and not (isinstance(training, dict) and "stopped" in training and isinstance(test, dict | None)):
            raise UserError(f"{path}: damaged: it must hold training and test")
    except UserError as error:
        say(f"{error}; it is written anew")
        return None
    return report if same and (folder / "model.safetensors").exists() else None


def _described(task: Task, model: nn.Module) -> str:
    what = f"model of {sum(value.numel() for value in model.parameters()):,} weights"
    more = task.describe()
    return f"{what}; {more}" if more else what


def _nothing(_text: str) -> None:
    """What processes other than the main one tell."""
