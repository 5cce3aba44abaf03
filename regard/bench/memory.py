"""Peak memory: of this process on Linux, of the tensors on CUDA."""

from pathlib import Path

import torch

from regard.bench.timing import synchronize


def reset_peak_memory(device: torch.device) -> int | None:
    """Reset the peak and return the memory in use in bytes, or None if the system does not report it."""
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
    """Return the peak memory in bytes since the last reset, or None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
