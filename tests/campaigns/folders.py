"""Run folders damaged in one place: training is resumed, or the run is used.

The result must be that of an undamaged folder, bit for bit, or a refusal that names a file of the
folder. No checkpoint that could be repaired is removed, and no file that does not belong to the
run.

Weights of the same model in place of model.safetensors are not damage, because a user may put them
there.
"""

import hashlib
import json
import os
import random
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import ChildResult, command, judge
from tests.campaigns.small_runs import RECIPES, SmallRun, home, small_run

__all__ = ["CAMPAIGN"]

STEPS, MORE = 2, 3
SECONDS = 20.0
FOREIGN = (
    "thesis.tex",
    "notes/plan.txt",
    "checkpoints/step-0000/model.safetensors",
    "checkpoints/step-00000003/thesis.tex",
    "checkpoints/step-00000001/notes.txt",
    "checkpoints/readme",
    "snapshots/mine.safetensors",
    "snapshots/.tmp1",
    ".hidden",
)

Damage = Callable[[random.Random, Path], str]


def _bytes(change: Callable[[random.Random, bytearray], object]) -> Damage:
    def damage(draw: random.Random, path: Path) -> str:
        content = bytearray(path.read_bytes())
        description = change(draw, content) if content else "is empty"
        path.unlink()  # it may be a link to a snapshot, which stays as it is
        path.write_bytes(content)
        return str(description)

    return damage


@_bytes
def flip(draw: random.Random, content: bytearray) -> str:
    """Flip one bit, most often near the beginning, where the header is."""
    at = draw.randrange(min(len(content), draw.choice((200, 2000, len(content)))))
    content[at] ^= 1 << draw.randrange(8)
    return f"bit of byte {at}"


@_bytes
def cut(draw: random.Random, content: bytearray) -> str:
    del content[draw.randrange(len(content)) :]
    return f"to {len(content)} bytes"


@_bytes
def remove_some(draw: random.Random, content: bytearray) -> str:
    at = draw.randrange(len(content))
    del content[at : at + draw.randrange(1, 30)]
    return f"at {at}"


@_bytes
def insert_some(draw: random.Random, content: bytearray) -> str:
    at = draw.randrange(len(content) + 1)
    content[at:at] = draw.randbytes(draw.randrange(1, 30))
    return f"at {at}"


@_bytes
def zero_some(draw: random.Random, content: bytearray) -> str:
    at = draw.randrange(len(content))
    end = min(len(content), at + 512)
    content[at:end] = bytes(end - at)
    return f"at {at}"


@_bytes
def become_noise(draw: random.Random, content: bytearray) -> str:
    content[:] = draw.randbytes(draw.randrange(2000))
    return f"{len(content)} bytes"


@_bytes
def become_nested(draw: random.Random, content: bytearray) -> str:
    content[:] = draw.choice((b"[", b'{"a":')) * 100_000
    return ""


def become_other(draw: random.Random, path: Path) -> str:
    """Replace the file by something that is not a regular file, or by a huge one."""
    kind = draw.choice(("device", "pipe", "folder", "nothing", "socket", "huge", "loop"))
    path.unlink()
    if kind == "device":
        path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/dev/full", "/dev/urandom")))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "nothing":
        path.symlink_to(path.parent / "nowhere")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 20 << 30)
    else:
        unix_socket, directory = socket.socket(socket.AF_UNIX), Path.cwd()
        os.chdir(path.parent)  # a socket's name must be short
        unix_socket.bind(path.name)
        os.chdir(directory)
        unix_socket.close()
    return kind


def go(draw: random.Random, path: Path) -> str:
    path.unlink()
    return ""


def edit(draw: random.Random, path: Path) -> str:
    """Change one value of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    entries = list(_entries(content))
    holder, key = draw.choice(entries)
    value = holder[key]
    choices: list[Any] = [
        None,
        True,
        -1,
        0,
        1,
        10**9,
        10**400,
        0.5,
        1e308,
        "",
        "x",
        [],
        {},
        [[]],
        "nan",
        "\x1b[2J",
    ]
    if isinstance(value, int | float):
        choices += [value + 1, value - 1, value * 2] * 4
    if isinstance(value, list) and value:
        choices += [value[::-1], value[:-1], value * 2] * 3
    kind = draw.random()
    if kind < 0.1 and isinstance(holder, dict):
        del holder[key]
        change = "gone"
    elif kind < 0.2 and isinstance(holder, dict):
        holder[f"{key}x"] = value
        change = "twice"
    else:
        holder[key] = draw.choice(choices)
        change = str(holder[key])[:30]
    path.unlink()
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return f"{key}: {change}"


def _entries(tree: Any) -> Any:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _entries(value)


ANY: tuple[Damage, ...] = (
    flip,
    flip,
    flip,
    cut,
    remove_some,
    insert_some,
    zero_some,
    become_noise,
    become_nested,
    become_other,
    become_other,
    go,
)


def case(seed: int, number: int) -> Outcome:
    draw = random.Random(f"{seed}/{number}")
    run, original = small_run(draw.choice(list(RECIPES)), steps=STEPS)
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        shutil.copytree(original, folder, symlinks=True)
        original_digests = _digests(folder)
        damage, foreign = _damage(draw, folder)
        damaged = _digests(folder)
        verb = draw.choice(("resume", "resume", "predict", "evaluate", "look"))
        if damage.startswith(("checkpoints", "snapshots", "log.jsonl", "tb")):
            verb = "resume"
        description = f"{run.recipe} {damage}: {verb}"
        result, answer = _use(run, folder, verb, Path(name))
        expected = _expected_answer(run.recipe, verb)
        outcome = judge(
            result,
            description,
            names=(str(folder), "run/", *[Path(path).name for path in original_digests]),
        )
        if outcome.kind == "accepted" and answer != expected:
            outcome = Outcome(
                "other answer",
                description,
                f"{verb} after {damage.split(':')[0]}: {result.err[-150:]}",
            )
        loss = _find_losses(
            folder, original_digests, damaged, foreign=foreign, result=result, verb=verb
        )
        if outcome.kind in CAMPAIGN.fine and loss:
            outcome = Outcome("lost", description, loss)
        return outcome


def _damage(draw: random.Random, folder: Path) -> tuple[str, dict[str, bytes]]:
    """Damage one file or folder; return a description, and the foreign files that were added."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    number = draw.random()
    if number < 0.07:
        names = [name for name in FOREIGN if draw.random() < 0.4] or [FOREIGN[0]]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"mine\n")
        return f"foreign {' '.join(names)}", dict.fromkeys(names, b"mine\n")
    if number < 0.11:
        removed = draw.choice(sorted(path for path in folder.rglob("*") if path.is_dir()))
        shutil.rmtree(removed)
        return f"{removed.relative_to(folder)} gone", {}
    if number < 0.16:
        first_path, second_path = draw.sample(
            [path for path in files if "step-" in str(path) or path.suffix == ".json"], 2
        )
        first, second = first_path.read_bytes(), second_path.read_bytes()
        for path, content in ((first_path, second), (second_path, first)):
            path.unlink()
            path.write_bytes(content)
        return (
            f"{first_path.relative_to(folder)} swapped with {second_path.relative_to(folder)}",
            {},
        )
    if number < 0.22:
        names = [
            ".run.json.new",
            ".model.safetensors.new",
            ".learned.json.new",
            "snapshots/.step-00000001.safetensors.new",
        ]
        names += [
            "checkpoints/step-00000003.new/model.safetensors",
            "snapshots/.step-00000003.safetensors.new",
        ]
        leftovers = draw.sample(names, 3)
        for name in leftovers:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"half")
        return f"left {' '.join(leftovers)}", {}
    state = [path for path in files if path.name == "state.json"]
    json_files = [path for path in files if path.suffix == ".json"]
    path = draw.choice(draw.choice((state, json_files, files)))
    damage = edit if path.suffix == ".json" and draw.random() < 0.5 else draw.choice(ANY)
    description = damage(draw, path)
    return f"{path.relative_to(folder)} {getattr(damage, '__name__', 'bytes')} {description}", {}


def _use(run: SmallRun, folder: Path, verb: str, work: Path) -> tuple[ChildResult, str]:
    """Run a command on the folder, and return the part of its output that must be reproducible."""
    if verb == "resume":
        result = command(run.train(folder, MORE), seconds=SECONDS)
        return result, _weights(folder) if result.code == 0 else ""
    if verb == "predict":
        result = command(run.predict(folder, work), seconds=SECONDS)
        picture = work / "drawn.png"
        output = result.out.replace(str(work), "")
        return result, output + (
            hashlib.sha256(picture.read_bytes()).hexdigest() if picture.exists() else ""
        )
    if verb == "look":
        result = command(
            ["look", str(folder), *run.inputs, "--out", str(work / "page.html")], seconds=SECONDS
        )
        return result, ""
    result = command(run.evaluate(folder), seconds=SECONDS)
    return result, re.sub(r'"seconds": [0-9.]+', "", result.out)


@cache
def _expected_answer(recipe: str, verb: str) -> str:
    """Return the output for an undamaged copy."""
    run, original = small_run(recipe, steps=STEPS)
    with tempfile.TemporaryDirectory(dir=home()) as name:
        folder = Path(name) / "run"
        shutil.copytree(original, folder, symlinks=True)
        result, answer = _use(run, folder, verb, Path(name))
        assert result.code == 0, result.err
        return answer


def _weights(folder: Path) -> str:
    """Return a digest of the weights and the scores of the report."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return f"{weights} {report['test']} {report['validation']}"


def _digests(folder: Path) -> dict[str, str]:
    """Return a digest of each regular file, by name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.stat().st_size < 1 << 24
        and not str(path.resolve()).startswith("/dev")
    }


def _find_losses(
    folder: Path,
    original: dict[str, str],
    damaged: dict[str, str],
    *,
    foreign: dict[str, bytes],
    result: ChildResult,
    verb: str,
) -> str:
    """Return a message about a file that was lost but should have been kept, or an empty text."""
    remaining = _digests(folder)
    contents = list(remaining.values())
    for name in foreign:
        aside = re.sub(r"(step-00000003)/", r"\1.aside/", name)
        if damaged[name] not in (remaining.get(name), remaining.get(aside)):
            return f"{name} is gone or altered"
    expected = {
        name: digest
        for name, digest in damaged.items()
        if not re.search(r"\.new|log\.jsonl|tb/", name)
    }
    if result.code != 0 or verb != "resume":
        missing = [
            name
            for name, digest in expected.items()
            if digest not in contents and name not in ("report.json", "run.json")
        ]
        return f"refused, but {missing[0]} is gone or altered" if missing else ""
    newest = f"checkpoints/step-{STEPS:08d}/"
    if any(damaged.get(name) != original.get(name) for name in original if name.startswith(newest)):
        missing = [
            name for name in damaged if name.startswith(newest) and damaged[name] not in contents
        ]
        return f"{missing[0]} is gone" if missing else ""
    leftovers = [name for name in remaining if re.search(r"\.new|\.old|\.gone", name)]
    return f"{leftovers[0]} is left" if leftovers and verb == "resume" and result.code == 0 else ""


CAMPAIGN = Campaign(
    name="folders",
    about="run folders damaged in one place, then resumed or used",
    cases=3000,
    run=case,
    fine=frozenset({"accepted", "refused"}),
    seconds=400.0,
)
