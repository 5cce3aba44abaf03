"""Finished runs of each core, trained once; shared by the tests of recipes and bench."""

from pathlib import Path

import pytest

from regard.cli.main import main
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from tests.recipes.toy import SMALL, toy_arguments


@pytest.fixture(scope="session", params=SMALL)
def finished_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp(request.param)
    assert main(["train", *toy_arguments(folder, core=request.param)]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def trained_run(finished_run: Path) -> TrainedRun:
    """Load a finished run."""
    return load(finished_run)
