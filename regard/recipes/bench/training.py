"""How fast a run trains here: its own steps on its own batches, with copies of its weights.

    step = batch + forward + backward + clip + optimizer        as regard.train.loop makes it, in the run's precision

The optimizer's state is fresh, and nothing is written. A rate counts what the steps did, over all their time.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from regard.attention.masks import Padded
from regard.recipes.bench.flops import count_flops
from regard.recipes.bench.groups import BATCHES, UPDATE
from regard.recipes.bench.memory import forget_peak, peak_memory
from regard.recipes.bench.timing import timed
from regard.recipes.bench.watch import scoped, watched
from regard.recipes.task import Task
from regard.train.average import MovingAverage
from regard.train.config import TrainConfig
from regard.train.contracts import Batches
from regard.train.distribution import Replica, World
from regard.train.optimizer import build_optimizer
from regard.train.precision import resolve_precision
from regard.train.step import add_gradients

_SEED = 1


def measure_training(
    task: Task, model: nn.Module, device: torch.device, *, seconds: float, most_batches: int
) -> dict[str, Any]:
    """Steps of training, measured and looked into. Raises UserError or OSError if the data cannot be read."""
    batches = task.batches()
    config = task.run.config.train
    config = replace(config, precision=resolve_precision(config.precision, device).name)
    plan = batches.plan(0)
    groups = _spread(plan, size=config.accumulate, count=most_batches)
    steps = _Steps(copy.deepcopy(model).train(), batches, groups, config=config, device=device)
    begun_with = forget_peak(device)
    # The pass that counts warms up as well: every shape has been seen before the clock runs.
    flops = [count_flops(partial(steps.gradient, number)) for number in range(len(groups))]
    for number in range(min(2, len(groups))):
        steps(number)
    did = [_amounts(batches, steps.model, group) for group in groups]
    times = timed([partial(steps, number) for number in range(len(groups))], seconds=seconds, device=device)
    peak = peak_memory(device)
    few = max(1, min(len(groups), int(seconds / 4 / (sum(times.seconds) / len(times.seconds)))))
    looked = watched([partial(steps, number) for number in range(few)], steps.model, device)
    rates = {f"{name}_per_second": times.rate([one[name] for one in did]) for name in ("examples", "targets")}
    places = sum(one["places"] for one in did)
    return {
        "precision": config.precision,
        "steps_an_epoch": -(-len(plan) // config.accumulate),
        "batches": len(groups),
        "step": times.told(),
        **rates,
        "flop_a_step": sum(flops) / len(flops),
        "gflops": times.rate(flops) / 1e9,
        "padding_percent": 100 * (1 - sum(one["real"] for one in did) / places) if places else 0.0,
        "peak_memory_mb": None if peak is None else peak / 1e6,
        "memory_before_mb": None if begun_with is None else begun_with / 1e6,
        **looked.told(few),
    }


class _Steps:
    """Steps of training by their number."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        groups: Sequence[Sequence[tuple[int, ...]]],
        *,
        config: TrainConfig,
        device: torch.device,
    ):
        self.config, self.groups, self.batches = config, groups, _Collated(batches)
        world = World(device=device)
        self.replica = Replica(model, world, shard="none", compiled=config.compile)
        # What is compiled cannot be counted; the weights are the same.
        self.plain = Replica(model, world, shard="none") if config.compile else self.replica
        self.model = self.replica.model
        self.optimizer = build_optimizer(self.model, config)
        self.average = MovingAverage(self.model, decay=config.ema) if config.ema else None
        self.update = scoped(self._update, UPDATE)

    def __call__(self, number: int) -> None:
        self._add(self.replica, number)
        self.update()

    def gradient(self, number: int) -> None:
        """Forward and backward alone."""
        self._add(self.plain, number)
        self.optimizer.zero_grad()

    def _add(self, replica: Replica, number: int) -> None:
        place = {"epoch": 0, "step": number + 1, "seed": _SEED}
        add_gradients(replica, self.batches, self.groups[number], precision=self.config.precision, **place)

    def _update(self) -> None:
        weights = [value for value in self.model.parameters() if value.grad is not None]
        norm = get_total_norm([value.grad for value in weights if value.grad is not None])
        if self.config.clip:
            clip_grads_with_norm_(weights, self.config.clip, norm)
        float(norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(1)


@dataclass(frozen=True)
class _Collated:
    """Batches whose making is told to the profiler."""

    batches: Batches

    def plan(self, epoch: int) -> Sequence[tuple[int, ...]]:
        return self.batches.plan(epoch)

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Any:
        return scoped(self.batches.collate, BATCHES)(epoch, indices)


def _spread(plan: Sequence[tuple[int, ...]], *, size: int, count: int) -> list[Sequence[tuple[int, ...]]]:
    """The batches of so many steps, from all over an epoch."""
    steps = [plan[first : first + size] for first in range(0, len(plan), size)]
    count = min(count, len(steps))
    return [steps[(2 * number + 1) * len(steps) // (2 * count)] for number in range(count)]


def _amounts(batches: Batches, model: nn.Module, group: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """What a step learns from: examples, targets, and the places of its batches, real ones and all."""
    found = {"examples": sum(map(len, group)), "targets": 0, "real": 0, "places": 0}
    for rows in group:
        batch = batches.collate(0, rows)
        real, places = filled(batch)
        found["targets"] += int(model.count(batch))  # pyrefly: ignore[not-callable]
        found["real"] += real
        found["places"] += places
    return found


def filled(batch: Any) -> tuple[int, int]:
    """Places of a batch's sequences that hold something, and all of them; (0, 0) where nothing is padded."""
    if isinstance(batch, Padded):
        return int(batch.lengths.sum()), batch.items.shape[0] * batch.items.shape[1]
    tokens = getattr(batch, "tokens", None)
    if isinstance(tokens, Tensor):  # windows of a text
        return int((tokens >= 0).sum()), tokens.numel()
    inside = batch._asdict() if hasattr(batch, "_asdict") else getattr(batch, "__dict__", {})
    parts = [filled(one) for one in inside.values() if isinstance(one, Padded) or _holds(one)]
    return sum(real for real, _ in parts), sum(places for _, places in parts)


def _holds(one: Any) -> bool:
    return not isinstance(one, Tensor | nn.Module) and (hasattr(one, "_asdict") or hasattr(one, "__dataclass_fields__"))
