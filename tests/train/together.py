"""What each process does that torchrun starts in tests: `torchrun ... -m tests.train.together FOLDER`.

For both ways of sharing, ddp and fsdp, these runs: FOLDER/ddp-whole from start to end, ddp-part that stops
early for another to go on with, and ddp-begun that goes on with what a single process began.
"""

import dataclasses
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from regard.train.config import TrainConfig
from regard.train.distribution import joined
from tests.train.toy import ToyModel, settings, train

__all__ = ["CONFIG", "PART", "main", "toy"]

CONFIG = settings(steps=9, accumulate=2, ema=0.5, validate_every=3, average=2)
PART = dataclasses.replace(CONFIG, steps=6)


def toy(folder: Path, config: TrainConfig, *, seed: int = 3) -> ToyModel:
    """A run without dropout, in float64, so that only the order of sums can differ."""
    model = ToyModel(seed=seed).double()
    train(folder, config, model=model)
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with joined("cpu") as world:
        for shard in ("ddp", "fsdp"):
            config, part = dataclasses.replace(CONFIG, shard=shard), dataclasses.replace(PART, shard=shard)
            # The main process's first weights are everybody's.
            model = toy(folder / f"{shard}-whole", config, seed=3 + world.rank)
            assert isinstance(model.embed.weight, DTensor) == (shard == "fsdp")
            toy(folder / f"{shard}-part", part)
            toy(folder / f"{shard}-begun", config)


if __name__ == "__main__":
    main()
