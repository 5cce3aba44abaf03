"""Captures with a few bytes or values changed, opened and drawn by `regard look`.

Each case must give a page or a figure, or one line that names the file, with nothing else written
or changed.
"""

import functools
import hashlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import command, judge
from tests.campaigns.options_data import finished_run, folder, inputs_of

__all__ = ["CAMPAIGN"]

RECIPES = ("translate", "boxes", "events", "tracks", "reviews")
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        1,
        -1,
        2,
        10**6,
        2**63,
        10**400,
        0.5,
        -1e308,
        5e-324,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "\x1b[31m",
        "\ud800",
        "</script><script>alert(1)</script>",
        "$\\frac$",
        "source",
        "output",
        "a" * 3000,
        "maps/0",
    ),
    *([], [[]], [1], [0.5] * 4, {}, {"a": {}}, [None], ["a", "b"]),
)


def run(seed: int, number: int) -> Outcome:
    """Run the case of a seed and a number."""
    draw = random.Random(f"captures/{seed}/{number}")
    recipe = draw.choice(RECIPES)
    directory = Path(tempfile.mkdtemp(prefix="case-", dir=folder()))
    try:
        path = directory / "in.safetensors"
        path.write_bytes(_damage_file(draw, capture(recipe).read_bytes()))
        checksums = _checksums(path)
        out = (
            directory
            / f"out{draw.choice(('.html', '.html', '.png', '.svg', '.pdf', '.safetensors'))}"
        )
        result = command(["look", str(path), "--out", str(out)], seconds=60.0)
        case = f"capture of {recipe}, changed, to {out.suffix}"
        outcome = judge(result, case, names=("in.safetensors",))
        remaining = sorted(file.name for file in directory.iterdir())
        if outcome.kind in ("accepted", "refused") and _checksums(path) != checksums:
            return Outcome("changed", case, outcome.detail)
        if remaining != (
            ["in.safetensors", out.name] if outcome.kind == "accepted" else ["in.safetensors"]
        ):
            return Outcome(
                outcome.kind if outcome.kind not in ("accepted", "refused") else "left",
                case,
                str(remaining),
            )
        return outcome
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def capture(recipe: str) -> Path:
    """Write a capture of a run of the recipe."""
    path = folder() / f"capture-{recipe}-{os.getpid()}.safetensors"
    result = command(
        ["look", str(finished_run(recipe)), *inputs_of(recipe), "--out", str(path)], seconds=120
    )
    assert result.code == 0, result.err
    return path


def _damage_file(draw: random.Random, content: bytes) -> bytes:
    """Change a few bytes or numbers of a safetensors file, or values of its header."""
    length, choice = int.from_bytes(content[:8], "little"), draw.random()
    if choice < 0.25:
        at = draw.randrange(8 + length, len(content) + 1)
        bytes_ = draw.choice((b"\0", b"\xff", b"\x7c", draw.randbytes(1))) * min(
            len(content) - at, draw.choice((1, 2, 40))
        )
        return content[:at] + bytes_ + content[at + len(bytes_) :]
    if choice < 0.8:
        header = json.loads(content[8 : 8 + length])
        facts = header.get("__metadata__", {})
        if "index" in facts and draw.random() < 0.8:
            facts["index"] = _damage_json(draw, facts["index"].encode()).decode("utf-8", "replace")
        else:
            _replace_one(draw, header)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + content[8 + length :]
    return _damage_bytes(draw, content)


def _damage_bytes(draw: random.Random, content: bytes) -> bytes:
    for _ in range(draw.choice((1, 1, 4))):
        at = draw.choice((draw.randrange(len(content)), draw.randrange(min(16, len(content)))))
        size = draw.choice((1, 1, 8, 100))
        content = (
            draw.choice(
                (
                    content[:at],
                    content[:at] + content[at + size :],
                    content[:at] + draw.randbytes(size) + content[at + size :],
                    content[:at] + b"\xff" * size + content[at + size :],
                    content + draw.randbytes(size),
                )
            )
            or b"\0"
        )
    return content


def _damage_json(draw: random.Random, content: bytes) -> bytes:
    """Replace, remove or duplicate a few values of a JSON document, or change its bytes."""
    kind = draw.random()
    if kind < 0.05:
        return b"[" * 100_000
    if kind < 0.1:
        return content.replace(b"{", b'{"name": 1, "name": 2, ', 1)
    tree = json.loads(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        _replace_one(draw, tree)
    text = json.dumps(tree).encode()
    return text[: draw.randrange(len(text))] if kind < 0.15 else text


def _replace_one(draw: random.Random, tree: Any) -> None:
    """Replace, remove or duplicate a value in a tree of lists and dicts."""
    while True:
        keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = draw.choice(keys)
        below = tree[key]
        if isinstance(below, dict | list) and below and draw.random() < 0.85:
            tree = below
            continue
        match draw.randrange(5):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, list):
                tree.append(below)
            case 2 if isinstance(below, int | float) and not isinstance(below, bool):
                tree[key] = draw.choice((below + 1, -below, below * 1000, below / 3))
            case _:
                tree[key] = draw.choice(VALUES)
        return


def _checksums(path: Path) -> dict[str, str]:
    """Return a checksum of each file."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        for file in files
    }


CAMPAIGN = Campaign(
    name="captures",
    about="captures and recordings with bytes and values changed, opened and drawn",
    cases=1000,
    run=run,
    fine=frozenset({"accepted", "refused"}),
    seconds=300.0,
)
