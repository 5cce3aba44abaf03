"""Time of hard reads (one value per query) and soft reads (all values) against the number of keys
and value size.

    python benchmarks/hard.py [--threads 2]

64 queries of size 64 in 8 heads, float32, forward; `Hard()` by kernel "gather" beside `Soft()` by
"auto", in turns. Both compare every query with every key; they differ in what follows. Writes
OUT.txt and OUT.svg.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard.attention.attend import attend
from regard.attention.choices import Choice, Hard, Soft
from regard.system.allocator import keep_freed_memory

HEADS, QUERIES, DIM = 8, 64, 64
KEYS = [64, 256, 1024, 4096, 16384]
VALUE_DIMS = [16, 64, 256, 1024, 4096]
FIXED_KEYS, FIXED_VALUE_DIM = 1024, 64
CHOICES: dict[str, Choice] = {"hard": Hard(), "soft": Soft()}
COLORS = {"hard": "#6a4c93", "soft": "#d1495b"}


@torch.no_grad()
def measure(num_keys: int, value_dim: int, budget_s: float) -> dict[str, float]:
    """Return the median milliseconds of each choice."""
    query, keys = torch.randn(HEADS, QUERIES, DIM), torch.randn(HEADS, num_keys, DIM)
    memory = keys, torch.randn(HEADS, num_keys, value_dim)
    times: dict[str, list[float]] = {name: [] for name in CHOICES}
    stop = time.perf_counter() + budget_s
    while time.perf_counter() < stop or len(times["soft"]) < 5:
        for name, choice in CHOICES.items():
            start = time.perf_counter()
            attend(query, memory, choice=choice)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) * 1e3 for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hard")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    panels = {
        "keys": [(n, measure(n, FIXED_VALUE_DIM, options.seconds)) for n in KEYS],
        "size of values": [(d, measure(FIXED_KEYS, d, options.seconds)) for d in VALUE_DIMS],
    }
    lines = [
        f"threads={options.threads} torch {torch.__version__}, {HEADS} heads, {QUERIES} queries of "
        f"size {DIM}; ms"
    ]
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines += ["", f"{title:<16} {'hard':>9} {'soft':>9} {'soft / hard':>12}"]
        lines += [
            f"{x:<16} {ms['hard']:9.3f} {ms['soft']:9.3f} {ms['soft'] / ms['hard']:12.2f}"
            for x, ms in rows
        ]
        for name, color in COLORS.items():
            axes.loglog(
                [x for x, _ in rows],
                [ms[name] for _, ms in rows],
                color=color,
                marker=".",
                label=name,
            )
        axes.set_xlabel(title)
        axes.set_ylabel("ms")
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    text = "\n".join([*lines, ""])
    options.out.with_suffix(".txt").write_text(text, encoding="utf-8")
    figure.savefig(options.out.with_suffix(".svg"), metadata={"Date": None})
    print(text)


if __name__ == "__main__":
    main()
