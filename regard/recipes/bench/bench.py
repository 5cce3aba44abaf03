"""A whole measurement of a run: the machine, training, using, where the time goes. The run's folder is only read."""

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.errors import UserError
from regard.recipes.bench.engines import opened_by
from regard.recipes.bench.inputs import found_inputs
from regard.recipes.bench.machine import better, limit_of, measure_machine, read_rate
from regard.recipes.bench.reads import bandwidth_share
from regard.recipes.bench.training import measure_training
from regard.recipes.bench.using import MANY, look_into, measure_way, ways_of
from regard.recipes.task import Trained


def bench(
    folder: str | Path,
    *,
    device: str = "cpu",
    engines: Sequence[str] = ("auto",),
    seconds: float = 2.0,
    batches: int = 8,
    inputs: Sequence[Any] = (),
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """What this machine reaches for a run, as JSON holds it.

    engines: what answers (named in what is found, also where auto chose it); training is always torch's.
    seconds: of each of about ten measurements.
    batches: different training batches, at most.
    inputs:  what is asked, as `predict` takes it; the run's test or validation data if not given.
    tell:    gets a sentence when something begins, or cannot be measured.
    Raises:  UserError as `load`. Where data are missing, an entry `missing` says which.
    """
    folder = Path(folder)
    opened = {engine: opened_by(engine, folder, device=device, tell=tell) for engine in dict.fromkeys(engines)}
    models = {trained.engine.name if engine == "auto" else engine: trained for engine, trained in opened.items()}
    first = next(iter(models.values()))
    weights = list(first._model.parameters())
    size, where = sum(value.nbytes for value in weights), weights[0].device
    tell("measuring the machine")
    machine = _machine(size, where, seconds=seconds / 2)
    tell("measuring training")
    training = _training(first, where, seconds=seconds, batches=batches)
    using = _using(models, inputs, where, seconds=seconds, tell=tell)
    tell("measuring the machine once more")
    machine = better(machine, _machine(size, where, seconds=seconds / 2))
    _add_shares(training, using, machine)
    return {
        "run": str(folder),
        "recipe": first.run.recipe,
        "regard": __version__,
        "python": platform.python_version(),
        "weights": sum(value.numel() for value in weights),
        "weights_mb": size / 1e6,
        "machine": machine,
        "training": training,
        "using": using,
    }


def _machine(weights: int, device: torch.device, *, seconds: float) -> dict[str, Any]:
    found = measure_machine(device, seconds=seconds)
    return found | {"weights_read_gb_s": read_rate(weights, device, seconds=seconds)}


def _training(trained: Trained, device: torch.device, *, seconds: float, batches: int) -> dict[str, Any]:
    try:
        return measure_training(trained.task, trained._model, device, seconds=seconds, most_batches=batches)
    except (UserError, OSError) as error:
        return {"missing": _said(error)}


def _using(
    models: dict[str, Trained],
    given: Sequence[Any],
    device: torch.device,
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    first = next(iter(models.values()))
    try:
        inputs, origin = found_inputs(first, given, most=MANY, tell=tell)
    except (UserError, OSError) as error:
        return {"missing": _said(error)}
    ways, where = [], []
    for engine, trained in models.items():
        for way in ways_of(trained):
            tell(f"measuring {way.name}" + (f" by {engine}" if len(models) > 1 else ""))
            ways.append({"engine": engine, **measure_way(trained, inputs, way, device, seconds=seconds)})
        where.append({"engine": engine, **look_into(trained, inputs, ways_of(trained)[0], device, seconds=seconds)})
    return {"inputs": len(inputs), "inputs_from": origin, "ways": ways, "where": where}


def _add_shares(training: dict[str, Any], using: dict[str, Any], machine: dict[str, Any]) -> None:
    """What was measured, as shares of the machine's limits."""
    if "gflops" in training:
        training["limit_gflops"] = limit_of(machine, training["precision"])
        training["percent_of_limit"] = 100 * training["gflops"] / training["limit_gflops"]
    for one in using.get("ways", ()):
        alone = one["one_by_one"]
        read = alone["weights_read_gb_s"] * 1e9
        for name in ("memory_read", "weights_read"):
            alone[f"percent_of_{name}"] = bandwidth_share(read, 1.0, machine[f"{name}_gb_s"])


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
