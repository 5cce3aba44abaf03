"""Which kernel reads fastest: the formula's plain products beside torch's fused attention, by size and dtype.

    python benchmarks/kernels.py [--threads 2]

Tensors lie in memory as a model's do, (batch, time, head, dim), and the gradient that comes back is one of its own,
not the broadcast one of a sum, which slows plain products down. Each row alternates the two kernels and gives the
median of their ratio, reference time / sdpa time: above one the fused kernel wins. The bounds in
regard/attention/kernels/table.py come from this.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.masks import Mask, causal, padding
from regard.train.allocator import keep_freed_memory

SIZES = [(1, 4, 1, 16), (64, 4, 1, 32), (64, 4, 16, 16), (32, 4, 32, 32), (16, 4, 128, 128), (8, 2, 256, 256)]
SIZES += [(2, 2, 512, 512), (2, 2, 1024, 1024), (1, 1, 4096, 4096)]
DIM = 64


def run(kernel: str, tensors: list[Tensor], mask: Mask | None, *, train: bool) -> float:
    """Seconds of one read, with its gradients if it is for training."""
    start = time.perf_counter()
    query, keys, values, gradient = tensors
    out = attend(query, (keys, values), mask=mask, kernel=kernel)
    if train:
        out.backward(gradient)
    return time.perf_counter() - start


def ratio(tensors: list[Tensor], mask: Mask | None, *, train: bool, seconds: float) -> tuple[float, float, float]:
    """Median time of each kernel, and of their ratio."""
    times: dict[str, list[float]] = {"reference": [], "sdpa": []}
    with torch.set_grad_enabled(train):
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop or len(times["sdpa"]) < 5:
            for kernel, taken in times.items():
                taken.append(run(kernel, tensors, mask, train=train))
    pairs = list(zip(times["reference"], times["sdpa"], strict=True))[2:]
    medians = [statistics.median(taken) for taken in times.values()]
    return medians[0], medians[1], statistics.median(a / b for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.6, help="time spent on each row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    print(f"threads={options.threads} torch {torch.__version__}, head size {DIM}; milliseconds")
    print(
        f"{'batch x heads x m x n':>22} {'dtype':>9} {'mask':>8} {'pass':>6} {'reference':>10} {'sdpa':>8} {'ratio':>6}"
    )
    for batch, heads, m, n in SIZES:
        masks = {"padding": padding([max(1, n - i % 5) for i in range(batch)])} | (
            {"causal": causal()} if m > 1 else {}
        )
        for dtype in (torch.float32, torch.bfloat16):
            shapes = [(batch, times, heads, DIM) for times in (m, n, n, m)]
            tensors = [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]
            for name, mask in masks.items():
                for train in (False, True) if m > 1 else (False,):
                    plain, fused, between = ratio(tensors, mask, train=train, seconds=options.seconds)
                    size, kind = f"{batch} x {heads} x {m} x {n}", str(dtype).removeprefix("torch.")
                    print(
                        f"{size:>22} {kind:>9} {name:>8} {'train' if train else 'infer':>6} "
                        f"{plain * 1e3:>10.2f} {fused * 1e3:>8.2f} {between:>6.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
