"""Table of torch.profiler: the time of operators, grouped by name, and their FLOPs by
torch.utils.flop_counter.

    share of a group = self time of its operators / wall time          self time: without nested
    operators PYTHON           = wall time - sum of all self times               so that the shares
                               add up to 100 %

    FLOPs: product of (m, k) and (k, n)                          2 m k n; convolutions as matrix
           products attention of q queries to k keys, for each head       2 q k (d_key + d_value)
           backward                                              two products for each forward

No other FLOPs are counted, and no scores recomputed in the backward pass. Padding is computed, so
it is counted. A fused operator of this package is counted as the plain operators that it replaces.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from regard.bench.timing import synchronize

BATCHES, ENGINE = "batch construction", "decoding engine"
"""Groups of ranges that the caller marks by `mark`: torch sees no operators in them."""
PRODUCTS, OTHER, PYTHON = "matrix products", "other operators", "Python and compiled loops"

_RANGE = "regard: "
_GROUPS = {
    "optimizer": r"^Optimizer|adam|sgd|foreach|AccumulateGrad|linalg_vector_norm",
    "loss": r"^_ChunkedLoss|log_?softmax|nll_?loss|cross_entropy",
    "attention": r"scaled_?dot_?product|flash|softmax|additive|^_Read|^_DirectRead|^_Backward",
    "recurrent cells": r"^_Encode|^_Decode|gru|lstm|rnn",
    "normalization": r"norm|^_AddDropout",
    "dropout": r"^_Drop|dropout|bernoulli",
    PRODUCTS: r"mm$|mmBackward|mv$|mvBackward|matmul|linear|conv|einsum|^_Product",
    "embedding": r"embedding|index_add",
    "activations": r"relu|gelu|silu|sigmoid|tanh|clamp_min|threshold",
    "copies and memory": (
        r"copy|clone|contiguous|::to$|cat$|stack|empty|zero|::ones|full|fill|::new_|index|select|slice|narrow|split|view|"
        r"reshape|alias|transpose|::t$|flatten|expand|permute|squeeze|strided|detach|resize|repeat|unbind|pad|"
        r"^item$|::item$|_local_scalar|lift|chunk|gather|scatter|^(T|Copy|Cat|Clone)\w*Backward"
    ),
}
"""Regular expressions of the names of operators by group; the first one that matches counts."""


def mark(name: str) -> record_function:
    """Return a context whose time outside operators is a group of its own in the profile."""
    return record_function(_RANGE + name)


def profile_calls(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    *,
    flops: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Profile the calls, after a warm-up; `flops` are those of all calls, by operator."""
    alone = _seconds(calls, device)
    is_cpu = device.type == "cpu"
    activities = [ProfilerActivity.CPU, *([] if device.type != "cuda" else [ProfilerActivity.CUDA])]
    with profile(
        activities=activities, schedule=schedule(wait=0, warmup=1, active=1), acc_events=True
    ) as profiler:
        calls[0]()
        profiler.step()
        wall = _seconds(calls, device)
    times = {
        event.key: (
            event.count,
            1e-6 * (event.self_cpu_time_total if is_cpu else event.self_device_time_total),
        )
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CPU
    }
    return {
        "profile": tabulate(times, wall, flops or {}),
        "profiled_calls": len(calls),
        "profiled_ms": 1e3 * wall / len(calls),
        "profiler_slowdown": wall / alone,
    }


def tabulate(
    times: Mapping[str, tuple[int, float]], wall: float, flops: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the groups, that with the most time first and PYTHON last.

    times: number of calls and self time in seconds, by operator.
    flops: FLOPs by operator.
    """
    operators: dict[str, list[dict[str, Any]]] = {}
    for name, (count, seconds) in sorted(times.items(), key=lambda item: -item[1][1]):
        if seconds > 0 and (group := group_of(name)) != PYTHON:
            row = {"name": name.removeprefix(_RANGE), "calls": count, "seconds": seconds}
            operators.setdefault(group, []).append(row)
    sums = {group: sum(row["seconds"] for row in rows) for group, rows in operators.items()}
    counted: Counter[str] = Counter()
    for name, number in flops.items():
        counted[group_of(name)] += number
    # Clocks differ by microseconds, so that the rest may come out negative.
    sums = dict(sorted(sums.items(), key=lambda item: -item[1])) | {
        PYTHON: max(0.0, wall - sum(sums.values()))
    }
    whole = sum(sums.values()) or 1.0
    return [
        {
            "group": group,
            "seconds": seconds,
            "percent": 100 * seconds / whole,
            "flop": counted[group],
            "operators": operators.get(group, []),
        }
        for group, seconds in sums.items()
    ]


@lru_cache(maxsize=10_000)
def group_of(name: str) -> str:
    """Return the group of an operator; ranges that only enclose others belong to PYTHON."""
    if name.startswith(_RANGE):
        return name.removeprefix(_RANGE)
    if name.startswith("ProfilerStep"):
        return PYTHON
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return next(
        (group for group, names in _GROUPS.items() if re.search(names, name, re.IGNORECASE)), OTHER
    )


def count_flops(call: Callable[[], object]) -> Counter[str]:
    """Return the FLOPs of a call, forward and backward, by operator."""
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        call()
    counts = counter.get_flop_counts().get("Global", {})
    return Counter(
        {str(operator).replace(".", "::", 1): number for operator, number in counts.items()}
    )


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return formulas of operators that torch's counter lacks or counts differently; they take
    shapes."""

    def linear(items: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * prod(items) * weight[0]  # items (*, k), weight (n, k)

    def attention(
        query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
    ) -> int:
        return sdpa_flop_count(query, key, value)

    def attention_backward(_gradient: Sequence[int], *shapes: Any, **__: Any) -> int:
        return 2 * sdpa_flop_count(*shapes[:3])

    formulas: dict[str, Callable[..., int]] = {
        "mkldnn::_linear_pointwise": linear,
        "aten::mv": lambda matrix, *_, **__: 2 * prod(matrix),
        "aten::addmv": lambda _bias, matrix, *_, **__: 2 * prod(matrix),
        "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
    }
    for kind in (
        "flash_attention_for_cpu",
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
    ):
        formulas[f"aten::_scaled_dot_product_{kind}_backward"] = attention_backward
    found = {}
    for name, formula in formulas.items():
        namespace, _, operator = name.partition("::")
        if hasattr(getattr(torch.ops, namespace), operator):  # in this version of torch
            found[getattr(getattr(torch.ops, namespace), operator)] = formula
    return found


def _seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for call in calls:
        call()
    synchronize(device)
    return time.perf_counter() - start
