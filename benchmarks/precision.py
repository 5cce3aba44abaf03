"""The precision that `auto` chooses, and the steps of training it is chosen for.

    python benchmarks/precision.py [--threads 1] [--steps 200] [--seconds 300] [--simulate 0.5]

    measurement   the products that regard.train.precision times: its own duration, and GFLOP/s of each precision
    steps         steps of `regard train dates` in both precisions, on the same batches, in turn
    choice        what `auto` is here, and how much longer its steps take than the faster precision's

--simulate R gives a processor whose bfloat16 products run at R times the rate of its float32 products: it pretends that
this processor has instructions for bfloat16 and replaces the time of its products by R's. The steps are not changed.

Rates and steps are by the processor's clock (of all threads of the process), since other work may run beside; steps are
medians. The duration of the measurement is by the wall clock.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

from regard.recipes.bench.machine import processor
from regard.recipes.config import Dates
from regard.recipes.folder import Run
from regard.recipes.running import train
from regard.recipes.task import load
from regard.train import precision
from regard.train.config import TrainConfig
from regard.train.contracts import Batches
from regard.train.distribution import Replica, World
from regard.train.optimizer import build_optimizer
from regard.train.precision import PRECISIONS, Measurement, Precision, measure_products, resolve_precision
from regard.train.step import add_gradients

CPU = torch.device("cpu")


def stepper(model: nn.Module, batches: Batches, config: TrainConfig, name: str) -> Callable[[int], float]:
    """Return a function that makes the step of a number, and returns its seconds of processor time."""
    replica, optimizer = Replica(model.train(), World(), shard="none"), build_optimizer(model, config)
    plan = batches.plan(0)

    def step(number: int) -> float:
        begun = time.process_time()
        rows = [plan[number % len(plan)]]
        add_gradients(replica, batches, rows, epoch=0, step=number + 1, seed=1, precision=name)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - begun

    return step


def time_steps(folder: Path, *, steps: int, seconds: float) -> dict[str, list[float]]:
    """Return the seconds of steps of the recipe `dates` in each precision, which take turns."""
    config = Dates()
    short = replace(
        config,
        data=replace(config.data, val_size=8, test_size=8),
        train=replace(config.train, steps=1, precision="float32", tensorboard=False),
    )
    train(folder, Run(recipe="dates", seed=1, config=short), tell=lambda text: None)
    both = {}
    for name in PRECISIONS:
        trained = load(folder)
        both[name] = stepper(trained.model, trained.task.batches(), config.train, name)
    for step in both.values():
        step(0)
    times: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    end = time.monotonic() + seconds
    for number in range(1, steps + 1):
        for name, step in both.items():
            times[name].append(step(number))
        if time.monotonic() > end:
            break
    return times


def choose(found: Measurement, rate: float | None) -> Precision:
    """Return what `auto` is here, or where bfloat16 products run at `rate` times float32's rate; nothing is kept."""
    with patch.object(precision, "cache_folder", lambda: None):
        if rate is None:
            return resolve_precision("auto", CPU)
        seconds = {"float32": found.seconds["float32"], "bfloat16": found.seconds["float32"] / rate}
        made = Measurement(seconds=seconds, rows=found.rows, rounds=99)
        native = {"has_native_bfloat16": lambda device: True, "measure_products": lambda: made}
        with patch.multiple(precision, **native):
            return resolve_precision("auto", CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0, help="at most, for the steps")
    parser.add_argument("--simulate", type=float, help="rate of bfloat16 products, as a multiple of float32's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor(CPU)}, {torch.backends.cpu.get_cpu_capability()}, {options.threads} thread(s), torch", end=" ")
    print(f"{torch.__version__}, Python {platform.python_version()}")
    begun = time.perf_counter()
    measure_products()
    taken = time.perf_counter() - begun
    with patch.object(precision.time, "perf_counter", time.process_time):
        found = measure_products()
    print(
        f"measurement  {taken:.3f} s:", *(f"{name} {rate:.1f} GFLOP/s " for name, rate in found.gflops.items()), end=""
    )
    print(f"({found.rows} rows); bfloat16 takes {found.seconds['bfloat16'] / found.seconds['float32']:.2f}")
    chosen = choose(found, options.simulate)
    with tempfile.TemporaryDirectory() as folder:
        times = time_steps(Path(folder) / "run", steps=options.steps, seconds=options.seconds)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    shown = "  ".join(f"{name} {1e3 * median:.0f} ms" for name, median in medians.items())
    pairs = [two / one for one, two in zip(*times.values(), strict=True)]
    print(f"steps        {len(pairs)} in each: {shown}; bfloat16 takes {statistics.median(pairs):.2f}", end=" ")
    print(f"({min(pairs):.2f} to {max(pairs):.2f})")
    print(f"choice       {chosen.name}: {chosen.reason}")
    print(f"             its steps take {medians[chosen.name] / min(medians.values()):.2f} of the faster precision's")


if __name__ == "__main__":
    main()
