"""Precision selected by `auto`, and the training steps it is selected for.

    python benchmarks/precision.py [--threads 1] [--steps 200] [--seconds 300]

    choice        the precision of `auto`, and the duration of its measurement
    steps         training steps of `regard train dates` in both precisions, on the same batches, in
                  turn

Steps are medians in CPU time (of all threads of the process), because of other load on the machine.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from regard.bench.machine import processor_name
from regard.recipes.base.run import Run
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.load import load
from regard.recipes.training import train_run
from regard.training.config import TrainConfig
from regard.training.distribution import Replica, World
from regard.training.optimizer import build_optimizers
from regard.training.precision import PRECISIONS, resolve_precision
from regard.training.protocols import TrainingBatches
from regard.training.step import add_gradients

CPU = torch.device("cpu")


def stepper(
    model: nn.Module, batches: TrainingBatches, config: TrainConfig, name: str
) -> Callable[[int], float]:
    """Return a function that runs the training step of a number and returns its CPU time in
    seconds."""
    replica = Replica(model.train(), World(), shard="none")
    optimizers = build_optimizers(model, config)
    plan = batches.plan(0)

    def step(number: int) -> float:
        start = time.process_time()
        rows = [plan[number % len(plan)]]
        add_gradients(replica, batches, rows, epoch=0, step=number + 1, seed=1, precision=name)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - start

    return step


def time_steps(folder: Path, *, steps: int, seconds: float) -> dict[str, list[float]]:
    """Return the seconds of training steps of the recipe `dates` in each precision, in turn."""
    config = DatesRunConfig()
    short = replace(
        config,
        data=replace(config.data, val_size=8, test_size=8),
        train=replace(config.train, steps=1, precision="float32", tensorboard=False),
    )
    train_run(folder, Run(recipe="dates", seed=1, config=short), notify=lambda text: None)
    steppers = {}
    for name in PRECISIONS:
        trained = load(folder)
        steppers[name] = stepper(trained.model, trained.recipe.batches(), config.train, name)
    for step in steppers.values():
        step(0)
    times: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    end = time.monotonic() + seconds
    for number in range(1, steps + 1):
        for name, step in steppers.items():
            times[name].append(step(number))
        if time.monotonic() > end:
            break
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0, help="at most, for the steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{processor_name(CPU)}, {torch.backends.cpu.get_cpu_capability()}, {options.threads} "
        f"thread(s), torch",
        end=" ",
    )
    print(f"{torch.__version__}, Python {platform.python_version()}")
    start = time.perf_counter()
    selected = resolve_precision("auto", CPU)
    print(f"choice       {selected}, in {time.perf_counter() - start:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        times = time_steps(Path(folder) / "run", steps=options.steps, seconds=options.seconds)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    summary = "  ".join(f"{name} {1e3 * median:.0f} ms" for name, median in medians.items())
    pairs = [second / first for first, second in zip(*times.values(), strict=True)]
    print(
        f"steps        {len(pairs)} in each: {summary}; bfloat16 takes "
        f"{statistics.median(pairs):.2f}",
        end=" ",
    )
    print(f"({min(pairs):.2f} to {max(pairs):.2f})")


if __name__ == "__main__":
    main()
