"""Measured limits of this machine: speed of matrix products and of memory.

products  GFLOP/s = 2 n^3 / seconds of a product of two n x n matrices
copy      GB/s    = bytes read and written / seconds of a copy
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

SIZE = 2048
"""Number of rows and columns of the matrices."""
COPIED_BYTES = 256 << 20
"""Larger than caches."""


def measure_machine(device: torch.device, *, seconds: float) -> dict[str, Any]:
    """Measure the machine, each limit for some seconds."""
    products = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.randn(2, SIZE, SIZE, device=device).to(dtype)
        duration = time_call(lambda a=left, b=right: torch.mm(a, b), seconds=seconds)
        products[str(dtype).removeprefix("torch.")] = 2 * SIZE**3 / duration / 1e9
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    duration = time_call(lambda: target.copy_(source), seconds=seconds)
    return {
        "processor": processor_name(device),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "products_gflops": products,
        "copy_gb_s": 2 * source.nbytes / duration / 1e9,
    }


def time_call(call: Callable[[], object], *, seconds: float) -> float:
    """Return the median duration of a call that is repeated for some seconds."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=seconds).median


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
