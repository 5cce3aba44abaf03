"""Benchmark of a run: the machine, training, inference, and profiles of both. The run folder is
only read."""

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.bench.inference import MANY, find_inputs, inference_modes, measure_mode, profile_mode
from regard.bench.machine import measure_machine, merge_best, peak_gflops
from regard.bench.training import measure_training
from regard.errors import UserError
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load


def bench(
    folder: str | Path,
    *,
    device: str = "cpu",
    engines: Sequence[str] = ("auto",),
    seconds: float = 2.0,
    batches: int = 8,
    inputs: Sequence[Any] = (),
    notify: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure the speed of a run on this machine; the result can be written as JSON.

    engines: inference engines (the result has their names, also the one that auto selects);
    training always uses torch.
    seconds: duration of each of about ten measurements.
    batches: maximum number of different training batches.
    inputs:  inputs of `predict`; the run's test or validation data if not given.
    notify:  called with a message when a measurement starts, or is not possible.
    Raises:  UserError as `load`. If data are missing, an entry `missing` names them.
    """
    reference = load(folder, engine="torch", device=device, notify=notify)
    models = {}
    for engine in dict.fromkeys(engines):
        trained = (
            reference
            if engine == "torch"
            else load(folder, engine=engine, device=device, notify=notify)
        )
        models[trained.engine.name if engine == "auto" else engine] = trained
    weights = list(reference._model.parameters())
    size, compute_device = sum(value.nbytes for value in weights), weights[0].device
    notify("measuring the machine")
    machine = measure_machine(compute_device, size=size, seconds=seconds / 2)
    notify("measuring training")
    training: dict[str, Any]
    try:
        training = measure_training(
            reference.recipe,
            reference._model,
            compute_device,
            seconds=seconds,
            most_batches=batches,
        )
    except (UserError, OSError) as error:
        training = {"missing": _message(error)}
    inference = _measure_inference(
        models, reference, inputs, compute_device, seconds=seconds, notify=notify
    )
    notify("measuring the machine again")
    machine = merge_best(machine, measure_machine(compute_device, size=size, seconds=seconds / 2))
    if "gflops" in training:
        training["limit_gflops"] = peak_gflops(machine, training["precision"])
        training["percent_of_limit"] = 100 * training["gflops"] / training["limit_gflops"]
    for mode in inference.get("modes", ()):
        for name in ("memory_read", "parameters_read"):
            share = mode["single"]["parameters_read_gb_s"] / machine[f"{name}_gb_s"]
            mode["single"][f"percent_of_{name}"] = 100 * share
    return {
        "run": str(folder),
        "recipe": reference.run.recipe,
        "regard": __version__,
        "python": platform.python_version(),
        "parameters": sum(value.numel() for value in weights),
        "parameters_mb": size / 1e6,
        "machine": machine,
        "training": training,
        "inference": inference,
    }


def _measure_inference(
    models: dict[str, TrainedRun],
    reference: TrainedRun,
    inputs: Sequence[Any],
    device: torch.device,
    *,
    seconds: float,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    try:
        inputs, origin = find_inputs(reference, inputs, most=MANY, notify=notify)
    except (UserError, OSError) as error:
        return {"missing": _message(error)}
    modes, profiles = [], []
    for engine, trained in models.items():
        for mode in inference_modes(trained):
            notify(f"measuring {mode.name}" + (f" by {engine}" if len(models) > 1 else ""))
            modes.append(
                {
                    "engine": engine,
                    **measure_mode(trained, reference, inputs, mode, device, seconds=seconds),
                }
            )
        mode = inference_modes(trained)[0]
        profiles.append(
            {"engine": engine, **profile_mode(trained, inputs, mode, device, seconds=seconds)}
        )
    return {"inputs": len(inputs), "input_source": origin, "modes": modes, "profiles": profiles}


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
