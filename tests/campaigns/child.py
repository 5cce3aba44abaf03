"""Functions run in a child forked from this process, which has loaded the package.

A case costs a fork instead of a start of Python and its imports. A crash or a hang affects one
child.
"""

import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from numba.core.registry import cpu_target

import regard

__all__ = ["ChildResult", "run_forked"]


@dataclass(frozen=True)
class ChildResult:
    """Result of a child process."""

    code: int
    """Exit status, or minus the signal that ended the child."""
    err: str
    """Content of standard error."""
    seconds: float
    is_late: bool
    """True if the child was killed after the time limit."""

    @property
    def last_line(self) -> str:
        """The last line of standard error."""
        return (self.err.strip().splitlines() or [""])[-1]


def run_forked(work: Callable[[], int], *, seconds: float) -> ChildResult:
    """Run `work`, which returns an exit code, in a child whose output is captured.

    Its working directory is an empty folder, which is removed afterwards.
    """
    _import_package()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(output.fileno(), 2)
            _work(work)
        is_late, ended = False, 0
        while not ended:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not is_late and time.monotonic() - start > seconds:
                is_late = True
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        output.seek(0)
        err = output.read().decode("utf-8", "backslashreplace")
    return ChildResult(os.waitstatus_to_exitcode(status), err, time.monotonic() - start, is_late)


@cache
def _import_package() -> None:
    """Import all modules, and packages that are imported where they are used.

    Otherwise each child would import them, which takes ten times as long as the rest of a case.
    """
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if module.name != "regard.__main__" and ".gpu" not in module.name:
            import_module(module.name)
    for name in ("torch._dynamo", "scipy.optimize", "tensorboard.summary.writer.record_writer"):
        import_module(name)
    cpu_target.target_context.refresh()


def _work(work: Callable[[], int]) -> None:
    """Run the work in the child and exit; never returns."""
    code = 1
    try:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        warnings.resetwarnings()  # pytest turns warnings into errors, a user's Python does not
        code = work()
    except BaseException:  # noqa: BLE001  # printed as Python would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
