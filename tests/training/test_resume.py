import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of `killing`."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.training.killing", str(tmp_path_factory.mktemp("killing"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout) | {"stderr": result.stderr}


def test_run_leaves_weights_checkpoint_and_log(results: dict[str, Any]) -> None:
    files = results["uninterrupted"]["files"]
    average = "checkpoints/step-00000010/ema.safetensors"
    assert {"model.safetensors", "log.jsonl", average} <= files.keys()
    assert not [name for name in files if ".new" in name or ".old" in name]


def test_run_killed_at_any_event_and_resumed_leaves_the_same_bits(results: dict[str, Any]) -> None:
    killed = results["killed"]
    assert len(killed) > 10
    assert sum(run["exit_codes"] == [-9, 0] for run in killed.values()) >= len(killed) - 1
    for event, run in killed.items():
        assert run["files"] == results["uninterrupted"]["files"], event


def test_run_killed_many_times_leaves_the_same_bits(results: dict[str, Any]) -> None:
    assert results["repeated"]["exit_codes"].count(-9) > 1
    assert results["repeated"]["files"] == results["uninterrupted"]["files"]


def test_interrupted_run_exits_with_130_and_resumes_to_the_same_bits(
    results: dict[str, Any],
) -> None:
    for run in results["interrupted"].values():
        assert run["exit_codes"] == [130, 0]
        assert run["files"] == results["uninterrupted"]["files"]
    assert results["stderr"].count("Run the same command to resume.") == len(results["interrupted"])
