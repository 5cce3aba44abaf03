"""Whole runs, disturbed at a random moment and started again: what is left must be what an undisturbed run leaves.

Killed (SIGKILL) before a file is opened for writing, renamed, copied, removed or flushed, once or time and again; told
that the disk is full or read-only, at one operation or from it on; files limited in size (RLIMIT_FSIZE); interrupted by
a signal once or twice; the clock set back.
"""

import builtins
import errno
import hashlib
import io
import json
import os
import random
import re
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import Ended, command, forked, judged
from tests.campaigns.small_runs import RECIPES, SmallRun, home, small_run

__all__ = ["CAMPAIGN"]

STEPS = 3
SECONDS = 60.0
_OPERATIONS = ("fsync", "copy_file_range", "truncate", "rename", "replace", "unlink", "rmdir", "mkdir")


def _disturbed(words: list[str], folder: Path, act: Callable[[int], None], *, set_up: Callable[[], object]) -> Ended:
    """Run a command; before each of its operations on files in its folder, `act` gets how many came before."""

    def work() -> int:
        from regard.cli.main import main  # noqa: PLC0415  # its patches end with this process

        seen = 0

        def happen(*given: Any) -> None:
            nonlocal seen
            # Training writes through the open directory.
            places = (str(folder), "/proc/self/fd/")
            if any(str(one).startswith(places) for one in given) or isinstance(given[0], int):
                seen += 1
                act(seen)

        for name in _OPERATIONS:
            setattr(os, name, _before(getattr(os, name), happen))
        real = io.open

        def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if set(mode) & set("wxa") and not str(file).endswith("/events"):
                happen(file)
            return real(file, mode, *rest, **more)

        io.open = builtins.open = opened  # type: ignore[assignment]
        set_up()
        code = main(words)
        (folder.parent / "events").write_text(str(seen), encoding="ascii")
        return code

    return forked(work, seconds=SECONDS)


def _before(real: Callable[..., Any], happen: Callable[..., None]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        happen(*args)
        return real(*args, **kwargs)

    return counted


@cache
def _events(recipe: str) -> int:
    """How many operations a run makes."""
    made, _ = small_run(recipe, steps=STEPS)
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        ended = _disturbed(made.train(folder, STEPS), folder, lambda number: None, set_up=lambda: None)
        assert ended.code == 0, ended.err
        return int((Path(name) / "events").read_text(encoding="ascii"))


def case(seed: int, number: int) -> Outcome:
    draw = random.Random(f"{seed}/{number}")
    made, whole = small_run(draw.choice(list(RECIPES)), steps=STEPS)
    at = draw.randrange(1, _events(made.recipe) + 1)
    kind = draw.choice(("kill", "kill", "kill", "kills", "full", "read-only", "limit", "signals", "clock"))
    said = f"{made.recipe}: {kind} at {at}"
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        wrong = _DISTURBANCES[kind](draw, made, folder, at)
        if wrong:
            return Outcome(*wrong[:1], said, wrong[1])
        ended = command(made.train(folder, STEPS), seconds=SECONDS)
        outcome = judged(ended, said, fine=(0,))
        if outcome.kind != "accepted":
            return Outcome(f"not gone on with: {outcome.kind}", said, outcome.detail)
        expected, found = _left(whole), _left(folder)
        if expected != found:
            names = sorted(one for one in {*expected, *found} if expected.get(one) != found.get(one))
            return Outcome("different", said, f"{kind}: {re.sub(r'[0-9]+', 'N', names[0])}")
        return Outcome("equal", said)


def _killed(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    def act(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return _unless(_disturbed(made.train(folder, STEPS), folder, act, set_up=lambda: None), (-9,))


def _killed_often(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    for _ in range(3):
        _killed(draw, made, folder, draw.randrange(1, at + 1))
    return None


def _refused(number: int, *, always: bool) -> Callable[[random.Random, SmallRun, Path, int], tuple[str, str] | None]:
    def disturbance(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
        def act(seen: int) -> None:
            if seen == at or (always and seen > at):
                raise OSError(number, os.strerror(number), str(folder))

        ended = _disturbed(made.train(folder, STEPS), folder, act, set_up=lambda: None)
        return _unless(ended, (0, 2))

    return disturbance


def _limited(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    most = draw.choice((100, 1000, 3000, 10_000, 30_000))

    def set_up() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    return _unless(_disturbed(made.train(folder, STEPS), folder, lambda number: None, set_up=set_up), (0, 2))


def _interrupted(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    first, second = draw.choice(((signal.SIGINT,) * 2, (signal.SIGTERM,) * 2, (signal.SIGTERM, signal.SIGINT)))
    again = at + draw.choice((1, 1, 2, 5, 1000))

    def act(number: int) -> None:
        if number in (at, again):
            os.kill(os.getpid(), first if number == at else second)

    ended = _disturbed(made.train(folder, STEPS), folder, act, set_up=lambda: None)
    return _unless(ended, (0, 130, -signal.SIGTERM))


def _clock_back(draw: random.Random, made: SmallRun, folder: Path, at: int) -> tuple[str, str] | None:
    back = draw.choice((3600.0, 10.0**7, 1e9))

    def act(number: int) -> None:
        if number == at:
            real = time.time
            time.time = lambda: real() - back
        if number == at + 3:
            os.kill(os.getpid(), signal.SIGKILL)

    return _unless(_disturbed(made.train(folder, STEPS), folder, act, set_up=lambda: None), (0, -9))


_DISTURBANCES: dict[str, Callable[[random.Random, SmallRun, Path, int], tuple[str, str] | None]] = {
    "kill": _killed,
    "kills": _killed_often,
    "full": _refused(errno.ENOSPC, always=False),
    "read-only": _refused(errno.EROFS, always=True),
    "limit": _limited,
    "signals": _interrupted,
    "clock": _clock_back,
}


def _unless(ended: Ended, codes: tuple[int, ...]) -> tuple[str, str] | None:
    """What is wrong with how a disturbed command ended."""
    last = (ended.err.strip().splitlines() or [""])[-1]
    if ended.is_late:
        return "timeout", last
    if "Traceback" in ended.err:
        return "traceback", last
    if ended.code not in codes:
        return "exit code", f"{ended.code}: {last}"
    if ended.code == 2 and not last.startswith("regard: "):
        return "no message", last
    return None


def _left(folder: Path) -> dict[str, str]:
    """A digest of each file of a run, of logs and reports without what depends on the clock, by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("tb") or path.name in ("state.json", "run.json"):
            found |= {} if name.startswith("tb") else {name: ""}
            continue
        data = path.read_bytes() if path.is_file() else b""
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            timeless = [{k: v for k, v in one.items() if k not in ("seconds", "tokens_per_s")} for one in lines]
            data = repr(timeless).encode()
        if path.name == "report.json":
            report = json.loads(data)
            del report["training"]["minutes"], report["checksum"]
            data = re.sub(r"'seconds[a-z_]*': [0-9.e-]+", "", repr(report)).encode()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


CAMPAIGN = Campaign(
    name="kills",
    about="whole runs disturbed at a random moment and started again",
    cases=200,
    run=case,
    fine=frozenset({"equal"}),
    seconds=400.0,
)
