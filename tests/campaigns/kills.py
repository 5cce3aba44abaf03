"""Training runs that are interrupted and resumed: the result must be that of an uninterrupted run.

moment   killed (SIGKILL) at a random moment
kill     killed before a file is opened for writing, renamed, removed or flushed
kills    the same, three times
full     the disk is full, for one operation or from there on
signals  one or two signals
"""

import atexit
import builtins
import errno
import fcntl
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import ChildResult, run_forked
from tests.same import CASES, plain, write_data

__all__ = ["CAMPAIGN"]

STEPS = 3
SECONDS = 60.0
RECIPES = {
    "translate": "--tokenizer.joint false --model.tie target --train.ema 0.5",
    "reviews": "",
    "images": "--augment shift",
    "language": "",
    "draw": "",
}
"""Cases of tests.same that are trained, and further options of each."""
_TRAIN = (
    "--train.warmup 1 --train.log-every 1 --train.validate-every 1 --train.average 2 "
    "--train.device cpu --train.precision float32 --train.keep-finished checkpoints "
    f"--train.checkpoint-minutes 0 --train.tensorboard false --train.steps {STEPS}"
)
_OPERATIONS = ("fsync", "sendfile", "truncate", "rename", "replace", "unlink", "rmdir", "mkdir")
_HOME = Path(tempfile.mkdtemp(prefix="regard-kills-"))
"""Folder of all runs and their data, shared by forked workers."""
_OWNER = os.getpid()

Act = Callable[[int], None]


@atexit.register
def _remove_home() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(_HOME, ignore_errors=True)


def _train(recipe: str, folder: Path) -> list[str]:
    """Return the training command of a run in this folder."""
    options = f"{CASES[recipe].options} {RECIPES[recipe]} {_TRAIN}"
    return ["train", recipe, "--run", str(folder), *options.format(data=_HOME / "data").split()]


@cache
def _reference(recipe: str) -> tuple[Path, int, float]:
    """Return a run without interruption, the number of its file operations and its seconds."""
    folder, counts = _HOME / recipe / "run", _HOME / f"{recipe}.json"
    with (_HOME / "lock").open("w") as lock:  # the first worker trains
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_HOME / "data").exists():
            (_HOME / "data").mkdir()
            write_data(_HOME / "data")
        if not counts.exists():
            result, operations = _run(_train(recipe, folder), folder, seconds=300.0)
            assert result.code == 0, result.err
            counts.write_text(json.dumps([operations, result.seconds]), encoding="ascii")
    return (folder, *json.loads(counts.read_text(encoding="ascii")))


def _run(
    words: list[str],
    folder: Path,
    act: Act = lambda number: None,
    *,
    killed_after: float | None = None,
    seconds: float = SECONDS,
) -> tuple[ChildResult, int]:
    """Run a command, and call `act` with the number of each file operation in its folder.

    killed_after: seconds until the process is killed.
    Returns the result and the number of operations.
    """
    folder.parent.mkdir(exist_ok=True)
    counted = folder.parent / "operations"

    def work() -> int:
        from regard.cli.main import main  # noqa: PLC0415  # patched only in this process

        count = 0

        def count_operation(*args: Any) -> None:
            nonlocal count
            if any(str(arg).startswith(str(folder)) for arg in args) or isinstance(args[0], int):
                count += 1
                act(count)

        for name in _OPERATIONS:
            setattr(os, name, _before(getattr(os, name), count_operation))
        real = io.open

        def open_counted(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if set(mode) & set("wxa"):
                count_operation(file)
            return real(file, mode, *rest, **more)

        io.open = builtins.open = open_counted  # type: ignore[assignment]
        if killed_after is not None:
            threading.Timer(killed_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        code = main(words)
        with real(counted, "w", encoding="ascii") as file:
            file.write(str(count))
        return code

    result = run_forked(work, seconds=seconds)
    return result, int(counted.read_text(encoding="ascii")) if counted.exists() else 0


def _before(real: Callable[..., Any], callback: Callable[..., None]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        callback(*args)
        return real(*args, **kwargs)

    return wrapper


def case(seed: int, number: int) -> Outcome:
    draw = random.Random(f"{seed}/{number}")
    recipe = draw.choice(list(RECIPES))
    reference, operations, seconds = _reference(recipe)
    at = draw.randrange(1, operations + 1)
    kind = draw.choice(("moment", "moment", "kill", "kill", "kills", "full", "signals"))
    description = f"{recipe}: {kind} at {at}"
    with tempfile.TemporaryDirectory(dir=_HOME) as name:
        folder = Path(name) / "run"
        words = _train(recipe, folder)
        fine: tuple[int, ...] = (-signal.SIGKILL,)
        if kind == "moment":
            result, _ = _run(words, folder, killed_after=draw.uniform(0.1, seconds))
            fine = (0, -signal.SIGKILL)
        elif kind == "kill":
            result, _ = _run(words, folder, _kill(at))
        elif kind == "kills":
            for _ in range(3):
                result, _ = _run(words, folder, _kill(draw.randrange(1, at + 1)))
            fine = (0, -signal.SIGKILL)
        elif kind == "full":
            result, _ = _run(words, folder, _fill_disk(draw, folder, at))
            fine = (0, 2)
        else:
            result, _ = _run(words, folder, _interrupt(draw, at))
            fine = (0, 130, -signal.SIGTERM)
        problem = _find_problem(result, fine)
        if problem is not None:
            return Outcome(problem, description, result.last_line)
        result, _ = _run(words, folder)
        problem = _find_problem(result, (0,))
        if problem is not None:
            return Outcome(f"not resumed: {problem}", description, result.last_line)
        expected, actual = _digests(reference), _digests(folder)
        for path in sorted({*expected, *actual}):
            if expected.get(path) != actual.get(path):
                return Outcome("different", description, re.sub(r"[0-9]+", "N", path))
        return Outcome("equal", description)


def _kill(at: int) -> Act:
    def act(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def _fill_disk(draw: random.Random, folder: Path, at: int) -> Act:
    stays_full = draw.random() < 0.5

    def act(number: int) -> None:
        if number == at or (stays_full and number > at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    return act


def _interrupt(draw: random.Random, at: int) -> Act:
    first, second = draw.choice(
        ((signal.SIGINT,) * 2, (signal.SIGTERM,) * 2, (signal.SIGTERM, signal.SIGINT))
    )
    repeated_at = at + draw.choice((1, 1, 2, 5, 1000))

    def act(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), first)
        elif number == repeated_at:
            os.kill(os.getpid(), second)

    return act


def _find_problem(result: ChildResult, codes: tuple[int, ...]) -> str | None:
    """Return what is wrong with the way in which a command ended, or None."""
    if result.is_late:
        return "timeout"
    if "Traceback" in result.err:
        return "traceback"
    if result.code not in codes:
        return f"exit code {result.code}"
    if result.code == 2 and not result.last_line.startswith("regard: "):
        return "no message"
    return None


def _digests(folder: Path) -> dict[str, str]:
    """Return digests of a run's files by name, without what depends on the clock."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        data = path.read_bytes() if path.is_file() else b""
        if path.name in ("state.json", "run.json"):
            data = b""
        elif path.name == "log.jsonl":
            data = repr([plain(json.loads(line)) for line in data.splitlines()]).encode()
        elif path.name == "report.json":
            report = json.loads(data)
            del report["training"]["minutes"]
            data = re.sub(r"'seconds[a-z_]*': [0-9.e-]+", "", repr(report)).encode()
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


CAMPAIGN = Campaign(
    name="kills",
    about="runs disturbed at a random operation and started again",
    cases=200,
    run=case,
    fine=frozenset({"equal"}),
    seconds=400.0,
)
