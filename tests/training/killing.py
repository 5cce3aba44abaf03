"""Program that repeats a small run and kills it at a different event each time.

`python -m tests.training.killing FOLDER` prints one JSON object: the results of an uninterrupted
run, of runs killed (SIGKILL) before their n-th event and resumed, of one killed repeatedly until it
finished, and of runs that were interrupted (SIGINT, SIGTERM): the exit code of each part, and the
files after the last part.

Each part is a process forked from this one, which has loaded torch and computed nothing.
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
import torch._dynamo  # otherwise every fork imports it, in the first step of its optimizer
from torch import nn

from tests.training.toy import ToyBatches, settings, train, validate

# All kinds of files in a checkpoint, and only one checkpoint kept.
CONFIG = settings(
    steps=10, accumulate=2, average=2, ema=0.5, keep=1, log_every=3, checkpoint_every=3
)


class Events:
    """Counter of accesses to data and files, which sends its own process a signal before one."""

    def __init__(self, fatal: int, number: signal.Signals):
        self.fatal, self.number, self.count = fatal, number, 0

    def record(self, *_: object) -> None:
        self.count += 1
        if self.count == self.fatal:
            os.kill(os.getpid(), self.number)

    def watch(self, owner: Any, name: str) -> None:
        """Count every call of `owner.name` as an event."""
        original = getattr(owner, name)

        def record_call(*args: Any, **kwargs: Any) -> Any:
            self.record()
            return original(*args, **kwargs)

        setattr(owner, name, record_call)


def train_part(folder: Path, fatal: int, number: signal.Signals) -> int:
    """Train in this process until the end or the fatal event, and return the exit code."""
    events = Events(fatal, number)
    # Flushing is slow and not needed: files that a killed process wrote are still in the system's
    # cache.
    os.fsync = lambda handle: None
    for owner, names in {
        os: ["fsync"],
        Path: ["rename", "replace", "unlink", "mkdir"],
        shutil: ["rmtree", "copyfile"],
    }.items():
        for name in names:
            events.watch(owner, name)

    def measure(model: nn.Module) -> dict[str, float]:
        events.record()
        return validate(model)

    result = train(folder, CONFIG, batches=ToyBatches(before_batch=events.record), validate=measure)
    (folder / "events").write_text(str(events.count))
    return 130 if result.is_interrupted else 0


def run_forked(work: Callable[[], int]) -> int:
    """Run `work` in a child process; return its exit code, or minus the number of a signal."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train_until_done(
    folder: Path, fatal: int, number: signal.Signals, *, always: bool = False
) -> dict[str, Any]:
    """Train until a part ends without a signal, which the first part or all parts get."""
    exit_codes: list[int] = []
    while not exit_codes or exit_codes[-1] != 0:
        assert len(exit_codes) < 200, "the run never ends"
        event = fatal if always or not exit_codes else 0
        exit_codes.append(run_forked(lambda event=event: train_part(folder, event, number)))
    return {"exit_codes": exit_codes, "files": digests(folder)}


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a run; that of the log leaves out times."""
    files = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            for line in lines:
                line.pop("seconds")
                line.pop("tokens_per_s", None)
            data = json.dumps(lines).encode()
        if path.name not in ("events", "state.json"):
            files[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return files


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    uninterrupted = train_until_done(folder / "uninterrupted", 0, signal.SIGKILL)
    events = int((folder / "uninterrupted" / "events").read_text())
    killed, interrupted = {}, {}
    for event in range(1, events, 11):
        killed[event] = train_until_done(folder / f"killed-{event}", event, signal.SIGKILL)
    repeated = train_until_done(folder / "repeated", events // 3, signal.SIGKILL, always=True)
    for event, number in ((7, signal.SIGINT), (31, signal.SIGTERM), (events // 2, signal.SIGINT)):
        interrupted[event] = train_until_done(folder / f"interrupted-{event}", event, number)
    results = {"uninterrupted": uninterrupted, "killed": killed}
    print(json.dumps(results | {"repeated": repeated, "interrupted": interrupted}))


if __name__ == "__main__":
    main()
