"""Training speed of a run: its own training steps on its own batches, with copies of its
parameters.

    step = batch + forward + backward + clipping + optimizer step     as in regard.training.loop, in
    the run's precision

The optimizer state is newly initialized, and nothing is written.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from regard.attention.masks import Padded
from regard.bench.machine import peak_memory, reset_peak_memory
from regard.bench.profile import BATCHES, count_flops, mark, profile_calls
from regard.bench.timing import time_calls
from regard.recipes.base.recipe import Recipe
from regard.training.average import MovingAverage
from regard.training.config import TrainConfig
from regard.training.distribution import Replica, World
from regard.training.optimizer import build_optimizer
from regard.training.precision import resolve_precision
from regard.training.protocols import TrainingBatches
from regard.training.step import add_gradients


def measure_training(
    recipe: Recipe, model: nn.Module, device: torch.device, *, seconds: float, most_batches: int
) -> dict[str, Any]:
    """Time and profile training steps. Raises UserError or OSError if the data cannot be read."""
    batches = recipe.batches()
    config = recipe.run.config.train
    config = replace(config, precision=resolve_precision(config.precision, device).name)
    plan = batches.plan(0)
    groups = [
        plan[first : first + config.accumulate] for first in range(0, len(plan), config.accumulate)
    ]
    steps_per_epoch, count = len(groups), min(most_batches, len(groups))
    groups = [
        groups[(2 * number + 1) * len(groups) // (2 * count)] for number in range(count)
    ]  # all over the epoch
    steps = _Steps(copy.deepcopy(model).train(), batches, groups, config=config, device=device)
    memory_before = reset_peak_memory(device)
    # Counting also warms up: every shape has run before timing starts.
    flops = [count_flops(partial(steps.gradient, number)) for number in range(count)]
    for number in range(min(2, count)):
        steps(number)
    amounts = [_count_amounts(batches, model, group) for group in groups]
    calls = [partial(steps, number) for number in range(count)]
    times = time_calls(calls, seconds=seconds, device=device)
    peak = peak_memory(device)
    few = max(1, min(count, int(seconds / 4 * len(times.seconds) / sum(times.seconds))))
    profile = profile_calls(calls[:few], device, flops=sum(flops[1:few], flops[0]))
    positions = sum(counts["positions"] for counts in amounts)
    return {
        "precision": config.precision,
        "steps_per_epoch": steps_per_epoch,
        "batches": count,
        "step": times.to_dict(),
        "examples_per_second": times.rate([counts["examples"] for counts in amounts]),
        "targets_per_second": times.rate([counts["targets"] for counts in amounts]),
        "flop_per_step": sum(counts.total() for counts in flops) / count,
        "gflops": times.rate([counts.total() for counts in flops]) / 1e9,
        "padding_percent": 100 * (1 - sum(counts["real"] for counts in amounts) / positions)
        if positions
        else 0.0,
        "peak_memory_mb": None if peak is None else peak / 1e6,
        "initial_memory_mb": None if memory_before is None else memory_before / 1e6,
        **profile,
    }


class _Steps:
    """Training steps by number; as batches, they mark the construction of a batch for the
    profiler."""

    def __init__(
        self,
        model: nn.Module,
        batches: TrainingBatches,
        groups: Sequence[Sequence[tuple[int, ...]]],
        *,
        config: TrainConfig,
        device: torch.device,
    ):
        self.config, self.groups, self.batches = config, groups, batches
        self.plan = batches.plan
        world = World(device=device)
        self.replica = Replica(model, world, shard="none", compiled=config.compile)
        # FLOPs of a compiled model cannot be counted; the parameters are shared.
        self.plain = Replica(model, world, shard="none") if config.compile else self.replica
        self.model = self.replica.model
        self.optimizer = build_optimizer(self.model, config)
        self.average = MovingAverage(self.model, decay=config.ema) if config.ema else None

    def __call__(self, number: int) -> None:
        self._add(self.replica, number)
        weights = [value for value in self.model.parameters() if value.grad is not None]
        norm = get_total_norm([value.grad for value in weights if value.grad is not None])
        if self.config.clip:
            clip_grads_with_norm_(weights, self.config.clip, norm)
        float(norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(1)

    def gradient(self, number: int) -> None:
        """Run only the forward and backward pass."""
        self._add(self.plain, number)
        self.optimizer.zero_grad()

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Any:
        """Return a batch."""
        with mark(BATCHES):
            return self.batches.collate(epoch, indices)

    def _add(self, replica: Replica, number: int) -> None:
        position = {"epoch": 0, "step": number + 1, "seed": 1}
        add_gradients(
            replica, self, self.groups[number], precision=self.config.precision, **position
        )


def count_positions(batch: Any) -> tuple[int, int]:
    """Count the positions of a batch without padding and with padding; (0, 0) if nothing is
    padded."""
    if isinstance(batch, Padded):
        return int(batch.lengths.sum()), batch.items.shape[0] * batch.items.shape[1]
    parts = batch._asdict() if hasattr(batch, "_asdict") else getattr(batch, "__dict__", {})
    structures = ("_asdict", "__dataclass_fields__")
    counts = [
        count_positions(part)
        for part in parts.values()
        if any(hasattr(part, name) for name in structures)
    ]
    return sum(real for real, _ in counts), sum(positions for _, positions in counts)


def _count_amounts(
    batches: TrainingBatches, model: nn.Module, group: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Count the examples, the targets, and the positions (without padding, and all) of a training
    step."""
    counts = {"examples": sum(map(len, group)), "targets": 0, "real": 0, "positions": 0}
    for rows in group:
        batch = batches.collate(0, rows)
        real, positions = count_positions(batch)
        counts["targets"] += int(model.count(batch))  # pyrefly: ignore[not-callable]
        counts["real"] += real
        counts["positions"] += positions
    return counts
