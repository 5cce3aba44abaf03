"""Memory available to this process, and limits set by environment variables. (no torch)"""

import os
from pathlib import Path

from regard.errors import UserError

_VARIABLE = "REGARD_MAX_MEMORY_MIB"
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the memory in bytes that this process can still allocate, or None if the system does
    not report it.

    The minimum of the machine's available memory, the rest of the control group's limit, the rest
    of `ulimit -v`, and the environment variable REGARD_MAX_MEMORY_MIB.
    """
    limits = [_machine_memory(), _control_group_memory(), _address_space(), _variable_memory()]
    return min((limit for limit in limits if limit is not None), default=None)


def variable_limit(name: str, unit: str) -> int | None:
    """Return the limit set by an environment variable, in `unit`, or None if the variable is not
    set.

    Raises: UserError naming the variable if it is not a whole number above 0.
    """
    text = os.environ.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise UserError(f"{name} must be a whole number of {unit} above 0, got {text[:40]!r}")
    return int(text) if text else None


def _machine_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return next(
            int(line.split()[1]) << 10
            for line in text.splitlines()
            if line.startswith("MemAvailable:")
        )
    except (OSError, ValueError, StopIteration):
        return None


def _control_group_memory() -> int | None:
    try:
        limit, used = (
            (_CGROUP / name).read_text(encoding="ascii").strip()
            for name in ("memory.max", "memory.current")
        )
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def _address_space() -> int | None:
    try:
        import resource  # noqa: PLC0415  # POSIX only

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return (
        None if limit == resource.RLIM_INFINITY else max(0, limit - pages * resource.getpagesize())
    )


def _variable_memory() -> int | None:
    limit = variable_limit(_VARIABLE, "MiB")
    return None if limit is None else limit << 20
