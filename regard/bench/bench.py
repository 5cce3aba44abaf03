"""Benchmark of a run, which is only read: the machine, training, inference, and their profiles."""

import copy
import math
import platform
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from regard import __version__
from regard.bench.machine import measure_machine, time_call
from regard.bench.profile import count_flops, profile_call
from regard.decode.config import DecodeConfig, SampleConfig
from regard.errors import UserError
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from regard.training.average import MovingAverage
from regard.training.distribution import Replica, World
from regard.training.optimizer import build_optimizers
from regard.training.precision import resolve_precision
from regard.training.step import add_gradients

MAX_BATCH = 64
"""Maximum number of inputs in a batch."""
MAX_SINGLE = 16
"""Maximum number of inputs that are answered one at a time."""
MAX_NEW_TOKENS = 50


def bench(
    folder: Path, options: Any, inputs: Sequence[Any], notify: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the speed of a run on this machine; the result can be written as JSON.

    options: BenchOptions of the command line. Training always uses torch.
    inputs:  inputs of `predict`; the run's test data if there are none.
    notify:  called with a message when a measurement starts.
    Raises:  UserError as `load`. If data are missing, an entry `missing` has the reason.
    """
    device, seconds = options.device, options.seconds
    reference = load(folder, engine="torch", device=device, notify=notify)
    weights = list(reference._model.parameters())
    target = weights[0].device
    results = {
        "run": str(folder),
        "recipe": reference.run.recipe,
        "regard": __version__,
        "python": platform.python_version(),
        "parameters": sum(value.numel() for value in weights),
        "parameters_mb": sum(value.nbytes for value in weights) / 1e6,
    }
    notify("measuring the machine")
    results["machine"] = measure_machine(target, seconds=seconds / 4)
    notify("measuring training")
    try:
        results["training"] = measure_training(
            reference.recipe, reference._model, target, seconds=seconds, max_batches=options.batches
        )
    except (UserError, OSError) as error:
        results["training"] = {"missing": str(error)}
    results["inference"] = []
    try:
        first = islice(inputs or reference._read_test(reference.recipe).inputs, MAX_BATCH)
        inputs = [item for item in first if not isinstance(item, str) or item.strip()]
        if not inputs:
            raise UserError("all inputs are empty")
    except (UserError, OSError) as error:
        results["inference_missing"] = str(error)
        return results
    for name in dict.fromkeys(options.engine):
        trained = load(folder, engine=name, device=device, notify=notify)
        for mode, decoding in inference_modes(trained).items():
            notify(f"measuring {mode} by {trained.engine.name}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `predict` reports unusual inputs
                rates = measure_inference(trained, inputs, decoding, target, seconds=seconds)
            results["inference"].append({"mode": mode, "engine": trained.engine.name} | rates)
    return results


def measure_training(
    recipe: Recipe, model: nn.Module, device: torch.device, *, seconds: float, max_batches: int
) -> dict[str, Any]:
    """Time and profile training steps as `regard train` makes them, with a copy of the model.
    Raises UserError or OSError if the data cannot be read."""
    batches = recipe.batches()
    config = recipe.run.config.train
    precision = resolve_precision(config.precision, device)
    plan = batches.plan(0)
    steps = range(0, len(plan), config.accumulate)
    # All over the epoch.
    chosen = steps[:: max(1, len(steps) // max_batches)][:max_batches]
    groups = [plan[first : first + config.accumulate] for first in chosen]
    world = World(device=device)
    replica = Replica(copy.deepcopy(model).train(), world, shard="none", compiled=config.compile)
    optimizers = build_optimizers(replica.model, config)
    average = MovingAverage(replica.model, decay=config.ema) if config.ema else None

    def step_all() -> int:
        """Make all steps; return the number of their targets."""
        targets = 0
        for number, group in enumerate(groups, start=1):
            _, count = add_gradients(
                replica, batches, group, epoch=0, step=number, seed=1, precision=precision
            )
            clip_grad_norm_(replica.model.parameters(), config.clip or math.inf)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if average:
                average.update(number)
            targets += count
        return targets

    targets = step_all()
    # The operators of a compiled step are not seen by the counter.
    flops = 0 if config.compile else count_flops(step_all)
    duration = time_call(step_all, seconds=seconds)
    examples = sum(len(rows) for group in groups for rows in group)
    return {
        "precision": precision,
        "steps_per_epoch": len(steps),
        "batches": len(groups),
        "ms_per_step": 1e3 * duration / len(groups),
        "examples_per_second": examples / duration,
        "targets_per_second": targets / duration,
        "gflop_per_step": flops / len(groups) / 1e9,
        "gflops": flops / duration / 1e9,
        "profile": profile_call(step_all, device),
    }


def inference_modes(trained: TrainedRun) -> dict[str, dict[str, Any]]:
    """Return the options of `predict` to measure: greedy search, and the run's own beam if any."""
    decode = getattr(trained.config, "decode", None)
    sampling = getattr(trained.config, "sample", None)
    if isinstance(decode, DecodeConfig):
        modes: dict[str, dict[str, Any]] = {"greedy": {"beam": 1}}
        if decode.beam > 1:
            modes[f"beam {decode.beam}"] = {"beam": decode.beam}
        return modes
    if isinstance(sampling, SampleConfig):
        length = min(MAX_NEW_TOKENS, sampling.length)
        return {f"{length} new tokens": {"length": length}}
    return {"answers": {}}


def measure_inference(
    trained: TrainedRun,
    inputs: Sequence[Any],
    options: dict[str, Any],
    device: torch.device,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Time `predict` one input at a time and with a batch, and profile it one at a time."""
    batch = list(inputs[:MAX_BATCH])
    single = batch[:MAX_SINGLE]

    def answer_each() -> None:
        for item in single:
            trained.predict([item], **options)

    answer_each()
    alone = time_call(answer_each, seconds=seconds) / len(single)
    together = time_call(partial(trained.predict, batch, **options), seconds=seconds) / len(batch)
    return {
        "inputs": len(single),
        "ms_per_answer": 1e3 * alone,
        "answers_per_second": 1 / alone,
        "batch": len(batch),
        "batched_answers_per_second": 1 / together,
        "profile": profile_call(answer_each, device),
    }
