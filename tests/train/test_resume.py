import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `killing` prints."""
    command = [sys.executable, "-m", "tests.train.killing", str(tmp_path_factory.mktemp("killing"))]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"told": done.stderr}


def test_run_leaves_weights_checkpoint_and_log(found: dict[str, Any]) -> None:
    left = found["whole"]["left"]
    assert {"model.safetensors", "log.jsonl", "checkpoints/step-00000010/ema.safetensors"} <= left.keys()
    assert not [name for name in left if ".new" in name or ".old" in name]


def test_run_killed_at_any_event_and_started_again_leaves_the_same_bits(found: dict[str, Any]) -> None:
    killed = found["killed"]
    assert len(killed) > 10
    assert sum(run["endings"] == [-9, 0] for run in killed.values()) >= len(killed) - 1
    assert {moment: run["left"] == found["whole"]["left"] for moment, run in killed.items()} == dict.fromkeys(
        killed, True
    )


def test_run_killed_time_and_again_leaves_the_same_bits(found: dict[str, Any]) -> None:
    assert found["often"]["endings"].count(-9) > 1
    assert found["often"]["left"] == found["whole"]["left"]


def test_interrupted_run_exits_with_130_and_goes_on_to_the_same_bits(found: dict[str, Any]) -> None:
    for run in found["interrupted"].values():
        assert run["endings"] == [130, 0]
        assert run["left"] == found["whole"]["left"]
    assert found["told"].count("The same command goes on from there.") == len(found["interrupted"])
