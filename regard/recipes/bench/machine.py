"""What this machine reaches, measured for a moment: matrix products and memory.

    products  GFLOP/s = 2 n^3 / seconds of the fastest product of two n x n matrices
    memory    GB/s    = bytes read (and written, by a copy) / seconds of the fastest pass

The fastest of several is taken, for a limit is what can be reached, not what usually is.
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.recipes.bench.timing import timed
from regard.train.precision import has_native_bfloat16

SIZE = 2048
"""Rows and columns of the matrices."""
EMULATED_SIZE = 256
"""The same where bfloat16 is emulated, and slow."""
MEMORY_BYTES = 256 << 20
"""Larger than caches are."""
_SMALLEST = 1 << 20


def measure_machine(device: torch.device, *, seconds: float) -> dict[str, Any]:
    """The machine and its limits. `products_gflops` holds, by precision, GFLOP/s by the name of the product."""
    while_ = min(seconds, 0.5)
    products = {name: _products(dtype, device, while_) for name, dtype in _DTYPES.items()}
    return {
        "processor": processor(device),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "products_gflops": products,
        "has_native_bfloat16": has_native_bfloat16(device),
        "memory_copy_gb_s": _copy_rate(device, while_),
        "memory_read_gb_s": read_rate(MEMORY_BYTES, device, seconds=while_),
    }


def better(once: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Two measurements of a machine, of which each limit is the higher one: others may have slowed the other."""
    found = dict(once)
    for name, value in again.items():
        if isinstance(value, dict):
            found[name] = better(once[name], value)
        elif isinstance(value, float):
            found[name] = max(once[name], value)
    return found


def limit_of(machine: dict[str, Any], precision: str) -> float:
    """GFLOP/s of the fastest product of a precision."""
    return max(machine["products_gflops"][precision].values())


def read_rate(size: int, device: torch.device, *, seconds: float) -> float:
    """GB/s at which so many bytes (1 MiB at least) are read again and again: from the cache, if they fit into one."""
    numbers = torch.ones(max(size, _SMALLEST) // 4, device=device)
    best = min(timed([numbers.sum], seconds=min(seconds, 0.5), device=device).seconds)
    return numbers.nbytes / best / 1e9


def processor(device: torch.device) -> str:
    """What the processor calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _products(dtype: torch.dtype, device: torch.device, seconds: float) -> dict[str, float]:
    size = SIZE if dtype == torch.float32 or has_native_bfloat16(device) else min(SIZE, EMULATED_SIZE)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    found = {}
    for name, product in _KINDS.items():
        if name == "oneDNN" and not _has_onednn(dtype, device):
            continue
        best = min(timed([lambda product=product: product(left, right)], seconds=seconds, device=device).seconds)
        found[name] = 2 * size**3 / best / 1e9
    return found


def _onednn(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")


_KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"torch.mm": torch.mm, "oneDNN": _onednn}
"""Products of two matrices that models here are computed by; another is added by one line."""


def _has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or has_native_bfloat16(device)


def _copy_rate(device: torch.device, seconds: float) -> float:
    source = torch.ones(MEMORY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    best = min(timed([lambda: target.copy_(source)], seconds=seconds, device=device).seconds)
    return 2 * source.nbytes / best / 1e9
