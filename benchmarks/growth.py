"""Scaling of time and memory of each kernel with the number of keys.

    python benchmarks/growth.py [--threads 2] [--reads linear soft ...] [--lengths 256 512 ...]

One item, 4 heads of size 64, as many queries as keys, float32, tensors with the memory layout of a
model. Time: median of repetitions, freed memory kept. Memory: growth of a separate process beyond
its inputs (VmHWM of Linux). The exponent is the slope of a line through the logarithms of the four
longest. FlexAttention has no gradients on a CPU.

Writes OUT.txt, one row per measurement and the exponents, and OUT.svg. Rows of OUT.txt not measured
again are kept.
"""

import argparse
import ctypes
import gc
import math
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.choices import Choice, Hard, Proportional, Soft
from regard.attention.masks import Mask, causal
from regard.attention.scores import BareAdditive, FeatureMap, ScaledDot, Score
from regard.system.allocator import keep_freed_memory

READS: dict[str, tuple[Score, Choice, Mask | None, str, int]] = {
    "reference": (ScaledDot(), Soft(), None, "reference", 4096),
    "products": (ScaledDot(), Soft(), None, "products", 4096),
    "sdpa": (ScaledDot(), Soft(), None, "sdpa", 16384),
    "sdpa-causal": (ScaledDot(), Soft(), causal(), "sdpa", 16384),
    "flex-causal": (ScaledDot(), Soft(), causal(), "flex", 4096),
    "gather-hard": (ScaledDot(), Hard(), None, "gather", 8192),
    "additive": (BareAdditive(64), Soft(), None, "additive", 8192),
    "additive-causal": (BareAdditive(64), Soft(), causal(), "additive", 8192),
    "additive-formula": (BareAdditive(64), Soft(), None, "reference", 1024),
    "linear": (FeatureMap(), Proportional(), None, "linear", 16384),
    "linear-causal": (FeatureMap(), Proportional(), causal(), "linear", 16384),
}
"""Score, choice, mask, kernel, and the longest length that is fast enough or fits."""
LOOKS = {
    "reference": ("#8d99ae", "-"),
    "products": ("#8d99ae", "--"),
    "sdpa": ("#d1495b", "-"),
    "sdpa-causal": ("#d1495b", "--"),
    "flex-causal": ("#edae49", "--"),
    "gather-hard": ("#6a4c93", "-"),
    "additive": ("#2e8b57", "-"),
    "additive-causal": ("#2e8b57", "--"),
    "additive-formula": ("#2e8b57", ":"),
    "linear": ("#1b6ca8", "-"),
    "linear-causal": ("#1b6ca8", "--"),
}
PASSES = ("infer", "train")
LENGTHS = tuple(2**power for power in range(8, 15))
HEADS, DIM = 4, 64


class Row(NamedTuple):
    """Measurement of one read."""

    read: str
    """Name in READS."""
    passes: str
    """infer: forward only; train: forward and backward."""
    length: int
    """Number of queries and of keys."""
    time_ms: float
    memory_mb: float


def run(name: str, passes: str, tensors: list[Tensor]) -> None:
    """Run one read, with gradients for `train`."""
    score, choice, mask, kernel, _ = READS[name]
    query, keys, values, gradient = tensors
    with torch.set_grad_enabled(passes == "train"):
        out = attend(query, (keys, values), score=score, choice=choice, mask=mask, kernel=kernel)
        if passes == "train":
            out.backward(gradient)
            query.grad = keys.grad = values.grad = None


def seconds(name: str, passes: str, tensors: list[Tensor], *, budget_s: float) -> float:
    """Return the median time of a read."""
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < 2 or (time.perf_counter() < stop and len(times) < 300):
        start = time.perf_counter()
        run(name, passes, tensors)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def growth(cell: tuple[str, str, int]) -> int:
    """Return the peak growth in bytes of this process, which has measured nothing before, during a
    read."""
    name, passes, length = cell
    ctypes.CDLL(None).mallopt(
        -3, 2**16
    )  # M_MMAP_THRESHOLD: freed memory is returned, so it is counted when allocated again
    tensors = inputs(length)
    run(
        name, passes, tensors if READS[name][3] == "flex" else inputs(64)
    )  # setup of the first call is not counted
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    run(name, passes, tensors)
    return max(0, _status("VmHWM") - before)


def _growth_in_subprocess(cell: tuple[str, str, int]) -> int:
    """Run `growth` in a separate process."""
    name, passes, length = cell
    command = [sys.executable, __file__, "--grow", name, passes, str(length)]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def inputs(length: int) -> list[Tensor]:
    """Return query, keys, values, and the gradient of the output."""
    shape = (1, length, HEADS, DIM)
    return [torch.randn(shape).transpose(1, 2).requires_grad_(i < 3) for i in range(4)]


def measure(names: list[str], lengths: list[int], *, budget_s: float) -> list[Row]:
    """Measure memory, each read in a separate process because freed memory is reused, then time."""
    cells = [
        (name, passes, length)
        for name, passes, length in product(names, PASSES, lengths)
        if length <= READS[name][4] and not (READS[name][3] == "flex" and passes == "train")
    ]
    memory = {cell: _growth_in_subprocess(cell) for cell in cells}
    keep_freed_memory()
    rows = []
    for cell in cells:
        seconds_taken = seconds(cell[0], cell[1], inputs(cell[2]), budget_s=budget_s)
        rows.append(Row(*cell, seconds_taken * 1e3, memory[cell] / 1e6))
        print(_line(rows[-1]), flush=True)
    return rows


def exponent(rows: list[Row], name: str, passes: str, column: str) -> float:
    """Return b of the least-squares line log y = a + b log n through the four longest."""
    points = [
        (row.length, getattr(row, column))
        for row in rows
        if (row.read, row.passes) == (name, passes)
    ]
    longest = sorted(points)[-4:]
    x, y = ([math.log(max(point[axis], 1e-9)) for point in longest] for axis in (0, 1))
    return statistics.linear_regression(x, y).slope if len(longest) > 1 else math.nan


def draw(rows: list[Row], path: Path) -> None:
    """Plot time and memory of a forward pass against the length, both axes logarithmic."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, column, title in zip(
        panels, ("time_ms", "memory_mb"), ("forward, ms", "memory, MB"), strict=True
    ):
        for name, (color, style) in LOOKS.items():
            curve = sorted(row for row in rows if (row.read, row.passes) == (name, "infer"))
            slope = exponent(rows, name, "infer", column)
            values = [getattr(row, column) for row in curve]
            axes.loglog(
                [row.length for row in curve],
                values,
                style,
                color=color,
                marker=".",
                label=f"{name}, n^{slope:.2f}",
            )
        axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("queries and keys")
        axes.set_title(title, fontsize=10)
        axes.legend(frameon=False, fontsize=6.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _line(row: Row) -> str:
    sizes = f"{row.length:>6} {row.time_ms:>10.3f} {row.memory_mb:>10.2f}"
    return f"{row.read:<17} {row.passes:<6} {sizes}"


def _read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [
        columns
        for columns in words
        if len(columns) == 5 and columns[0] in READS and columns[2].isdigit()
    ]
    return [Row(name, passes, int(n), float(ms), float(mb)) for name, passes, n, ms, mb in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reads", nargs="*", choices=READS, default=list(READS))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--seconds", type=float, default=0.5, help="time spent on each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "growth")
    parser.add_argument("--grow", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.grow:
        name, passes, length = options.grow
        print(growth((name, passes, int(length))))
        return
    text = options.out.with_suffix(".txt")
    old = {row[:3]: row for row in _read_rows(text)}
    new = {
        row[:3]: row for row in measure(options.reader, options.lengths, budget_s=options.seconds)
    }
    rows = sorted((old | new).values())
    exponents = [
        f"{name:<17} {passes:<6} time n^{exponent(rows, name, passes, 'time_ms'):.2f}"
        f"  memory n^{exponent(rows, name, passes, 'memory_mb'):.2f}"
        for name, passes in product(READS, PASSES)
        if any((row.read, row.passes) == (name, passes) for row in rows)
    ]
    head = (
        f"threads={options.threads} torch {torch.__version__}, 1 item, {HEADS} heads of size "
        f"{DIM}, float32"
    )
    columns = f"{'read':<17} {'pass':<6} {'n':>6} {'ms':>10} {'MB':>10}"
    parts = [
        head,
        "",
        columns,
        *map(_line, rows),
        "",
        "exponents of the four longest",
        *exponents,
        "",
    ]
    text.write_text("\n".join(parts), encoding="utf-8")
    draw(rows, options.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
