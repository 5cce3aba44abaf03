"""Speed of reads compared with other implementations: additive and dot-product attention, in pairs,
on one machine.

    python benchmarks/attention.py additive|step|dot [--threads 2] [--memory default|kept]
    [--seconds 2]

additive  queries, keys and values of one size, one head, of projected queries and keys
          (--projections: of others). `eager` materializes the tensor (batch, query, key, hidden);
          `compiled` is the form of it that torch.compile fuses best; `keras` is
          keras.layers.AdditiveAttention on torch, if keras is installed (it has no projections).
step      one query per row on a memory whose keys are already projected, as in step-by-step
decoding.
dot       attend by kernel "auto", scaled_dot_product_attention called directly, and plain products.

All competitors of a row run in one process, in turns of a tenth of a second whose first run is not
counted. Ratios are those of consecutive turns, so that load on the machine affects all alike;
medians count. Above one: regard is faster. MB: growth of a separate process beyond its inputs.
Triples per second: query x key x hidden. `--memory kept` keeps freed memory for all competitors, as
                    the command line does for training.
"""

import argparse
import gc
import importlib.util
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks import causal
from regard.attention.memory import Memory
from regard.attention.scores import Additive, BareAdditive
from regard.system.allocator import keep_freed_memory

SQUARE = [(32, 32, 32, 128), (8, 256, 256, 128), (2, 1024, 1024, 128)]
LONG = [(1, 4096, 4096, 64), (1, 16384, 16384, 64)]
STEPS = [(64, 1, 50, 256), (16, 1, 30, 128), (1, 1, 50, 256)]
DOTS = [
    (32, 4, 32),
    (16, 4, 64),
    (8, 4, 128),
    (8, 4, 256),
    (4, 4, 512),
    (2, 8, 1024),
    (1, 8, 2048),
    (1, 8, 4096),
]
HEAD_DIM = 64
ROUND_S = 0.1
Run = Callable[[], object]


class Eager(nn.Module):
    """softmax(v . tanh(W_q query + W_k key)) values, by broadcasting; without `projects`, W_q = W_k
    = 1."""

    def __init__(self, hidden: int, *, projects: bool):
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False) if projects else nn.Identity()
        self.key = nn.Linear(hidden, hidden, bias=False) if projects else nn.Identity()
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self.read(query, self.key(keys), values)

    def read(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend to keys that are already projected."""
        scores = self.v(torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)
        return torch.softmax(scores, -1) @ values


class Fusible(Eager):
    """Form of `Eager` that inductor fuses into one loop."""

    def read(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        triples = torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1))
        return torch.softmax((triples * self.v.weight[0]).sum(-1), -1) @ values


def readers(
    hidden: int, names: list[str], projects: bool
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return the implementations to compare: functions of query, keys and values."""
    score = Additive(hidden, hidden, hidden) if projects else BareAdditive(hidden)
    methods = {
        "ours": lambda: lambda query, keys, values: attend(query, (keys, values), score=score),
        "eager": lambda: Eager(hidden, projects=projects),
        "compiled": lambda: torch.compile(Fusible(hidden, projects=projects), dynamic=False),
        "keras": lambda: keras_reader(hidden),
    }
    return {name: methods[name]() for name in names}


def keras_reader(hidden: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras  # noqa: PLC0415  # only here, and only where it is installed

    layer = keras.layers.AdditiveAttention(use_scale=True)
    layer.build([(None, None, hidden)] * 2)
    return lambda query, keys, values: layer([query, values, keys])


def runs(
    size: tuple[int, int, int, int], names: list[str], projects: bool, *, train: bool
) -> dict[str, Run]:
    """Return a read by each implementation, forward only or with gradients."""
    batch, num_queries, num_keys, hidden = size
    tensors = [
        torch.randn(batch, n, hidden, requires_grad=train)
        for n in (num_queries, num_keys, num_keys)
    ]
    gradient = torch.randn(batch, num_queries, hidden)
    return {
        name: _run(reader, tensors, gradient, train)
        for name, reader in readers(hidden, names, projects).items()
    }


def steps(size: tuple[int, int, int, int], names: list[str], *, train: bool) -> dict[str, Run]:
    """Return a step of each decoder on keys that are already projected."""
    batch, num_queries, num_keys, hidden = size
    query = torch.randn(batch, num_queries, hidden, requires_grad=train)
    keys, values = (torch.randn(batch, num_keys, hidden, requires_grad=train) for _ in range(2))
    gradient = torch.randn(batch, num_queries, hidden)
    score, eager, fused = (
        Additive(hidden, hidden, hidden),
        Eager(hidden, projects=True),
        Fusible(hidden, projects=True),
    )
    compiled = torch.compile(fused.read, dynamic=False)
    memory = Memory(keys, values, mapped_by=score)
    methods = {
        "ours": lambda query, *_: attend(query, memory, score=score),
        "eager": eager.read,
        "compiled": compiled,
    }
    return {name: _run(methods[name], [query, keys, values], gradient, train) for name in names}


def dots(
    batch: int, heads: int, length: int, dtype: torch.dtype, *, is_causal: bool, train: bool
) -> dict[str, Run]:
    """Return auto, torch's fused attention and plain products on tensors with the memory layout of
    a model."""
    shape = batch, length, heads, HEAD_DIM
    tensors = [
        torch.randn(shape, dtype=dtype).transpose(1, 2).detach().requires_grad_(train)
        for _ in range(3)
    ]
    gradient = torch.randn(shape, dtype=dtype).transpose(1, 2)
    mask = causal() if is_causal else None
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    closed = torch.zeros(length, length, dtype=dtype).masked_fill(hidden, float("-inf"))

    def plain(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = query @ keys.transpose(-2, -1) * HEAD_DIM**-0.5
        return (scores + closed if is_causal else scores).softmax(-1) @ values

    methods = {
        "auto": lambda query, keys, values: attend(query, (keys, values), mask=mask),
        "sdpa": lambda query, keys, values: F.scaled_dot_product_attention(
            query, keys, values, is_causal=is_causal
        ),
        "plain": plain,
    }
    return {name: _run(reader, tensors, gradient, train) for name, reader in methods.items()}


def _run(
    reader: Callable[..., Tensor], tensors: list[Tensor], gradient: Tensor, train: bool
) -> Run:
    def infer() -> None:
        with torch.no_grad():
            reader(*tensors)

    def learn() -> None:
        reader(*tensors).backward(gradient)
        for tensor in tensors:
            tensor.grad = None

    return learn if train else infer


def times(competitors: dict[str, Run], seconds: float, least: int = 5) -> dict[str, list[float]]:
    """Return the median seconds of each turn; the first run of a turn is not counted."""
    rounds: dict[str, list[float]] = {name: [] for name in competitors}
    for run in competitors.values():
        run()
        run()
    stop = time.perf_counter() + seconds * len(competitors)
    while time.perf_counter() < stop or len(rounds[next(iter(rounds))]) < least:
        for name, run in competitors.items():
            run()
            durations: list[float] = []
            until = time.perf_counter() + ROUND_S
            while not durations or time.perf_counter() < until:
                start = time.perf_counter()
                run()
                durations.append(time.perf_counter() - start)
            rounds[name].append(statistics.median(durations))
    return rounds


def ratio(times: dict[str, list[float]], other: str, ours: str) -> float:
    """Return the median ratio of the other's time to ours, over consecutive turns."""
    return statistics.median(a / b for a, b in zip(times[other], times[ours], strict=True))


def growth(name: str, size: tuple[int, int, int, int], projects: bool, train: bool) -> float:
    """Return the growth in MB of a separate process beyond its inputs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_growth, (name, size, projects, train))


def _growth(name: str, size: tuple[int, int, int, int], projects: bool, train: bool) -> float:
    for run in runs((1, 8, 8, size[3]), [name], projects, train=train).values():
        run()
    growth_run = runs(size, [name], projects, train=train)[name]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    growth_run()
    return max(0.0, _status("VmHWM") - before) / 1e6


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def additive(options: argparse.Namespace) -> None:
    projects = options.projections
    names = ["ours", "eager", "compiled"] + (
        ["keras"] if importlib.util.find_spec("keras") and not projects else []
    )
    print(
        f"{'batch, query, key, hidden':<26} {'pass':<6}"
        + "".join(f"{name + ' ms':>13}" for name in names),
        end="",
    )
    print(f"{'/ eager':>9}{'/ best other':>14}{'G triples/s':>13}{'MB':>8}{'eager MB':>10}")
    for size in SQUARE + LONG:
        for train in (False, True):
            rivals = names if size in SQUARE else names[:1]
            measured = times(
                runs(size, rivals, projects, train=train),
                options.seconds,
                5 if size in SQUARE else 3,
            )
            medians = {name: statistics.median(seconds) for name, seconds in measured.items()}
            line = f"{size!s:<26} {'train' if train else 'infer':<6}"
            line += "".join(
                f"{medians[name] * 1e3:13.3f}" if name in medians else f"{'':>13}" for name in names
            )
            ratios = [ratio(measured, name, "ours") for name in rivals[2:]]
            against = ratio(measured, "eager", "ours") if "eager" in measured else None
            line += f"{against:9.1f}{min(ratios):14.1f}" if against else f"{'':>23}"
            line += f"{size[0] * size[1] * size[2] * size[3] / medians['ours'] / 1e9:13.2f}"
            line += f"{growth('ours', size, projects, train):8.1f}"
            line += f"{growth('eager', size, projects, train):10.1f}" if against else ""
            print(line, flush=True)


def step(options: argparse.Namespace) -> None:
    names = ["ours", "eager", "compiled"]
    print(
        f"{'batch, query, key, hidden':<26} {'pass':<6}"
        + "".join(f"{name + ' us':>13}" for name in names),
        end="",
    )
    print(f"{'/ eager':>9}{'/ compiled':>12}")
    for size in STEPS:
        for train in (False, True):
            measured = times(steps(size, names, train=train), options.seconds)
            line = f"{size!s:<26} {'train' if train else 'infer':<6}"
            line += "".join(f"{statistics.median(measured[name]) * 1e6:13.1f}" for name in names)
            line += f"{ratio(measured, 'eager', 'ours'):9.1f}"
            line += f"{ratio(measured, 'compiled', 'ours'):12.1f}"
            print(line, flush=True)


def dot(options: argparse.Namespace) -> None:
    names = ["auto", "sdpa", "plain"]
    print(f"{'batch, heads, length':<20} {'dtype':<9}{'mask':<8}{'pass':<6}", end="")
    print("".join(f"{name + ' ms':>10}" for name in names) + f"{'auto / faster':>15}")
    worst = 0.0
    for size in DOTS:
        for dtype in (torch.float32, torch.bfloat16):
            for is_causal in (False, True):
                for train in (False, True):
                    measured = times(
                        dots(*size, dtype, is_causal=is_causal, train=train), options.seconds
                    )
                    share = 1 / min(
                        ratio(measured, "sdpa", "auto"), ratio(measured, "plain", "auto")
                    )
                    worst = max(worst, share)
                    line = f"{size!s:<20} {str(dtype)[6:]:<9}{'causal' if is_causal else '':<8}"
                    line += f"{'train' if train else 'infer':<6}"
                    line += "".join(
                        f"{statistics.median(measured[name]) * 1e3:10.3f}" for name in names
                    )
                    print(line + f"{share:15.3f}", flush=True)
    print(f"the largest: {worst:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["additive", "step", "dot"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", choices=["default", "kept"], default="default")
    parser.add_argument(
        "--projections", action="store_true", help="additive: with those of queries and keys"
    )
    parser.add_argument("--seconds", type=float, default=2, help="time spent on each row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    torch._dynamo.config.recompile_limit = 64
    print(f"threads={options.threads} memory={options.memory} torch {torch.__version__}")
    {"additive": additive, "step": step, "dot": dot}[options.part](options)


if __name__ == "__main__":
    main()
