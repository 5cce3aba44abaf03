"""A text-to-text run from its settings to its report: data, model, training, test.

    RUN/run.json                      the settings
    RUN/tokeniser.json                or source_tokeniser.json and target_tokeniser.json
    RUN/model.safetensors             the weights to use
    RUN/report.json                   test scores and some outputs; it is there when the run is finished
    RUN/checkpoints, log.jsonl, tb    of the training, see regard.train

A recipe gives its data and metric (regard.recipes.material); all else is the same for all recipes.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data.batches import TokenBatches
from regard.models.model import Model
from regard.recipes.config import fitting
from regard.recipes.folder import Run, claim, decisive, write_atomically
from regard.recipes.material import Codec, Material
from regard.recipes.scoring import scores
from regard.recipes.settings import plain
from regard.recipes.trained import load, material_of, new_model
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
    material = material_of(run, say)
    material.check()
    if world.is_main:
        _keep_codec(folder, material)
    world.share(None)  # the others wait until the tokenisers are there
    codec = Codec.load(folder)
    batches = TokenBatches(material.training(codec), batch_tokens=run.config.train.batch_tokens, seed=run.seed)
    torch.manual_seed(run.seed)
    model = new_model(run.config, codec)
    say(_described(model, codec))
    return fit(
        model,
        batches,
        config=run.config.train,
        folder=folder,
        seed=run.seed,
        validate=_validation(run, material, codec),
        metric=material.metric.name,
        maximise=True,
        fingerprint=decisive(run),
    )


def _keep_codec(folder: Path, material: Material) -> None:
    """Learn the tokenisers, unless training began with some already."""
    if not any((folder / "checkpoints").glob("step-*")):
        material.codec().save(folder)


def _validation(run: Run, material: Material, codec: Codec) -> Callable[[nn.Module], dict[str, float]]:
    """What the training loop calls to measure a model: greedy search on a sample, the loss on all."""
    texts = material.held_out("val", codec)
    assert texts is not None
    decode = fitting(dataclasses.replace(run.config.decode, beam=1, n_best=1), run.config.model)
    names = (material.metric.name, "nll", "perplexity")

    def validate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Model)
        settings = {"decode": decode, "sample": run.config.val_sample}
        found = scores(model, texts, codec=codec, metric=material.metric, **settings)
        return {name: found[name] for name in names}

    return validate


def _report(folder: Path, run: Run, result: Result, *, device: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """What report.json holds, tested with the weights as they lie in the folder."""
    progress = result.progress
    trained = load(folder, device=device)
    material = material_of(run, tell)
    test = None
    if material.held_out("test", trained.codec) is not None:
        ceiling = material.ceiling()
        test = trained.evaluate(tell=tell) | ({} if ceiling is None else {"ceiling": ceiling})
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


def _described(model: Model, codec: Codec) -> str:
    count = sum(value.numel() for value in model.parameters())
    pieces = f"{len(codec.source):,} source and {len(codec.target):,} target pieces"
    if codec.source is codec.target:
        pieces = f"{len(codec.source):,} pieces in one vocabulary"
    return f"model of {count:,} weights; {pieces}"


def _nothing(_text: str) -> None:
    """What processes other than the main one tell."""
