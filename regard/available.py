"""How much memory this process may still take, and limits that environment variables state. (no torch)"""

import os
from pathlib import Path

from regard.errors import UserError

_VARIABLE = "REGARD_MAX_MEMORY_MIB"
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes of memory that this process may still take; None where the system does not say.

    The least of what the machine has, what the process's control group leaves, what `ulimit -v` leaves, and what the
    environment variable REGARD_MAX_MEMORY_MIB says.
    """
    free = [_of_machine(), _of_group(), _of_limit(), _of_variable()]
    return min((one for one in free if one is not None), default=None)


def variable_limit(name: str, unit: str) -> int | None:
    """Return the limit that an environment variable states, in units; None if it is not set.

    Raises: UserError naming the variable if it is not a whole number above 0.
    """
    given = os.environ.get(name, "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 10 and int(given) > 0):
        raise UserError(f"{name} must be a whole number of {unit} above 0, but is {given[:40]!r}")
    return int(given) if given else None


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
    limit = variable_limit(_VARIABLE, "MiB")
    return None if limit is None else limit << 20
