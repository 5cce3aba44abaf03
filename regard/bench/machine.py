"""Measured limits of this machine: speed of matrix products and memory bandwidth.

    products  GFLOP/s = 2 n^3 / seconds of the fastest product of two n x n matrices
    memory    GB/s    = bytes read (and written, by a copy) / seconds of the fastest pass

The fastest of several measurements is taken, because a limit is what can be reached at best.
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.bench.timing import time_calls
from regard.compat.torch import onednn_operators
from regard.train.precision import has_native_bfloat16

SIZE = 2048
"""Number of rows and columns of the matrices."""
EMULATED_SIZE = 256
"""The same if bfloat16 is emulated, which is slow."""
MEMORY_BYTES = 256 << 20
"""Larger than caches."""
_SMALLEST = 1 << 20
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def measure_machine(device: torch.device, *, seconds: float) -> dict[str, Any]:
    """Return the machine and its limits; `products_gflops` holds GFLOP/s by precision and implementation."""
    duration = min(seconds, 0.5)
    products = {name: _products(dtype, device, duration) for name, dtype in _DTYPES.items()}
    return {
        "processor": processor_name(device),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "products_gflops": products,
        "has_native_bfloat16": has_native_bfloat16(device),
        "memory_copy_gb_s": _copy_rate(device, duration),
        "memory_read_gb_s": measure_read_rate(MEMORY_BYTES, device, seconds=duration),
    }


def merge_best(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merge two measurements of a machine by taking the higher value of each limit."""
    merged = dict(first)
    for name, value in second.items():
        if isinstance(value, dict):
            merged[name] = merge_best(first[name], value)
        elif isinstance(value, float):
            merged[name] = max(first[name], value)
    return merged


def peak_gflops(machine: dict[str, Any], precision: str) -> float:
    """Return the GFLOP/s of the fastest matrix product in a precision."""
    return max(machine["products_gflops"][precision].values())


def measure_read_rate(size: int, device: torch.device, *, seconds: float) -> float:
    """Return the GB/s of reading `size` bytes (at least 1 MiB) repeatedly: from a cache if they fit into one."""
    numbers = torch.ones(max(size, _SMALLEST) // 4, device=device)
    best = min(time_calls([numbers.sum], seconds=min(seconds, 0.5), device=device).seconds)
    return numbers.nbytes / best / 1e9


def processor_name(device: torch.device) -> str:
    """Return the model name of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _products(dtype: torch.dtype, device: torch.device, seconds: float) -> dict[str, float]:
    size = SIZE if dtype == torch.float32 or has_native_bfloat16(device) else min(SIZE, EMULATED_SIZE)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    rates = {}
    for name, product in _KINDS.items():
        if name == "oneDNN" and not _has_onednn(dtype, device):
            continue
        best = min(time_calls([lambda product=product: product(left, right)], seconds=seconds, device=device).seconds)
        rates[name] = 2 * size**3 / best / 1e9
    return rates


def _onednn(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    operators = onednn_operators()
    assert operators is not None
    return operators[0](left, right, None, "none", [], "")


_KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"torch.mm": torch.mm, "oneDNN": _onednn}
"""Implementations of matrix products to measure."""


def _has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cpu" or onednn_operators() is None:
        return False
    return dtype == torch.float32 or has_native_bfloat16(device)


def _copy_rate(device: torch.device, seconds: float) -> float:
    source = torch.ones(MEMORY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    best = min(time_calls([lambda: target.copy_(source)], seconds=seconds, device=device).seconds)
    return 2 * source.nbytes / best / 1e9
