"""Program of each process of torchrun: `torchrun ... -m tests.training.together FOLDER [--slow]`.

It compares gradients with those of one process (tests.training.minimal), and prints their number.
FOLDER/command.json has the words of a command that both run, while the main process measures that
bfloat16 is faster, and the other that float32 is. For ddp and fsdp it makes these runs:
FOLDER/ddp-whole from start to end, ddp-part that stops early to be resumed by another, and
ddp-begun that resumes the run of a single process.
"""

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from regard.cli.main import main as regard
from regard.errors import UserError
from regard.recipes import training
from regard.training import loop
from regard.training.config import TrainConfig
from regard.training.distribution import World, join_process_group
from tests.training.minimal import compare_gradients
from tests.training.test_partial import make
from tests.training.test_partial import train as train_parts
from tests.training.toy import ToyModel, settings, train

CONFIG = settings(steps=9, accumulate=2, ema=0.5, validate_every=3, average=2)
PART = dataclasses.replace(CONFIG, steps=6)


def toy(folder: Path, config: TrainConfig, *, seed: int = 3) -> ToyModel:
    """Train without dropout in float64, so that only the order of sums can differ."""
    model = ToyModel(seed=seed).double()
    train(folder, config, model=model)
    return model


def train_by_muon(folder: Path, world: World) -> None:
    """Check that all processes hold equal weights after training by Muon, and that it is not
    sharded."""
    model = make("translator")
    run = folder / "muon"
    train_parts("translator", run, model, optimizer="muon", shard="ddp")
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(world.size)]
    torch.distributed.all_gather(others, weights)
    assert all(torch.equal(weights, other) for other in others)
    with pytest.raises(UserError, match="Muon, which needs whole matrices"):
        train_parts("translator", folder / "sharded", optimizer="muon", shard="fsdp")


def train_by_command(words: list[str], world: World) -> None:
    """Check that all processes train in the precision of the main one."""
    precisions, original = set(), loop.add_gradients

    def add_gradients(*args: Any, precision: str, **options: Any) -> Any:
        precisions.add(precision)
        return original(*args, precision=precision, **options)

    with pytest.MonkeyPatch.context() as patch:
        measured = ("bfloat16", "float32")[world.rank]
        patch.setattr(training, "resolve_precision", lambda *_: measured)
        patch.setattr(loop, "add_gradients", add_gradients)
        assert regard(words) == 0
    assert precisions == {"bfloat16"}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with join_process_group("cpu") as world:
        count = compare_gradients(world, every="--slow" in sys.argv)
        if world.rank == 0:
            print(count)
        train_by_muon(folder, world)
        train_by_command(json.loads((folder / "command.json").read_text()), world)
        for shard in ("ddp", "fsdp"):
            config = dataclasses.replace(CONFIG, shard=shard)
            part = dataclasses.replace(PART, shard=shard)
            # All processes start with the weights of the main process.
            model = toy(folder / f"{shard}-whole", config, seed=3 + world.rank)
            assert isinstance(model.embed.weight, DTensor) == (shard == "fsdp")
            toy(folder / f"{shard}-part", part)
            toy(folder / f"{shard}-begun", config)
            # The clocks differ, so that each process alone would plan another number of steps.
            clock = itertools.count(step=(1 + world.rank) / 16)
            loop.time = SimpleNamespace(monotonic=clock.__next__)
            timed = dataclasses.replace(config, steps=None, minutes=1 / 12)
            planned = train(folder / f"{shard}-timed", timed).progress.planned_steps
            loop.time = time
            assert world.broadcast(planned) == planned > 0


if __name__ == "__main__":
    main()
