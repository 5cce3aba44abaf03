"""The most memory that was used for a while: of this process on Linux, of the accelerator's tensors on CUDA."""

from pathlib import Path

import torch

from regard.recipes.bench.timing import waited


def forget_peak(device: torch.device) -> int | None:
    """Forget the most memory that was used; returns what is used now in bytes, None where the machine does not tell."""
    waited(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def peak_memory(device: torch.device) -> int | None:
    """The most memory in bytes since it was forgotten, or None where the machine does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
