"""Inputs for inference benchmarks: given ones, or those of the test or validation data of the run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipes.base.recipe import TrainedRun
from regard.recipes.base.run import Run
from regard.recipes.load import create_recipe

_MAX_SECONDS = 5.0


def find_inputs(
    trained: TrainedRun, inputs: Sequence[Any], *, most: int, notify: Callable[[str], None]
) -> tuple[list[Any], str]:
    """Return at most `most` inputs and their origin.

    Raises: UserError with the reason if there are none.
    """
    if inputs:
        return list(inputs[:most]), "given inputs"
    problems = []
    for name, run in (("test data", trained.run), ("validation data", with_validation_as_test(trained.run))):
        if run is None:
            continue
        try:
            reader = trained if run is trained.run else _reread(trained, run, notify)
            return _read_inputs(reader, most), name
        except (ValueError, OSError) as error:
            problems.append(str(error))
    raise UserError("; ".join(dict.fromkeys(problems)))


def with_validation_as_test(run: Run) -> Run | None:
    """Return the run with its validation data in place of its test data; None if it has no validation data."""
    config: Any = run.config
    data = config.data
    names = {field.name for field in fields(data)}
    pairs = {f"test{name[3:]}": name for name in names if name.startswith("val") and f"test{name[3:]}" in names}
    if not getattr(data, "val", None):
        return None
    changed = {test: getattr(data, val) for test, val in pairs.items()}
    return replace(run, config=replace(config, data=replace(data, **changed)))


def _reread(trained: TrainedRun, run: Run, notify: Callable[[str], None]) -> TrainedRun:
    recipe = create_recipe(run, notify)
    recipe.open(Path(trained.folder))
    return recipe.build_run(trained._model, trained.folder)


def _read_inputs(trained: TrainedRun, most: int) -> list[Any]:
    """Return the first inputs that are not empty, as many as can be read in a few seconds."""
    inputs: list[Any] = []
    end = time.monotonic() + _MAX_SECONDS
    for number in range(2 * most):
        try:
            item = trained.test_input(number)
        except UserError:
            if not number:
                raise
            break  # there are no more
        if not isinstance(item, str | list) or (item.strip() if isinstance(item, str) else item):
            inputs.append(item)
        if len(inputs) == most or time.monotonic() > end:
            break
    if not inputs:
        raise UserError("all inputs are empty")
    return inputs
