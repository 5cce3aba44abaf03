"""How large a model may be on this machine, seen while it is built: before there is no room, not after.

    with fitting_memory(copies=4):
        model = make()            # UserError once its parameters, each kept `copies` times, need more than there is

Every parameter and buffer is counted when a module registers it, so this holds for any model, and costs nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from regard.errors import UserError, is_out_of_memory

__all__ = ["TRAINED", "available_memory", "fitting_memory"]

TRAINED = 4
"""Copies of each parameter that training keeps: the parameter, its gradient, and Adam's two running means."""
_VARIABLE = "REGARD_MAX_MEMORY_MIB"
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes of memory that this process may still take; None where the system does not say.

    The least of what the machine has, what the process's control group leaves, what `ulimit -v` leaves, and what the
    environment variable REGARD_MAX_MEMORY_MIB says.
    """
    free = [_of_machine(), _of_group(), _of_limit(), _of_variable()]
    return min((one for one in free if one is not None), default=None)


@contextmanager
def fitting_memory(*, copies: int = 1) -> Iterator[None]:
    """Refuse a model whose parameters, each kept `copies` times, are larger than memory.

    Raises: UserError with what is needed and what there is.
    """
    free = available_memory()
    taken, seen = 0, set()

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal taken
        # On other devices than the CPU their own allocator says so.
        if value is None or value.device.type != "cpu" or id(value) in seen:
            return
        seen.add(id(value))  # tied parameters are registered twice
        taken += value.numel() * value.itemsize * (copies if isinstance(value, nn.Parameter) else 1)
        if free is not None and taken > free:
            raise UserError(_too_large(f"more than {_gib(taken)}", free, copies))

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(_too_large(f"more than {_gib(taken)}, and then an allocation failed", free, copies)) from error
    finally:
        for hook in hooks:
            hook.remove()


def _too_large(needed: str, free: int | None, copies: int) -> str:
    what = "its parameters alone" if copies == 1 else f"its parameters, {copies} times as training keeps them,"
    there = "this machine has less" if free is None else f"there are {_gib(free)}"
    return f"the model does not fit into memory: {what} need {needed}; {there}. Fewer layers or a smaller width help."


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"


def _of_machine() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_group() -> int | None:
    try:
        most, used = ((_CGROUP / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None


def _of_limit() -> int | None:
    try:
        import resource  # noqa: PLC0415  # of POSIX alone

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return None if most == resource.RLIM_INFINITY else max(0, most - pages * resource.getpagesize())


def _of_variable() -> int | None:
    given = os.environ.get(_VARIABLE, "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 10 and int(given) > 0):
        raise UserError(f"{_VARIABLE} must be a whole number of MiB above 0, but is {given[:40]!r}")
    return int(given) << 20 if given else None
