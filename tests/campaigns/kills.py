"""Training runs that are interrupted and resumed: the result must be that of an uninterrupted run.

moment   killed (SIGKILL) at a random moment
kill     killed before a file is opened for writing, renamed, copied, removed or flushed
kills    the same, three times
full     the disk is full, for one operation or from there on
signals  one or two signals
"""

import builtins
import errno
import hashlib
import io
import json
import os
import random
import re
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import ChildResult, command, judge, run_forked
from tests.campaigns.small_runs import RECIPES, SmallRun, home, small_run

__all__ = ["CAMPAIGN"]

STEPS = 3
SECONDS = 60.0
_OPERATIONS = (
    "fsync",
    "sendfile",
    "truncate",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "mkdir",
)


def _run_disturbed(
    words: list[str], folder: Path, act: Callable[[int], None], *, set_up: Callable[[], object]
) -> ChildResult:
    """Run a command, and call `act` with the number of each file operation in its folder."""

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
            if set(mode) & set("wxa") and not str(file).endswith("/events"):
                count_operation(file)
            return real(file, mode, *rest, **more)

        io.open = builtins.open = open_counted  # type: ignore[assignment]
        set_up()
        code = main(words)
        (folder.parent / "events").write_text(str(count), encoding="ascii")
        return code

    return run_forked(work, seconds=SECONDS)


def _before(real: Callable[..., Any], callback: Callable[..., None]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        callback(*args)
        return real(*args, **kwargs)

    return wrapper


@cache
def _measure(recipe: str) -> tuple[int, float]:
    """Return the number of file operations of a run, and its seconds."""
    run, _ = small_run(recipe, steps=STEPS)
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        result = _run_disturbed(
            run.train(folder, STEPS), folder, lambda number: None, set_up=lambda: None
        )
        assert result.code == 0, result.err
        return int((Path(name) / "events").read_text(encoding="ascii")), result.seconds


def case(seed: int, number: int) -> Outcome:
    draw = random.Random(f"{seed}/{number}")
    run, reference = small_run(draw.choice(list(RECIPES)), steps=STEPS)
    at = draw.randrange(1, _measure(run.recipe)[0] + 1)
    kind = draw.choice(("moment", "moment", "kill", "kill", "kills", "full", "signals"))
    description = f"{run.recipe}: {kind} at {at}"
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        problem = _DISTURBANCES[kind](draw, run, folder, at)
        if problem:
            return Outcome(*problem[:1], description, problem[1])
        result = command(run.train(folder, STEPS), seconds=SECONDS)
        outcome = judge(result, description, fine=(0,))
        if outcome.kind != "accepted":
            return Outcome(f"not resumed: {outcome.kind}", description, outcome.detail)
        expected, actual = _digests(reference), _digests(folder)
        if expected != actual:
            names = sorted(
                path for path in {*expected, *actual} if expected.get(path) != actual.get(path)
            )
            return Outcome("different", description, f"{kind}: {re.sub(r'[0-9]+', 'N', names[0])}")
        return Outcome("equal", description)


def _kill(draw: random.Random, run: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    def act(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return _find_problem(
        _run_disturbed(run.train(folder, STEPS), folder, act, set_up=lambda: None), (-9,)
    )


def _kill_repeatedly(
    draw: random.Random, run: SmallRun, folder: Path, at: int
) -> tuple[str, str] | None:
    for _ in range(3):
        _kill(draw, run, folder, draw.randrange(1, at + 1))
    return None


def _kill_at_moment(
    draw: random.Random, run: SmallRun, folder: Path, at: int
) -> tuple[str, str] | None:
    seconds = draw.uniform(0.1, _measure(run.recipe)[1])

    def set_up() -> None:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    result = _run_disturbed(run.train(folder, STEPS), folder, lambda number: None, set_up=set_up)
    return _find_problem(result, (0, -9))


def _fill_disk(draw: random.Random, run: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    always = draw.random() < 0.5

    def act(count: int) -> None:
        if count == at or (always and count > at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    result = _run_disturbed(run.train(folder, STEPS), folder, act, set_up=lambda: None)
    return _find_problem(result, (0, 2))


def _interrupt(draw: random.Random, run: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    first, second = draw.choice(
        ((signal.SIGINT,) * 2, (signal.SIGTERM,) * 2, (signal.SIGTERM, signal.SIGINT))
    )
    repeated_at = at + draw.choice((1, 1, 2, 5, 1000))

    def act(number: int) -> None:
        if number in (at, repeated_at):
            os.kill(os.getpid(), first if number == at else second)

    result = _run_disturbed(run.train(folder, STEPS), folder, act, set_up=lambda: None)
    return _find_problem(result, (0, 130, -signal.SIGTERM))


_DISTURBANCES: dict[str, Callable[[random.Random, SmallRun, Path, int], tuple[str, str] | None]] = {
    "moment": _kill_at_moment,
    "kill": _kill,
    "kills": _kill_repeatedly,
    "full": _fill_disk,
    "signals": _interrupt,
}


def _find_problem(result: ChildResult, codes: tuple[int, ...]) -> tuple[str, str] | None:
    """Return what is wrong with the way in which an interrupted command ended, or None."""
    last = (result.err.strip().splitlines() or [""])[-1]
    if result.is_late:
        return "timeout", last
    if "Traceback" in result.err:
        return "traceback", last
    if result.code not in codes:
        return "exit code", f"{result.code}: {last}"
    if result.code == 2 and not last.startswith("regard: "):
        return "no message", last
    return None


def _digests(folder: Path) -> dict[str, str]:
    """Return digests of a run's files by name, without what depends on the clock."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("tb") or path.name in ("state.json", "run.json"):
            digests |= {} if name.startswith("tb") else {name: ""}
            continue
        data = path.read_bytes() if path.is_file() else b""
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            timeless = [
                {k: v for k, v in entry.items() if k != "seconds" and not k.endswith("_per_s")}
                for entry in lines
            ]
            data = repr(timeless).encode()
        if path.name == "report.json":
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
