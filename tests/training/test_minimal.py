"""Rows without targets, and the shortest ones: every parameter takes part in every batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.minimal import NAMES, Rows, model_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rows", [(1, 3), (0, 1, 2, 3)], ids=["empty", "mixed"])
@pytest.mark.parametrize(("core", "writer"), NAMES)
def test_every_parameter_has_a_gradient_without_targets(
    core: str, writer: str, rows: tuple[int, ...]
) -> None:
    model = model_of(core, writer)
    loss = model.loss(Rows(writer).collate(0, rows))
    loss.total.backward()
    assert loss.total.isfinite()
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name


def test_gradients_of_two_processes_equal_those_of_one(request: pytest.FixtureRequest) -> None:
    # The rows of the second process have no targets.
    slow = ["--slow"] if request.config.getoption("--slow") else []
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m tests.training.minimal"
    result = subprocess.run(
        [sys.executable, *launch.split(), *slow],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
