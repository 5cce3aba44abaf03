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
from regard.recipes.bench.machine import limit_of, measure_machine, read_rate
from regard.recipes.bench.reads import bandwidth_share
from regard.recipes.bench.training import measure_training
from regard.recipes.bench.using import MANY, look_into, measure_way, ways_of
from regard.recipes.task import Trained

__all__ = ["bench"]


def bench(
    folder: str | Path,
    *,
    device: str = "cpu",
    engines: Sequence[str] = ("torch",),
    seconds: float = 2.0,
    batches: int = 8,
    inputs: Sequence[Any] = (),
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """What this machine reaches for a run, as JSON holds it.

    engines: what answers; training is always torch's.
    seconds: of each of about ten measurements.
    batches: different training batches, at most.
    inputs:  what is asked, as `predict` takes it; the run's test or validation data if not given.
    tell:    gets a sentence when something begins, or cannot be measured.
    Raises:  UserError as `load`. Where data are missing, an entry `missing` says which.
    """
    folder = Path(folder)
    models = {engine: opened_by(engine, folder, device=device, tell=tell) for engine in dict.fromkeys(engines)}
    first = next(iter(models.values()))
    weights = list(first.model.parameters())
    size, where = sum(value.nbytes for value in weights), weights[0].device
    tell("measuring the machine")
    machine = measure_machine(where, seconds=seconds)
    machine["weights_read_gb_s"] = read_rate(size, where, seconds=seconds)
    found = {
        "run": str(folder),
        "recipe": first.run.recipe,
        "regard": __version__,
        "python": platform.python_version(),
        "weights": sum(value.numel() for value in weights),
        "weights_mb": size / 1e6,
        "machine": machine,
        "training": _training(first, machine, where, seconds=seconds, batches=batches, tell=tell),
    }
    return found | {"using": _using(models, inputs, machine, where, seconds=seconds, tell=tell)}


def _training(
    trained: Trained,
    machine: dict[str, Any],
    device: torch.device,
    *,
    seconds: float,
    batches: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    tell("measuring training")
    try:
        found = measure_training(trained.task, trained.model, device, seconds=seconds, most_batches=batches)
    except (UserError, OSError) as error:
        return {"missing": _said(error)}
    found["limit_gflops"] = limit_of(machine, found["precision"])
    found["percent_of_limit"] = 100 * found["gflops"] / found["limit_gflops"]
    return found


def _using(
    models: dict[str, Trained],
    given: Sequence[Any],
    machine: dict[str, Any],
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
            found = measure_way(trained, inputs, way, device, seconds=seconds)
            alone = found["one_by_one"]
            read = alone["weights_read_gb_s"] * 1e9
            for name in ("memory_read_gb_s", "weights_read_gb_s"):
                alone[f"percent_of_{name.removesuffix('_gb_s')}"] = bandwidth_share(read, 1.0, machine[name])
            ways.append({"engine": engine, **found})
        where.append({"engine": engine, **look_into(trained, inputs, ways_of(trained)[0], device, seconds=seconds)})
    return {"inputs": len(inputs), "inputs_from": origin, "ways": ways, "where": where}


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
