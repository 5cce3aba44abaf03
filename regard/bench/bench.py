"""Benchmark of a run: the machine, training, inference, and profiles of both. The run folder is only read."""

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.bench.engines import load_with_engine
from regard.bench.inference import MANY, inference_modes, measure_mode, profile_mode
from regard.bench.inputs import find_inputs
from regard.bench.machine import measure_machine, measure_read_rate, merge_best, peak_gflops
from regard.bench.training import measure_training
from regard.bench.weight_reads import bandwidth_share
from regard.errors import UserError
from regard.recipes.base.recipe import TrainedRun


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

    engines: inference engines (the result has their names, also the one that auto selects); training always uses torch.
    seconds: duration of each of about ten measurements.
    batches: maximum number of different training batches.
    inputs:  inputs of `predict`; the run's test or validation data if not given.
    notify:  called with a message when a measurement starts, or is not possible.
    Raises:  UserError as `load`. If data are missing, an entry `missing` names them.
    """
    folder = Path(folder)
    runs = {engine: load_with_engine(engine, folder, device=device, notify=notify) for engine in dict.fromkeys(engines)}
    models = {trained.engine.name if engine == "auto" else engine: trained for engine, trained in runs.items()}
    first = next(iter(models.values()))
    weights = list(first._model.parameters())
    size, compute_device = sum(value.nbytes for value in weights), weights[0].device
    notify("measuring the machine")
    machine = _measure_machine(size, compute_device, seconds=seconds / 2)
    notify("measuring training")
    training = _measure_training(first, compute_device, seconds=seconds, batches=batches)
    inference = _measure_inference(models, inputs, compute_device, seconds=seconds, notify=notify)
    notify("measuring the machine again")
    machine = merge_best(machine, _measure_machine(size, compute_device, seconds=seconds / 2))
    _add_shares(training, inference, machine)
    return {
        "run": str(folder),
        "recipe": first.run.recipe,
        "regard": __version__,
        "python": platform.python_version(),
        "parameters": sum(value.numel() for value in weights),
        "parameters_mb": size / 1e6,
        "machine": machine,
        "training": training,
        "inference": inference,
    }


def _measure_machine(weights: int, device: torch.device, *, seconds: float) -> dict[str, Any]:
    return measure_machine(device, seconds=seconds) | {
        "parameters_read_gb_s": measure_read_rate(weights, device, seconds=seconds)
    }


def _measure_training(trained: TrainedRun, device: torch.device, *, seconds: float, batches: int) -> dict[str, Any]:
    try:
        return measure_training(trained.recipe, trained._model, device, seconds=seconds, most_batches=batches)
    except (UserError, OSError) as error:
        return {"missing": _message(error)}


def _measure_inference(
    models: dict[str, TrainedRun],
    inputs: Sequence[Any],
    device: torch.device,
    *,
    seconds: float,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    first = next(iter(models.values()))
    try:
        inputs, origin = find_inputs(first, inputs, most=MANY, notify=notify)
    except (UserError, OSError) as error:
        return {"missing": _message(error)}
    modes, profiles = [], []
    for engine, trained in models.items():
        for mode in inference_modes(trained):
            notify(f"measuring {mode.name}" + (f" by {engine}" if len(models) > 1 else ""))
            modes.append({"engine": engine, **measure_mode(trained, inputs, mode, device, seconds=seconds)})
        mode = inference_modes(trained)[0]
        profiles.append({"engine": engine, **profile_mode(trained, inputs, mode, device, seconds=seconds)})
    return {"inputs": len(inputs), "input_source": origin, "modes": modes, "profiles": profiles}


def _add_shares(training: dict[str, Any], inference: dict[str, Any], machine: dict[str, Any]) -> None:
    """Add the measurements as percentages of the machine's limits."""
    if "gflops" in training:
        training["limit_gflops"] = peak_gflops(machine, training["precision"])
        training["percent_of_limit"] = 100 * training["gflops"] / training["limit_gflops"]
    for mode in inference.get("modes", ()):
        alone = mode["single"]
        read = alone["parameters_read_gb_s"] * 1e9
        for name in ("memory_read", "parameters_read"):
            alone[f"percent_of_{name}"] = bandwidth_share(read, 1.0, machine[f"{name}_gb_s"])


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
