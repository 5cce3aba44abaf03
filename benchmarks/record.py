"""Time and memory cost of recording attention weights: off, on, a part, in half precision.

    python -m benchmarks.record [--seconds 1]

Times are CPU times, user and system together, on one thread: other load on the machine does not
count.

off       a model that was recorded before and one that never was: pairs of runs, median of their
          ratio. It must be 1 within the noise, which is the same ratio for two models that never
          were recorded.
on        each kind of recording and the same run without it, in pairs. "formula" is the run by the
          reference kernel throughout, which stores all weights: the cost of attention weights
          without recording.
memory    peak of live tensors beyond those of the run without recording (counted, so reproducible),
          and the size of the recording.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.memory_of import Watch
from regard.attention.masks import causal
from regard.layers.multihead import MultiHead
from regard.look.hooks import record_weights

SIZES = [(16, 32), (4, 256), (1, 2048)]
"""Batch size and sequence length."""
WIDTH, HEADS, LAYERS = 256, 4, 2


class Stack(nn.Module):
    """Layers of causal self-attention."""

    def __init__(self, kernel: str = "auto"):
        super().__init__()
        self.layers = nn.ModuleList(
            MultiHead(WIDTH, num_heads=HEADS, kernel=kernel) for _ in range(LAYERS)
        )

    def forward(self, items: Tensor) -> Tensor:
        for layer in cast("list[MultiHead]", self.layers):
            items = items + layer(items, layer.memory(items), mask=causal())
        return items


def seconds(run: Callable[[], object], context: AbstractContextManager) -> float:
    start = time.process_time()
    with context:
        run()
    return time.process_time() - start


def time_pairs(
    function: Callable[[], float], other_function: Callable[[], float], budget: float
) -> tuple[float, float, float]:
    """Time two functions in alternating order; return the medians and the median ratio of the first
    to the second."""
    pairs: list[tuple[float, float]] = []
    stop = time.perf_counter() + budget
    while time.perf_counter() < stop or len(pairs) < 7:
        if len(pairs) % 2:
            pairs.append((function(), other_function()))
        else:
            second, first = other_function(), function()
            pairs.append((first, second))
    firsts, seconds_ = zip(*pairs[2:], strict=True)
    ratio = statistics.median(a / b for a, b in pairs[2:])
    return statistics.median(firsts), statistics.median(seconds_), ratio


def peak(run: Callable[[], object], context: AbstractContextManager) -> int:
    with context, Watch() as watch:
        run()
    return watch.peak


def off(rows: int, size: int, budget: float) -> None:
    items = torch.randn(rows, size, WIDTH)
    fresh, before, other_fresh = (Stack().eval() for _ in range(3))
    with record_weights(before):
        before(items)
    for name, model in (("off", before), ("noise", other_fresh)):
        first, second, ratio = time_pairs(
            lambda model=model: seconds(lambda: model(items), nullcontext()),
            lambda: seconds(lambda: fresh(items), nullcontext()),
            budget,
        )
        print(
            f"{rows:>4} x {size:<5} {name:>22} {first * 1e3:>9.2f} {second * 1e3:>9.2f} "
            f"{ratio:>7.3f}",
            flush=True,
        )


def on(rows: int, size: int, budget: float) -> None:
    items, model, formula = (
        torch.randn(rows, size, WIDTH),
        Stack().eval(),
        Stack("reference").eval(),
    )
    contexts: dict[str, Callable[[], AbstractContextManager]] = {
        "all": lambda: record_weights(model),
        "half precision": lambda: record_weights(model, dtype=torch.float16),
        "one layer": lambda: record_weights(model, only=["layers.1.read"]),
    }
    alone = peak(lambda: model(items), nullcontext())
    plain, by_formula = (
        lambda run=run: seconds(lambda: run(items), nullcontext()) for run in (model, formula)
    )
    times = time_pairs(by_formula, plain, budget)
    line(
        f"{rows:>4} x {size:<5} {'formula':>22}",
        times,
        peak(lambda: formula(items), nullcontext()) - alone,
        0,
    )
    for name, make_context in contexts.items():
        times = time_pairs(
            lambda make=make_context: seconds(lambda: model(items), make()), plain, budget
        )
        context = make_context()
        with context as maps:
            extra = peak(lambda: model(items), nullcontext()) - alone
        num_bytes = sum(call.nbytes for read in maps for call in maps[read])
        line(f"{rows:>4} x {size:<5} {name:>22}", times, extra, num_bytes)


def line(name: str, times: tuple[float, float, float], extra: int, num_bytes: int) -> None:
    first, second, ratio = times
    sizes = f"{extra / 2**20:>9.1f} {num_bytes / 2**20:>9.1f}"
    print(f"{name} {first * 1e3:>9.2f} {second * 1e3:>9.2f} {ratio:>7.2f} {sizes}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"one thread, torch {torch.__version__}; {LAYERS} layers, {HEADS} heads of {WIDTH // HEADS}"
    )
    print(
        "processor milliseconds with and without, median of their ratio; MB alive beyond the run "
        "without, MB kept"
    )
    print(
        f"{'rows x items':>12} {'recording':>22} {'with':>9} {'without':>9} {'ratio':>7} {'MB':>9} "
        f"{'kept':>9}"
    )
    with torch.no_grad():
        for rows, size in SIZES:
            off(rows, size, options.seconds)
            on(rows, size, options.seconds)


if __name__ == "__main__":
    main()
