"""Loading of trained runs, and creation of the recipe of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError, warn_caller
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import ARTIFACTS, Run
from regard.recipes.base.trained import TrainedRun
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import read_run
from regard.training.distribution import pick_device
from regard.training.tensors import load_weights


def create_recipe(run: Run, notify: Callable[[str], None]) -> Recipe[Any]:
    """Return the recipe of a run; `notify` is called with a message where data is left out."""
    entry = get_entry(run.own or run.recipe)
    return entry.load_class()(run, notify, entry)


def load(
    folder: str | Path,
    *,
    recipe: str | Entry | None = None,
    device: str = "cpu",
    engine: str = "auto",
    compute_type: str | None = None,
    workers: int | None = None,
    notify: Callable[[str], None] = warn_caller,
    run: Run | None = None,
) -> TrainedRun:
    """Load the trained model of a run folder.

    recipe:  needed for a recipe of your own: its Entry (docs/howto/write-your-own.md).
    device:  cpu, cuda, cuda:1, mps ..., or auto: an accelerator if there is one.
    engine:  the engine that decodes: torch, compiled, or auto; compute_type (such as int8) and
             workers as in `TrainedRun.compile`.
    notify:  called with a message where data is left out, or an input is unusual; warns by default.
    run:     content of run.json, if it was read before.
    Raises:  UserError, naming the file, if the folder is not a run folder, or a file is missing,
             damaged or from a newer version; and as `TrainedRun.compile`. Nothing that a file names
             is imported.
    """
    folder = Path(folder)
    run = read_run(folder, None if recipe is None else get_entry(recipe)) if run is None else run
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise UserError(
            f"{weights} is missing: the run has no weights yet; `regard train` continues it"
        )
    created = create_recipe(run, notify)
    # float32 tensors on the CPU whatever the caller's defaults, whose random state remains.
    dtype, cpu = torch.get_default_dtype(), torch.device("cpu")
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(mode=False), cpu, torch.random.fork_rng(devices=[]):
            created.open(folder / ARTIFACTS)
            model = created.model()
            load_weights(weights, model)
    finally:
        torch.set_default_dtype(dtype)
    trained = TrainedRun(created, model.to(pick_device(device)), folder)
    trained._active.is_owned = True
    if engine != "auto" or compute_type is not None or workers is not None:
        trained.compile(engine, compute_type=compute_type, workers=workers)
    return trained
