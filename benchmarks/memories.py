"""What kinds of memories cost: growing step by step, sliding, and small numbers.

    python benchmarks/memories.py [--parts growing beams sliding int8] [--sizes 1x50 64x1000] [--rounds 3]

growing, beams, sliding: the memories of 4 layers, 4 heads of size 32; at each step each takes in a pair a row and is
read with a query a row (beams: after reordering all rows). Microseconds a step, medians over rounds that alternate
between kinds, and their ratio to `copied`, paired round by round; below one is faster. Times are those of the process,
which counts what the system does for it (fresh memory) and not what other programs take: they are for one thread.

    copied       Memory without room: every step copies all pairs
    growing      Memory as it is
    static       StaticMemory with a slot for every step, all of them read at every step
    within       StaticMemory of which each step reads what is filled
    compiled     static, its step compiled once
    doubling     StaticMemory of which steps read the first 64, 128, 256, ... slots, compiled once for each
    sliding      SlidingMemory of 128; ring: RingMemory of 128

int8: one query a row and head, 8 heads of size 64. Milliseconds a read of a Memory, of a QuantizedMemory, and of its
numbers widened once beforehand for this read alone (which is all the reader must do); error of the read relative to
its largest number, on normal numbers and on vectors with a few channels twenty times the others, as keys of trained
models have them.
"""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.attention import memory as plain
from regard.attention.attend import attend
from regard.attention.memories import RingMemory, StaticMemory
from regard.attention.memory import Memory, Store
from regard.attention.quantized import QuantizedMemory
from regard.attention.sliding import SlidingMemory
from regard.train.allocator import keep_freed_memory

LAYERS, HEADS, DIM, WINDOW = 4, 4, 32, 128
Layers = tuple[Store, ...]
Loop = Callable[[int, int], None]
"""Runs so many steps of so many rows."""


def step(item: Tensor, layers: Layers) -> tuple[Tensor, Layers]:
    """Each layer takes in a pair, and reads."""
    taken = []
    for memory in layers:
        longer = memory.extend(item, item)
        item = attend(item, longer)
        taken.append(longer)
    return item, tuple(taken)


@contextmanager
def long_from(size: int) -> Iterator[None]:
    """Memories of fewer numbers grow without room."""
    kept, plain._LONG = plain._LONG, size
    yield
    plain._LONG = kept


def nothing(rows: int) -> Memory:
    """A memory of no pairs."""
    return Memory(*(torch.zeros(rows, HEADS, 0, DIM) for _ in range(2)))


def run(memory: Store, steps: int, **settings) -> None:
    """The loop, with so many memories alike. before: what is done to each of them at each step; take: the step."""
    before, take = settings.get("before"), settings.get("take", step)
    rows = memory.keys.shape[0]
    item = torch.randn(rows, HEADS, 1, DIM)
    layers = tuple(memory.select(torch.arange(rows)) for _ in range(LAYERS))
    for number in range(steps):
        if before is not None:
            layers = tuple(before(memory, number) for memory in layers)
        _, layers = take(item, layers)


def copied(rows: int, steps: int) -> None:
    """Every step copies."""
    with long_from(2**62):
        run(nothing(rows), steps)


def static(rows: int, steps: int) -> StaticMemory:
    """A slot for every step."""
    return StaticMemory.empty((rows, HEADS), capacity=steps, key_dim=DIM)


def doubling(memory: StaticMemory, number: int) -> StaticMemory:
    """The fewest slots of 64, 128, 256, ... that hold the next pair too."""
    return memory.within(min(max(64, 2 ** number.bit_length()), memory.capacity))


def growing_loops() -> dict[str, Loop]:
    """Ways to keep all pairs."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    return {
        "copied": copied,
        "growing": lambda rows, steps: run(nothing(rows), steps),
        "static": lambda rows, steps: run(static(rows, steps), steps),
        "within": lambda rows, steps: run(
            static(rows, steps), steps, before=lambda memory, number: memory.within(number + 1)
        ),
        "compiled": lambda rows, steps: run(static(rows, steps), steps, take=compiled),
        "doubling": lambda rows, steps: run(static(rows, steps), steps, take=compiled, before=doubling),
    }


def beam_loops() -> dict[str, Loop]:
    """Ways to keep all pairs of rows that are reordered at every step."""

    def loop(rows: int, steps: int, size: int) -> None:
        order = torch.arange(rows).flip(0)
        with long_from(size):
            run(nothing(rows), steps, before=lambda memory, number: memory.select(order))

    return {
        "copied": functools.partial(loop, size=2**62),
        "growing": functools.partial(loop, size=plain._LONG),
    }


def sliding_loops() -> dict[str, Loop]:
    """Ways to keep the last pairs; `copied` keeps them all."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)

    def ring(rows: int) -> RingMemory:
        return RingMemory.empty((rows, HEADS), window=WINDOW, key_dim=DIM)

    return {
        "copied": copied,
        "sliding": lambda rows, steps: run(SlidingMemory.of(nothing(rows), window=WINDOW), steps),
        "ring": lambda rows, steps: run(ring(rows), steps),
        "compiled ring": lambda rows, steps: run(ring(rows), steps, take=compiled),
    }


def compare(loops: dict[str, Loop], rows: int, steps: int, rounds: int) -> None:
    """Print a row of the table."""
    taken: dict[str, list[float]] = {name: [] for name in loops}
    end = time.perf_counter() + 3 * len(loops)
    while len(taken["copied"]) <= rounds or time.perf_counter() < end:  # the first round compiles
        for name, loop in loops.items():
            start = time.process_time()
            loop(rows, steps)
            taken[name].append((time.process_time() - start) / steps * 1e6)
    cells = []
    for times in taken.values():
        ratio = statistics.median(a / b for a, b in zip(times[1:], taken["copied"][1:], strict=True))
        cells.append(f"{f'{statistics.median(times[1:]):.0f} ({ratio:.2f})':>16}")
    print(f"{rows:>5} {steps:>6} " + " ".join(cells), flush=True)


def steps_table(title: str, loops: dict[str, Loop], sizes: list[str], rounds: int) -> None:
    """Print one table of steps."""
    print(f"\n{title}; microseconds a step (ratio to copied)")
    print(" rows  steps " + " ".join(f"{name:>16}" for name in loops))
    for size in sizes:
        rows, steps = map(int, size.split("x"))
        compare(loops, rows, steps, rounds)


def vectors(*shape: int, uneven: bool = False) -> Tensor:
    """Normal numbers; uneven: every sixteenth channel is twenty times the others."""
    numbers = torch.randn(*shape)
    if uneven:
        numbers[..., ::16] *= 20
    return numbers


def int8_table(rounds: int) -> None:
    """Print what small numbers save, cost and lose."""
    print("\nint8; milliseconds a read, less memory, largest error / largest number")
    print(f"{'rows x keys':>12} {'Memory':>9} {'Quantized':>9} {'once':>9} {'smaller':>8} {'error':>9} {'uneven':>9}")
    for rows, num_keys in ((1, 512), (1, 4096), (1, 32768), (64, 4096)):
        query = torch.randn(rows, 8, 1, 64)
        errors = []
        for uneven in (True, False):  # the last one is also timed
            keys, values = (vectors(rows, 8, num_keys, 64, uneven=uneven) for _ in range(2))
            memory = Memory(keys, values)
            small = QuantizedMemory.of(memory)
            exact = attend(query / (20 if uneven else 1), memory)
            error = attend(query / (20 if uneven else 1), small) - exact
            errors.append(float(error.abs().max() / exact.abs().max()))
        reads = {
            "Memory": functools.partial(attend, query, memory),
            "Quantized": functools.partial(attend, query, small),
            "once": lambda query=query, small=small: attend(query, Memory(small.keys, small.values)),
        }
        taken: dict[str, list[float]] = {name: [] for name in reads}
        for _ in range(4 * rounds):
            for name, read in reads.items():
                start = time.process_time()
                read()
                taken[name].append((time.process_time() - start) * 1e3)
        cells = " ".join(f"{statistics.median(times):>9.2f}" for times in taken.values())
        saved = (keys.nbytes + values.nbytes) / small.num_bytes
        print(f"{f'{rows} x {num_keys}':>12} {cells} {saved:>8.2f} {errors[1]:>9.1e} {errors[0]:>9.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["growing", "beams", "sliding", "int8"])
    parser.add_argument("--sizes", nargs="+", default=["1x50", "1x1000", "64x50", "64x1000"], help="rows x steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--default-memory", action="store_true", help="give freed memory back, as the C library does")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 64
    if not options.default_memory:
        keep_freed_memory()
    kept = "default" if options.default_memory else "kept"
    print(
        f"one thread, freed memory {kept}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} "
        f"on {os.cpu_count()} cores"
    )
    with torch.no_grad():
        for part in options.parts:
            if part == "int8":
                int8_table(options.rounds)
            else:
                loops = {"growing": growing_loops, "beams": beam_loops, "sliding": sliding_loops}[part]()
                steps_table(part, loops, options.sizes, options.rounds)


if __name__ == "__main__":
    main()
