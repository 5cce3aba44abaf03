"""A run from its settings to its report: data, model, training, test.

    RUN/run.json                      the settings
    RUN/...                           what the task learned from its data (vocabularies, labels, scales)
    RUN/model.safetensors             the weights to use
    RUN/report.json                   test scores and some outputs; it is there when the run is finished
    RUN/checkpoints, log.jsonl, tb    of the training, see regard.train

A recipe gives its task (regard.recipes.task); all else is the same for all recipes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.files import write_atomically
from regard.models.size import TRAINED, fitting_memory
from regard.recipes.folder import Run, claim, decisive
from regard.recipes.settings import plain
from regard.recipes.task import Task, load, task_of
from regard.train.distribution import World, joined
from regard.train.loop import Result, fit

__all__ = ["Ended", "train"]

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

    threads: processor threads to compute with; torch's choice if None.
    tell:    gets a sentence now and then, on the main process.
    Raises:  UserError if the folder holds another run or the data is not usable, Diverged at a NaN loss.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(folder)
    with joined(run.config.train.device) as world:
        say = tell if world.is_main else _nothing
        goes_on = world.share(claim(folder, run) if world.is_main else False)
        report = world.share(_finished(folder, run) if world.is_main else None)
        if report:
            return Ended(report if world.is_main else None, is_interrupted=False, was_finished=True)
        if goes_on:
            say(f"going on with the run in {folder}")
        result = _fit(folder, run, world, say)
        if result.is_interrupted or not world.is_main:
            return Ended(None, is_interrupted=result.is_interrupted, was_finished=False)
        device = str(world.device)
    report = _report(folder, run, result, device=device, tell=say)
    write_atomically(folder / _REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return Ended(report, is_interrupted=False, was_finished=False)


def _fit(folder: Path, run: Run, world: World, say: Callable[[str], None]) -> Result:
    task = task_of(run, say)
    task.check()
    # What was learned stays as it is once training began with it.
    if world.is_main and not any((folder / "checkpoints").glob("step-*")):
        task.learn(folder)
    world.share(None)  # the others wait until it is there
    task.open(folder)
    batches = task.batches()
    torch.manual_seed(run.seed)
    with fitting_memory(copies=TRAINED):
        model = task.model()
    say(_described(task, model))
    return fit(
        model,
        batches,
        config=run.config.train,
        folder=folder,
        seed=run.seed,
        validate=task.measure,
        metric=task.metric,
        maximise=task.maximise,
        fingerprint=decisive(run),
    )


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
        "weights": sum(value.numel() for value in trained.model.parameters()),
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


def _finished(folder: Path, run: Run) -> dict[str, Any] | None:
    """The report of a run that was finished with these very settings."""
    try:
        report = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(report, dict) and report.get("config") == plain(run.config)
    return report if same and (folder / "model.safetensors").exists() else None


def _described(task: Task, model: nn.Module) -> str:
    what = f"model of {sum(value.numel() for value in model.parameters()):,} weights"
    more = task.describe()
    return f"{what}; {more}" if more else what


def _nothing(_text: str) -> None:
    """What processes other than the main one tell."""
