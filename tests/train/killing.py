"""Trains one small run many times over, killing it each time at another moment, and prints what came of it.

`python -m tests.train.killing FOLDER` prints one JSON object: of the run that nothing stopped, of runs killed
(SIGKILL) before their n-th event and started again, of one killed time and again until it got through, and of
runs that were interrupted (SIGINT, SIGTERM): how each part ended, and what the last part left.

Each part is a process of its own, forked from this one, which has loaded torch and computed nothing.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # else every fork imports it, in the first step of its optimizer
from torch import nn

from tests.train.toy import ToyBatches, settings, train, validate

__all__ = ["main"]

# Everything that a checkpoint could hold, and only one of them kept.
CONFIG = settings(steps=10, accumulate=2, average=2, ema=0.5, keep=1, log_every=3, checkpoint_every=3)


class Events:
    """Counts what a run does to its data and files, and sends itself a signal before one of these events."""

    def __init__(self, fatal: int, number: signal.Signals):
        self.fatal, self.number, self.seen = fatal, number, 0

    def happen(self, *_: object) -> None:
        self.seen += 1
        if self.seen == self.fatal:
            os.kill(os.getpid(), self.number)

    def before(self, owner: Any, name: str) -> None:
        """Have every call of `owner.name` be an event."""
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.happen()
            return real(*args, **kwargs)

        setattr(owner, name, counted)


def part(folder: Path, fatal: int, number: signal.Signals) -> int:
    """Train in this process, until the end or the fatal event; the exit code."""
    events = Events(fatal, number)
    # The disk is slow, and what a killed process wrote the system still has.
    os.fsync = lambda handle: None
    for owner, names in {
        os: ["fsync", "copy_file_range", "truncate"],
        Path: ["rename", "replace", "unlink", "mkdir"],
        shutil: ["rmtree"],
    }.items():
        for name in names:
            events.before(owner, name)

    def measure(model: nn.Module) -> dict[str, float]:
        events.happen()
        return validate(model)

    result = train(folder, CONFIG, batches=ToyBatches(before_batch=events.happen), validate=measure)
    (folder / "events").write_text(str(events.seen))
    return 130 if result.is_interrupted else 0


def forked(work: Callable[[], int]) -> int:
    """What a child process that does `work` ends with; minus the signal's number if one killed it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until_done(folder: Path, fatal: int, number: signal.Signals, *, always: bool = False) -> dict[str, Any]:
    """Train until a part ends well, sending the signal in the first part only, or in all of them."""
    endings: list[int] = []
    while not endings or endings[-1] != 0:
        assert len(endings) < 200, "the run never ends"
        moment = fatal if always or not endings else 0
        endings.append(forked(lambda moment=moment: part(folder, moment, number)))
    return {"endings": endings, "left": left_in(folder)}


def left_in(folder: Path) -> dict[str, str]:
    """A digest of each file that a run left; of the log without what depends on the clock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            timeless = [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in lines]
            data = json.dumps(timeless).encode()
        if path.name not in ("events", "state.json"):
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    whole = until_done(folder / "whole", 0, signal.SIGKILL)
    events = int((folder / "whole" / "events").read_text())
    found: dict[str, Any] = {"whole": whole, "events": events, "killed": {}, "interrupted": {}}
    for moment in range(1, events, 11):
        found["killed"][moment] = until_done(folder / f"killed-{moment}", moment, signal.SIGKILL)
    found["often"] = until_done(folder / "often", events // 3, signal.SIGKILL, always=True)
    for moment, number in ((7, signal.SIGINT), (31, signal.SIGTERM), (events // 2, signal.SIGINT)):
        found["interrupted"][moment] = until_done(folder / f"interrupted-{moment}", moment, number)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
