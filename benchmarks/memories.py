"""Cost of kinds of key-value caches: growing step by step, sliding, and quantized.

    python benchmarks/memories.py [--parts growing beams sliding int8 written steps]
    [--sizes 1x50 64x1000] [--rounds 3]

growing, beams, sliding: the memories of 4 layers, 4 heads of size 32; each step appends one pair
per row to each memory and reads it with one query per row (beams: after reordering all rows).
Microseconds per step, medians over rounds that alternate between kinds, and their ratio to
`copied`, paired by round; below one is faster. Times are CPU times of the process on one thread,
which include the system's work for it (page faults) and exclude other programs.

    copied       Memory without preallocation: every step copies all pairs
    growing      Memory as it is
    static       StaticMemory with a slot for every step, all of them read in every step
    within       StaticMemory of which each step reads the filled slots
    compiled     static, with a compiled step
    doubling     StaticMemory of which steps read the first 64, 128, 256, ... slots, compiled once
    for each
    sliding      SlidingMemory of 128; ring: RingMemory of 128

int8: one query per row and head, 8 heads of size 64. Milliseconds per read of a Memory, of a
QuantizedMemory, and of a QuantizedMemory dequantized in advance; error of the read relative to its
largest number, for normally distributed vectors and for vectors with a few channels twenty times
larger, as in keys of trained models.

written: language models with memories that are written: 4 blocks of width 512, 8 heads, hidden
2,048 and 1,000 tokens, in torch and in the compiled engine. Milliseconds for a prompt of 1,536
tokens, and tokens per second of the 512 after it.

steps: a step of a DeltaMemory, and of the torch code of Transformers if it is installed.
"""

import argparse
import functools
import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.memory import (
    DeltaMemory,
    KeyValueCache,
    Memory,
    QuantizedMemory,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.memory import growing as plain
from regard.decode.config import SampleConfig
from regard.engines.registry import prepare
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.system.allocator import keep_freed_memory

LAYERS, HEADS, DIM, WINDOW = 4, 4, 32, 128
Layers = tuple[KeyValueCache, ...]
Loop = Callable[[int, int], None]
"""Function of the number of rows and steps to run."""


def step(item: Tensor, layers: Layers) -> tuple[Tensor, Layers]:
    """Append a pair to each layer's memory and read it."""
    extended = []
    for memory in layers:
        longer = memory.extend(item, item)
        item = attend(item, longer)
        extended.append(longer)
    return item, tuple(extended)


@contextmanager
def without_preallocation(size: int) -> Iterator[None]:
    """Disable preallocation for memories of fewer numbers."""
    original, plain._MIN_PREALLOCATED = plain._MIN_PREALLOCATED, size
    yield
    plain._MIN_PREALLOCATED = original


def empty_memory(rows: int) -> Memory:
    """Return an empty memory."""
    return Memory(torch.zeros(rows, HEADS, 0, DIM), torch.zeros(rows, HEADS, 0, DIM))


def run(memory: KeyValueCache, steps: int, **settings) -> None:
    """Run the loop. Settings: `prepare` is applied to each memory before each step; `step` replaces
    the step."""
    prepare, step_function = settings.get("prepare"), settings.get("step", step)
    rows = memory.keys.shape[0]
    item = torch.randn(rows, HEADS, 1, DIM)
    layers = tuple(memory.select(torch.arange(rows)) for _ in range(LAYERS))
    for number in range(steps):
        if prepare is not None:
            layers = tuple(prepare(memory, number) for memory in layers)
        _, layers = step_function(item, layers)


def run_copying(rows: int, steps: int) -> None:
    """Run steps that copy all pairs."""
    with without_preallocation(2**62):
        run(empty_memory(rows), steps)


def static(rows: int, steps: int) -> StaticMemory:
    """Return a memory with a slot for every step."""
    return StaticMemory.empty((rows, HEADS), capacity=steps, key_dim=DIM)


def grow_by_doubling(memory: StaticMemory, number: int) -> StaticMemory:
    """Return the first 64, 128, 256, ... slots, as few as hold the next pair."""
    return memory.within(min(max(64, 2 ** number.bit_length()), memory.capacity))


def growing_loops() -> dict[str, Loop]:
    """Return the loops that keep all pairs."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    return {
        "copied": run_copying,
        "growing": lambda rows, steps: run(empty_memory(rows), steps),
        "static": lambda rows, steps: run(static(rows, steps), steps),
        "within": lambda rows, steps: run(
            static(rows, steps), steps, prepare=lambda memory, number: memory.within(number + 1)
        ),
        "compiled": lambda rows, steps: run(static(rows, steps), steps, step=compiled),
        "doubling": lambda rows, steps: run(
            static(rows, steps), steps, step=compiled, prepare=grow_by_doubling
        ),
    }


def beam_loops() -> dict[str, Loop]:
    """Return the loops that keep all pairs of rows that are reordered in every step."""

    def loop(rows: int, steps: int, size: int) -> None:
        order = torch.arange(rows).flip(0)
        with without_preallocation(size):
            run(empty_memory(rows), steps, prepare=lambda memory, number: memory.select(order))

    return {
        "copied": functools.partial(loop, size=2**62),
        "growing": functools.partial(loop, size=plain._MIN_PREALLOCATED),
    }


def sliding_loops() -> dict[str, Loop]:
    """Return the loops that keep the last pairs; `copied` keeps all."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)

    def ring(rows: int) -> RingMemory:
        return RingMemory.empty((rows, HEADS), window=WINDOW, key_dim=DIM)

    return {
        "copied": run_copying,
        "sliding": lambda rows, steps: run(
            SlidingMemory.of(empty_memory(rows), window=WINDOW), steps
        ),
        "ring": lambda rows, steps: run(ring(rows), steps),
        "compiled ring": lambda rows, steps: run(ring(rows), steps, step=compiled),
    }


def compare(loops: dict[str, Loop], rows: int, steps: int, rounds: int) -> None:
    """Print a row of the table."""
    times_by_name: dict[str, list[float]] = {name: [] for name in loops}
    end = time.perf_counter() + 3 * len(loops)
    while (
        len(times_by_name["copied"]) <= rounds or time.perf_counter() < end
    ):  # the first round compiles
        for name, loop in loops.items():
            start = time.process_time()
            loop(rows, steps)
            times_by_name[name].append((time.process_time() - start) / steps * 1e6)
    cells = []
    for times in times_by_name.values():
        ratio = statistics.median(
            a / b for a, b in zip(times[1:], times_by_name["copied"][1:], strict=True)
        )
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
    """Return normally distributed vectors; uneven: every sixteenth channel is twenty times
    larger."""
    numbers = torch.randn(*shape)
    if uneven:
        numbers[..., ::16] *= 20
    return numbers


def int8_table(rounds: int) -> None:
    """Print the memory, time and error of int8."""
    print("\nint8; milliseconds a read, less memory, largest error / largest number")
    print(
        f"{'rows x keys':>12} {'Memory':>9} {'Quantized':>9} {'once':>9} {'smaller':>8} "
        f"{'error':>9} {'uneven':>9}"
    )
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
        reader = {
            "Memory": functools.partial(attend, query, memory),
            "Quantized": functools.partial(attend, query, small),
            "once": lambda query=query, small=small: attend(
                query, Memory(small.keys, small.values)
            ),
        }
        times_by_name: dict[str, list[float]] = {name: [] for name in reader}
        for _ in range(4 * rounds):
            for name, read in reader.items():
                start = time.process_time()
                read()
                times_by_name[name].append((time.process_time() - start) * 1e3)
        cells = " ".join(f"{statistics.median(times):>9.2f}" for times in times_by_name.values())
        bytes_saved = (keys.nbytes + values.nbytes) / small.num_bytes
        print(
            f"{f'{rows} x {num_keys}':>12} {cells} {bytes_saved:>8.2f} {errors[1]:>9.1e} "
            f"{errors[0]:>9.1e}",
            flush=True,
        )


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def repeat(function: Callable[[], object]) -> None:
    """Call a function a thousand times."""
    for _ in range(1000):
        function()


def written_table(rounds: int) -> None:
    """Print the speed of prompts and tokens by pattern."""
    print("\nwritten; ms for the prompt, tokens/s after it")
    for pattern in ("LLLL", "DDDL", "DDDD"):
        torch.manual_seed(1)
        own = None if pattern == "LLLL" else pattern
        core = TransformerConfig(layers=4, width=512, heads=8, feedforward=2048, pattern=own)
        model = build_language_model(LanguageModelConfig(core=core), vocab=1000).eval()
        engines = {"torch": prepare("torch", model)}
        for kind in ("float32", "bfloat16", "int8"):
            name = f"compiled {kind}"
            engines[name] = prepare("compiled", model, compute_type=kind, workers=1)
        prompt = torch.randint(4, 1000, (1, 1536)).tolist()
        for name, engine in engines.items():
            seconds = []
            for length in (1, 513) * (rounds + 1):
                sampling = SampleConfig(length=length, temperature=0)
                options = {"window": None, "seeds": [1], "banned": []}
                work = functools.partial(engine.generate, prompt, sampling, **options)
                seconds.append(cpu_seconds(work))
            first, both = (statistics.median(seconds[2 + part :: 2]) for part in (0, 1))
            print(f"{pattern} {name:18} {1e3 * first:6.0f} {512 / (both - first):6.0f}", flush=True)


def delta_step_table(rounds: int) -> None:
    """Print microseconds of a step of a DeltaMemory, and of that of Transformers."""
    print("\nsteps; microseconds, here and in Transformers")
    for rows, heads, size in ((1, 1, 32), (1, 4, 32), (16, 8, 64), (1, 32, 128)):
        query, keys, values = torch.randn(3, rows, heads, 1, size)
        decay, strength = -torch.rand(rows, heads, 1), torch.rand(rows, heads, 1)
        memory = DeltaMemory(torch.randn(rows, heads, size, size))
        inputs = [x.transpose(1, 2) for x in (query, keys, values, decay, strength)]
        state = {"initial_state": memory.state, "output_final_state": True}
        gates = {"log_decay": decay, "strength": strength}
        step_functions: dict[str, Callable[[], object]] = {
            "DeltaMemory.step": functools.partial(memory.step, query, keys, values, **gates),
        }
        if importlib.util.find_spec("transformers") is not None:
            peer = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
            peer_step = peer.torch_recurrent_gated_delta_rule
            step_functions["Transformers"] = functools.partial(peer_step, *inputs, **state)
        for name, function in step_functions.items():
            times = [cpu_seconds(functools.partial(repeat, function)) for _ in range(4 * rounds)]
            median = 1e3 * statistics.median(times)
            print(f"{rows:2} x {heads:2} x {size:3} {name:18} {median:6.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["growing", "beams", "sliding", "int8"])
    parser.add_argument(
        "--sizes", nargs="+", default=["1x50", "1x1000", "64x50", "64x1000"], help="rows x steps"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--default-memory",
        action="store_true",
        help="give freed memory back, as the C library does",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 64
    if not options.default_memory:
        keep_freed_memory()
    policy = "default" if options.default_memory else "kept"
    print(
        f"one thread, freed memory {policy}, torch {torch.__version__}, load "
        f"{os.getloadavg()[0]:.1f} "
        f"on {os.cpu_count()} cores"
    )
    with torch.no_grad():
        for part in options.parts:
            tables = {"int8": int8_table, "written": written_table, "steps": delta_step_table}
            if part in tables:
                tables[part](options.rounds)
            else:
                loops = {"growing": growing_loops, "beams": beam_loops, "sliding": sliding_loops}[
                    part
                ]()
                steps_table(part, loops, options.sizes, options.rounds)


if __name__ == "__main__":
    main()
