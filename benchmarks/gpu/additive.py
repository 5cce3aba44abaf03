"""Additive attention on the device, of projected queries and keys: ms, 10^12 triples (query, key,
hidden) a second, memory beyond the inputs and launches (n) of a call.

`eager` materializes the tensor (batch, query, key, hidden); `compiled` is the form of it that
torch.compile fuses best. Both are left out where that tensor takes more than 20 GB.
"""

import math

import torch

import regard
from benchmarks.attention import Eager, Fusible
from benchmarks.gpu.measure import (
    Run,
    Setting,
    count_launches,
    medians,
    peak_memory,
    ratio,
    row,
    verdict,
)

Size = tuple[int, int, int, int]
NAMES = ("regard", "eager", "compiled")
BACKWARD = (1, 16384, 16384, 64), 0.9
"""Size, and 10^12 triples a second of its backward pass."""
SIZES: dict[Size, float | None] = {
    (32, 32, 32, 128): None,
    (8, 256, 256, 128): 2.0,
    (2, 1024, 1024, 128): 5.0,
    (1, 4096, 4096, 64): 12.0,
    BACKWARD[0]: None,
    (64, 1, 50, 256): None,
}
"""Sizes, and how many times as fast as eager a float32 read with backward should be."""


def contestants(
    size: Size, dtype: torch.dtype, device: torch.device, *, train: bool
) -> dict[str, Run]:
    """Return a read by each implementation, forward only or with gradients."""
    batch, num_queries, num_keys, hidden = size
    torch.manual_seed(1)
    to = {"device": device, "dtype": dtype}
    lengths = (num_queries, num_keys, num_keys)
    tensors = [torch.randn(batch, n, hidden, **to, requires_grad=train) for n in lengths]
    gradient = torch.randn(batch, num_queries, hidden, **to)
    score = regard.BareAdditive(hidden).to(**to)
    readers = {"regard": lambda query, *memory: regard.attend(query, memory, score=score)}
    if math.prod(size) * gradient.element_size() <= 20e9:
        readers["eager"] = Eager(hidden, projects=False).to(**to)
        fusible = Fusible(hidden, projects=False).to(**to)
        readers["compiled"] = torch.compile(fusible, dynamic=False)

    def run(name: str) -> None:
        with torch.set_grad_enabled(train):
            out = readers[name](*tensors)
        if train:
            torch.autograd.grad(out, tensors, gradient)

    return {name: lambda name=name: run(name) for name in readers}


def run(setting: Setting) -> None:
    words = [f"{name} ms" for name in NAMES] + ["/ eager", "/ compiled", "T triples/s"]
    words += ["regard MB", "eager MB", *(f"{name} n" for name in NAMES)]
    print(row("batch, query, key, hidden", "", *words))
    verdicts = []
    for size, target in ({(2, 5, 7, 16): None} if setting.quick else SIZES).items():
        for dtype in (torch.float32, torch.bfloat16):
            ours = {}
            for way in ("infer", "train"):
                torch.compiler.reset()  # else a call looks through the shapes compiled before
                runs = contestants(size, dtype, setting.device, train=way == "train")
                seconds = medians(runs, setting)
                ms = [seconds[name] * 1e3 if name in seconds else None for name in NAMES]
                ratios = [ratio(seconds, name, "regard") for name in NAMES[1:]]
                ours[way] = seconds.get("regard", float("nan"))
                memory = [peak_memory(runs[n], setting) if n in seconds else None for n in NAMES]
                counts = [count_launches(runs[n], setting) if n in seconds else None for n in NAMES]
                rate = math.prod(size) / ours[way] / 1e12
                cells = [*ms, *ratios, rate, *memory[:2], *counts]
                print(row(size, f"{str(dtype)[6:]} {way}", *cells), flush=True)
                if target is not None and dtype == torch.float32 and way == "train":
                    verdicts.append(verdict(f"{size} / eager", ratios[0], "least", target))
            if size == BACKWARD[0] and dtype == torch.float32:
                rate = math.prod(size) / (ours["train"] - ours["infer"]) / 1e12
                verdicts.append(
                    verdict(f"{size} backward, T triples/s", rate, "least", BACKWARD[1])
                )
    print("\n".join(verdicts))
