"""Training steps of this library's loop and of a plain PyTorch loop, with the same optimizer.

    loss = mean over the batch's target tokens;  gradients;  fused Adam;  zero_grad

Ours is the step of the training loop (regard.training.step), with its seeding and counting;
gradients are not clipped. The forward pass is under autocast to bfloat16 where that is compared,
for all contestants.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.training.config import TrainConfig
from regard.training.distribution import Replica, World
from regard.training.optimizer import build_optimizers
from regard.training.step import add_gradients

__all__ = ["Step", "our_step", "their_step"]

Step = Callable[[Any], float]
"""Function that trains on a batch and returns the loss."""
_LR = 1e-4


def our_step(
    model: nn.Module, precision: str, *, device: str | torch.device = "cpu", compiled: bool = False
) -> Step:
    """Return a training step of this library on given batches, which it moves to the device.

    compiled: compile the loss, as `--train.compile` does.
    """
    model.train()
    world = World(device=torch.device(device))
    replica = Replica(model, world, shard="none", compiled=compiled)
    [optimizer] = build_optimizers(model, TrainConfig(optimizer="adam", lr=_LR))
    number = 0

    def step(batch: Any) -> float:
        nonlocal number
        number += 1
        sums, count = add_gradients(
            replica, _SingleBatch(batch), [(0,)], epoch=0, step=number, seed=1, precision=precision
        )
        optimizer.step()
        optimizer.zero_grad()
        return sums[0, 0].item() / count

    return step


def their_step(
    parameters: Sequence[Tensor], mean_loss: Callable[[Any], Tensor], precision: str
) -> Step:
    """Return a plain PyTorch training step for a mean loss, on the device of the parameters."""
    device = parameters[0].device.type
    optimizer = torch.optim.Adam(parameters, lr=_LR, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Any) -> float:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = mean_loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class _SingleBatch:
    """Training batches that consist of one given batch."""

    def __init__(self, batch: Any):
        self.batch = batch

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        return [(0,)]

    def collate(self, epoch: int, indices: Sequence[int]) -> Any:
        return self.batch
