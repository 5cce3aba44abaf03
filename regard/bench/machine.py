"""Measured limits of this machine (speed of matrix products, memory bandwidth), and peak memory.

    products  GFLOP/s = 2 n^3 / seconds of the fastest product of two n x n matrices
    memory    GB/s    = bytes read (and written, by a copy) / seconds of the fastest pass

The fastest of several measurements is taken, because a limit is what can be reached at best.
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.bench.timing import synchronize, time_calls
from regard.compat.torch import onednn_operators
from regard.training.precision import has_native_bfloat16

SIZE = 2048
"""Number of rows and columns of the matrices."""
EMULATED_SIZE = 256
"""The same if bfloat16 is emulated, which is slow."""
MEMORY_BYTES = 256 << 20
"""Larger than caches."""
_SMALLEST = 1 << 20
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def measure_machine(device: torch.device, *, size: int, seconds: float) -> dict[str, Any]:
    """Return the machine and its limits.

    products_gflops holds GFLOP/s by precision and implementation; parameters_read_gb_s is the speed
    of reading `size` bytes repeatedly, which stay in a cache if it is large enough.
    """
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
        "memory_read_gb_s": _read_rate(MEMORY_BYTES, device, duration),
        "parameters_read_gb_s": _read_rate(max(size, _SMALLEST), device, duration),
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


def reset_peak_memory(device: torch.device) -> int | None:
    """Reset the peak and return the memory in use in bytes, or None if the system does not report
    it.

    It is the memory of this process on Linux, that of the tensors on CUDA.
    """
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes since the last reset, or None if the system does not report
    it."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None
    )


def _products(dtype: torch.dtype, device: torch.device, seconds: float) -> dict[str, float]:
    is_native = dtype == torch.float32 or has_native_bfloat16(device)
    size = SIZE if is_native else min(SIZE, EMULATED_SIZE)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    kinds = {"torch.mm": lambda: torch.mm(left, right)}
    if device.type == "cpu" and is_native and (onednn := onednn_operators()) is not None:
        kinds["oneDNN"] = lambda: onednn[0](left, right, None, "none", [], "")
    return {
        name: 2 * size**3 / _fastest(product, device, seconds) / 1e9
        for name, product in kinds.items()
    }


def _read_rate(size: int, device: torch.device, seconds: float) -> float:
    numbers = torch.ones(size // 4, device=device)
    return numbers.nbytes / _fastest(numbers.sum, device, seconds) / 1e9


def _copy_rate(device: torch.device, seconds: float) -> float:
    source = torch.ones(MEMORY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device, seconds) / 1e9


def _fastest(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    return min(time_calls([call], seconds=seconds, device=device).seconds)
