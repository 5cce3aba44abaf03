import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import UserError
from regard.recipes.run_folder import read_run
from regard.training.distribution import Replica, World, pick_device
from tests.helpers import close
from tests.recipes.toy import toy_arguments
from tests.training.minimal import SHARDS, comparisons
from tests.training.together import CONFIG, PART, toy
from tests.training.toy import ToyModel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Return runs of one process (`one`) and of two, see together.py, and what these print."""
    folder = tmp_path_factory.mktemp("together")
    toy(folder / "begun", PART)
    for shard in SHARDS:
        shutil.copytree(folder / "begun", folder / f"{shard}-begun")
    toy(folder / "one", CONFIG)
    # DDP must not wait for the gradients of a score that has none.
    choice = ("--model.core.choice", "hard", "--model.core.hard", "none")
    precision = ("--train.precision", "auto")
    words = ["train", *toy_arguments(folder, core="recurrent", steps=3), *choice, *precision]
    (folder / "command.json").write_text(json.dumps(words))
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m tests.training.together"
    slow = ["--slow"] if request.config.getoption("--slow") else []
    result = subprocess.run(
        [sys.executable, *launch.split(), str(folder), *slow],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder, result.stdout


@pytest.fixture(scope="module")
def runs(together: tuple[Path, str]) -> Path:
    return together[0]


def test_gradients_of_two_processes_equal_those_of_one(
    together: tuple[Path, str], request: pytest.FixtureRequest
) -> None:
    """The rows of the second process have no targets."""
    chosen = comparisons(every=request.config.getoption("--slow"))
    assert int(together[1].splitlines()[0]) == len(chosen)


def test_two_processes_train_to_one_report_in_the_precision_of_the_main_one(
    together: tuple[Path, str],
) -> None:
    folder, printed = together
    assert printed.count("The run is in") == 1
    assert read_run(folder / "run").config.train.precision == "bfloat16"
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["training"]["steps"] == 3


def assert_equal(run: Path, other: Path) -> None:
    """Check that two runs have equal selected, last and averaged weights, and optimizers."""
    names = [
        "model",
        *(f"checkpoints/step-{CONFIG.steps:08d}/{name}" for name in ("model", "ema", "optimizer")),
    ]
    for path in names:
        first, second = (load_file(folder / f"{path}.safetensors") for folder in (run, other))
        assert first.keys() == second.keys()
        for name, value in first.items():
            close(value, second[name])


@pytest.mark.parametrize("shard", SHARDS)
def test_two_processes_train_the_weights_of_one(runs: Path, shard: str) -> None:
    assert_equal(runs / f"{shard}-whole", runs / "one")
    # Only the main process writes the log.
    logs = [(runs / name / "log.jsonl").read_text() for name in (f"{shard}-whole", "one")]
    assert logs[0].count("\n") == logs[1].count("\n")


@pytest.mark.parametrize("shard", SHARDS)
def test_two_processes_resume_the_run_of_one(runs: Path, shard: str) -> None:
    assert_equal(runs / f"{shard}-begun", runs / "one")


@pytest.mark.parametrize("shard", SHARDS)
def test_one_process_resumes_the_run_of_two(runs: Path, shard: str) -> None:
    toy(runs / f"{shard}-part", CONFIG)
    assert_equal(runs / f"{shard}-part", runs / "one")


def test_several_processes_without_sharding_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shard must be ddp or fsdp for 2 processes, got none"):
        Replica(ToyModel(), World(size=2), shard="none")


def test_pick_device_returns_the_device_or_names_it() -> None:
    assert pick_device("cpu") == pick_device("cpu:0") == torch.device("cpu")
    assert pick_device("auto").type in (torch._C._get_accelerator().type, "cpu")
    with pytest.raises(ValueError, match=r"device abacus cannot be used here"):
        pick_device("abacus")
    with pytest.raises(UserError, match="device meta cannot be used here"):
        pick_device("meta")  # which holds no numbers


def test_a_device_that_torch_lacks_is_refused_without_the_list_of_all_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = "Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend"

    def refuse(*_args: object, **_options: object) -> None:
        raise NotImplementedError(
            f"{reason}. This could be because ... only available for these backends: [CPU, Meta]."
        )

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(UserError) as caught:
        pick_device("mps")
    assert str(caught.value) == f"device mps cannot be used here: {reason}"


def test_evaluation_model_has_given_weights_and_is_restored() -> None:
    model, other = ToyModel(seed=1), ToyModel(seed=2)
    replica = Replica(model.train(), World(), shard="ddp")
    before = replica.gather(dict(model.named_parameters()))
    weights = {name: value for name, value in other.state_dict().items() if name != "out.weight"}
    with replica.evaluation_model(weights) as evaluated:
        assert not evaluated.training
        assert torch.equal(evaluated.state_dict()["out.weight"], other.embed.weight)
        assert not torch.is_grad_enabled()
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
