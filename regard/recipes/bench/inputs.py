"""What a run is asked while it is measured: inputs of its test data, of its validation data, or given ones."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipes.folder import Run
from regard.recipes.task import Trained, task_of

_WHILE = 5.0


def found_inputs(
    trained: Trained, given: Sequence[Any], *, most: int, tell: Callable[[str], None]
) -> tuple[list[Any], str]:
    """At most so many inputs, and where they are from.

    Raises: UserError saying why there are none.
    """
    if given:
        return list(given[:most]), "given inputs"
    problems = []
    for name, run in (("test data", trained.run), ("validation data", with_validation_as_test(trained.run))):
        if run is None:
            continue
        try:
            reader = trained if run is trained.run else _reread(trained, run, tell)
            return _taken(reader, most), name
        except (ValueError, OSError) as error:
            problems.append(str(error))
    raise UserError("; ".join(dict.fromkeys(problems)))


def with_validation_as_test(run: Run) -> Run | None:
    """The run with its validation data in the place of its test data; None where it names none."""
    config: Any = run.config
    data = config.data
    names = {one.name for one in fields(data)}
    pairs = {f"test{name[3:]}": name for name in names if name.startswith("val") and f"test{name[3:]}" in names}
    if not getattr(data, "val", None):
        return None
    changed = {test: getattr(data, val) for test, val in pairs.items()}
    return replace(run, config=replace(config, data=replace(data, **changed)))


def _reread(trained: Trained, run: Run, tell: Callable[[str], None]) -> Trained:
    task = task_of(run, tell)
    task.open(Path(trained.folder))
    return task.trained(trained._model, trained.folder)


def _taken(trained: Trained, most: int) -> list[Any]:
    """The first inputs that say something, as many as can be read in a while."""
    found: list[Any] = []
    end = time.monotonic() + _WHILE
    for number in range(2 * most):
        try:
            one = trained.test_input(number)
        except UserError:
            if not number:
                raise
            break  # there are not so many
        if not isinstance(one, str | list) or (one.strip() if isinstance(one, str) else one):
            found.append(one)
        if len(found) == most or time.monotonic() > end:
            break
    if not found:
        raise UserError("all inputs are empty")
    return found
