"""Damaged data files of every format: one step is trained, or the file is refused in one line that
names it."""

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch._dynamo  # noqa: F401  # what a run would import, loaded once

from regard.ops.dispatch import find, unsupported_reason
from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import command, judge
from tests.campaigns.files_damage import apply_damage
from tests.campaigns.files_handmade import HANDMADE
from tests.campaigns.files_specimens import SPECIMENS, Specimen, specimen

__all__ = ["CAMPAIGN", "train_on"]

_IMAGES = ("idx", "png", "jpeg", "bmp", "gif", "webp", "tiff", "pgm")
_SOUNDS = ("wav", "w64", "rf64", "aiff", "au", "caf", "alac", "flac", "ogg", "opus", "mp3", "npz")
_BINARY = (*_IMAGES, *_SOUNDS, "tar")
_KINDS = ("missing", "empty", "folder", "pipe", "zeros", "unreadable link")
_KIND_SHARE = 0.02


def case(seed: int, number: int) -> Outcome:
    """Run a handmade file, or a file of one format with one kind of damage."""
    if number < len(HANDMADE):
        handmade = HANDMADE[number]
        content = handmade.content() if callable(handmade.content) else handmade.content
        outcome = train_on(specimen(handmade.specimen), handmade.file, content, handmade.name)
        is_unexpected = (
            outcome.kind in ("refused", "accepted") and outcome.kind != handmade.expected
        )
        return (
            Outcome(f"{outcome.kind}, not {handmade.expected}", handmade.name, outcome.detail)
            if is_unexpected
            else outcome
        )
    draw = random.Random(f"files {seed} {number}")
    name = draw.choice(list(SPECIMENS))
    other = specimen(draw.choice(list(SPECIMENS)))
    good = specimen(name)
    file = draw.choice(good.mutated)
    if draw.random() < _KIND_SHARE:
        kind = draw.choice(_KINDS)
        return train_on(good, file, kind, f"{name}: {file}: {kind}")
    content = other.files[draw.choice(other.mutated)]
    is_text = not name.startswith(_BINARY)
    description, content = apply_damage(draw, good.files[file], content, is_text=is_text)
    return train_on(good, file, content, f"{name}: {file}: {description}")


def train_on(good: Specimen, file: str, content: bytes | str, about: str) -> Outcome:
    """Train with this content in one file, or (a word) with something else in its place, and return
    the outcome."""
    folder = Path(tempfile.mkdtemp(prefix="regard-files-"))
    try:
        for name, original in good.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(original)
        if isinstance(content, bytes):
            (folder / file).write_bytes(content)
        else:
            _no_file(folder / file, content)
        words = [word.replace("{}", str(folder)) for word in good.words.split()]
        feeding = (
            _feed_pipe(folder / file, good.files[file]) if content == "pipe" else nullcontext()
        )
        with _without_native(), feeding:
            result = command(["train", *words, "--run", str(folder / "run")])
        names = [part for name in good.files for part in (Path(name).name,)]
        outcome = judge(result, about, names=[*names, f"{folder}/all"])
        if outcome.kind == "accepted" and not _is_finite(folder / "run" / "report.json"):
            return Outcome("nan", about, result.err[-200:])
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_file(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "unreadable link":
        path.symlink_to(path)


@contextmanager
def _feed_pipe(pipe: Path, content: bytes) -> Generator[None, None, None]:
    """Write the content to a named pipe once, from another process, as soon as the pipe is read."""
    child = os.fork()
    if child == 0:
        try:
            pipe.write_bytes(content)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)  # it still waits if the pipe was refused
        os.waitpid(child, 0)


@contextmanager
def _without_native() -> Generator[None, None, None]:
    """Disable compiled loops, which would take each child seconds to compile."""
    before = os.environ.get("REGARD_NATIVE")
    try:
        os.environ["REGARD_NATIVE"] = "0"
        unsupported_reason.cache_clear()
        find.cache_clear()
        yield
    finally:
        if before is None:
            del os.environ["REGARD_NATIVE"]
        else:
            os.environ["REGARD_NATIVE"] = before
        unsupported_reason.cache_clear()
        find.cache_clear()


def _is_finite(path: Path) -> bool:
    """Return True if a report holds no NaN."""
    bad_constants: list[str] = []
    json.loads(path.read_text(encoding="utf-8"), parse_constant=bad_constants.append)
    return not bad_constants


CAMPAIGN = Campaign(
    name="files",
    about="data files of every format, mutated",
    cases=10_000,
    run=case,
    fine=frozenset({"accepted", "refused"}),
    seconds=60.0,
)
