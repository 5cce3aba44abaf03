"""Command lines run in a child forked from this process, which has loaded the package only.

A case costs a fork instead of a start of Python and its imports. A crash, a hang or high memory use
affects one child.
"""

import os
import pkgutil
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import regard
from tests.campaigns.campaign import Outcome

__all__ = ["ChildResult", "command", "judge", "run_forked"]

MOST_BYTES = 2 << 30
MOST_LINE = 1200
ALLOWANCE = 24 << 30
"""Addresses a child may take: torch maps more than it touches; 10^13 bytes must fail."""


@dataclass(frozen=True)
class ChildResult:
    """Result of a child process."""

    code: int
    """Exit status, or minus the signal that ended the child."""
    out: str
    err: str
    seconds: float
    peak: int
    """Peak memory in bytes, including memory shared with the parent."""
    is_late: bool
    """True if the child was killed after the time limit."""


def command(
    words: Sequence[str],
    *,
    seconds: float = 20.0,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> ChildResult:
    """Run `regard WORDS` as a user would."""

    _import_package()

    def work() -> int:
        os.environ.update(env or {})
        return import_module("regard.cli.main").main(list(words))

    return run_forked(work, seconds=seconds, stdin=stdin)


@cache
def _import_package() -> None:
    """Import all modules but compiled loops, and packages that are imported where they are used.

    Otherwise each child would import them, which takes ten times as long as the rest of a case.
    """
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if not module.name.startswith(("regard.__main__", "regard.native")):
            import_module(module.name)
    for name in ("scipy.optimize", "scipy.signal", "tensorboard.summary.writer.record_writer"):
        import_module(name)


def run_forked(
    work: Callable[[], int], *, seconds: float = 20.0, stdin: bytes = b""
) -> ChildResult:
    """Run `work`, which returns an exit code, in a child whose standard streams are files.

    Its working directory is an empty folder, which is removed afterwards.
    """
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / which for which in ("in", "out", "err")]
        paths[0].write_bytes(stdin)
        (Path(name) / "work").mkdir()
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _work(work, paths)
        is_late = False
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if not is_late and time.monotonic() - start > seconds:
                is_late = True
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        out, err = (path.read_bytes().decode("utf-8", "backslashreplace") for path in paths[1:])
    code = os.waitstatus_to_exitcode(status)
    return ChildResult(code, out, err, time.monotonic() - start, usage.ru_maxrss * 1024, is_late)


def judge(
    result: ChildResult, case: str, *, names: Sequence[str] = (), fine: Sequence[int] = (0, 2)
) -> Outcome:
    """Return the outcome of a command: `accepted` (exit 0), `refused` (exit 2 and one line), or the
    problem.

    names: texts of which a refusal must contain at least one, such as the name of the file.
    """
    last = (result.err.strip().splitlines() or [""])[-1]
    problems = {
        "timeout": (result.is_late, f"over {result.seconds:.0f} s"),
        "traceback": ("Traceback (most recent call last)" in result.err, last),
        "exit code": (result.code not in fine, f"{result.code}: {last}"),
        "memory": (result.peak > MOST_BYTES, f"{result.peak >> 20} MiB"),
    }
    if result.code == 2:
        problems |= {
            "no message": (not last.startswith("regard: "), last),
            "long message": (len(last) > MOST_LINE, f"{len(last)} characters"),
            "not named": (bool(names) and not any(name in last for name in names), last),
        }
    kinds = (
        Outcome(kind, case, detail[:200]) for kind, (holds, detail) in problems.items() if holds
    )
    return next(kinds, Outcome("refused" if result.code == 2 else "accepted", case, last[:200]))


def _work(work: Callable[[], int], paths: Sequence[Path]) -> None:
    """Run the work in the child and exit; never returns."""
    code = 99
    try:
        os.chdir(paths[0].parent / "work")
        flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
        for number, (path, flag) in enumerate(zip(paths, flags, strict=True)):
            os.dup2(os.open(path, flag), number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        resource.setrlimit(resource.RLIMIT_AS, (ALLOWANCE, ALLOWANCE))
        warnings.resetwarnings()  # pytest turns warnings into errors, a user's Python does not
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001  # printed as Python would
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
