"""Two checkouts compared bit for bit: does a change of structure change a number?

    python tests/same.py BEFORE AFTER [--only NAME ...] [--variants NAME ...] [--steps 30] [--keep FOLDER]

BEFORE and AFTER are folders that hold `regard/`. For each case and variant (float32 or bfloat16, one or two threads)
both train a small model, answer, and record attention. Compared are

    losses      every number of log.jsonl except times
    parameters  the tensors of model.safetensors, and those of the optimizer in the last checkpoint
    answers     what `regard predict --json` prints
    captures    the tensors and the numbers of the file that `regard look --out FILE.safetensors` writes

Names of tensors and options that AFTER has changed are listed in same.json: `tensors` holds pairs of a regular
expression and its replacement, applied to the names of BEFORE; `options` maps an option of AFTER to that of BEFORE;
`keys` maps a key of log.jsonl, answers and captures of BEFORE to that of AFTER. Exit status 1: something differs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open

RENAMED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VARIANTS = {
    "float32-1": ("float32", 1),
    "float32-2": ("float32", 2),
    "bfloat16-1": ("bfloat16", 1),
    "bfloat16-2": ("bfloat16", 2),
}
TIMES = {"seconds", "tokens_per_s", "created"}

_FILES = "--data.train {data}/X --data.val {data}/X --data.test {data}/X"
_TRANSFORMER = "--model.core transformer --model.core.width 16 --model.core.layers 2 --model.core.heads 2 "
_TRANSFORMER += "--model.core.feedforward 24 --model.dropout 0.1"
_RECURRENT = "--model.core recurrent --model.core.width 16 --model.core.hidden 18 --model.core.attention-hidden 11"
_SELF_ATTENTIVE = f"{_RECURRENT.replace('recurrent', 'self-attentive')} --model.core.self-attention-hidden 7"
_PAIRS = f"{_FILES.replace('X', 'pairs.tsv')} --tokeniser.kind word --decode.beam 3 --train.batch-tokens 120"
_IMAGES = _FILES.replace("X", "images")


@dataclass(frozen=True)
class Case:
    """A training run: its recipe, options, and the inputs that it answers."""

    recipe: str
    options: str
    inputs: tuple[str, ...]


CASES = {
    "dates": Case(
        "dates",
        f"--data.locales en de --data.epoch-size 400 --data.val-size 20 --data.test-size 8 {_TRANSFORMER} "
        "--source-tokeniser.vocab-size 120 --train.batch-tokens 600 --train.ema 0.9",
        ("May 1, 1998", "3. Juni 2001"),
    ),
    "translate": Case("translate", f"{_PAIRS} {_TRANSFORMER}", ("ada bob sees cleo", "dan sees eve")),
    "translate-post-alibi": Case(
        "translate",
        f"{_PAIRS} {_TRANSFORMER} --model.core.norm post --model.core.positions alibi --model.tie target",
        ("ada bob sees cleo",),
    ),
    "translate-recurrent": Case("translate", f"{_PAIRS} {_RECURRENT}", ("ada bob sees cleo", "dan sees eve")),
    "translate-self-attentive": Case("translate", f"{_PAIRS} {_SELF_ATTENTIVE}", ("ada bob sees cleo",)),
    "reviews": Case("reviews", f"{_FILES.replace('X', 'reviews.tsv')} {_TRANSFORMER}", ("good a", "bad c b")),
    "reviews-recurrent": Case("reviews", f"{_FILES.replace('X', 'reviews.tsv')} {_RECURRENT}", ("good a",)),
    "tags": Case("tags", f"{_FILES.replace('X', 'tags.txt')} {_TRANSFORMER}", ("Ann sees Bob",)),
    "images": Case("images", f"{_IMAGES} {_TRANSFORMER} --batch 4", ("{data}/images/a/1.png",)),
    "language": Case(
        "language",
        f"{_FILES.replace('X', 'text.txt')} {_TRANSFORMER} --context 12 --batch 4 --sample.length 16",
        ("a b c",),
    ),
    "language-recurrent": Case(
        "language",
        f"{_FILES.replace('X', 'text.txt')} {_RECURRENT} --context 12 --batch 4 --sample.length 16",
        ("a b c",),
    ),
    "tracks": Case("tracks", f"{_FILES.replace('X', 'tracks.txt')} {_TRANSFORMER} --batch 4", ("{data}/tracks.txt",)),
    "rebuild": Case("rebuild", f"{_IMAGES} --model.hidden 16 --model.code 4 --batch 4", ("{data}/images/a/1.png",)),
    "boxes": Case(
        "boxes",
        f"{_FILES.replace('X', 'boxes.csv')} {_TRANSFORMER} --data.width 32 --data.height 24 --batch 2 "
        "--model.num-queries 4",
        ("{data}/images/a/1.png",),
    ),
    "events": Case(
        "events",
        f"{_FILES.replace('X', 'events.csv')} {_TRANSFORMER} --data.seconds 1 --data.bands 8 --data.hop 0.02 "
        "--batch 2 --channels 4",
        ("{data}/1.wav",),
    ),
    "draw": Case(
        "draw",
        f"{_IMAGES} {_TRANSFORMER} --data.scenes 16 --data.test-scenes 2 --data.columns 1 --data.most 1 "
        "--autoencoder.code 4 --autoencoder.codes 4 --autoencoder.channels 4 --autoencoder-steps 8 "
        "--autoencoder-batch 4 --judge-steps 8",
        ("a",),
    ),
}


def write_data(folder: Path) -> None:
    """Write the data of all cases."""
    words = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hal"]
    sources = [f"{words[i % 8]} {words[(3 * i + 1) % 8]} sees {words[(5 * i) % 7]}" for i in range(24)]
    lines = {
        "pairs.tsv": [f"{source}\t{' '.join(reversed(source.upper().split()))}" for source in sources],
        "reviews.tsv": ["good a\tyes", "bad b\tno", "good c b\tyes", "bad a c\tno"] * 6,
        "tags.txt": ["Ann B-PER\nsees O\nBob B-PER\n", "Bob B-PER\nsat O\n"] * 8,
        "text.txt": ["a b c a b c b a c", "c b a"] * 40,
        "tracks.txt": [f"{t}\t{who}\t{0.1 * t + who:.2f}\t{0.2 * who:.2f}" for t in range(30) for who in (1, 2, 3)],
        "boxes.csv": ["file,x,y,width,height,label"]
        + [f"images/{kind}/{number}.png,1,1,4,{3 + number},{kind}" for kind in "ab" for number in range(4)],
        "events.csv": ["file,onset,duration,label"]
        + [f"{number}.wav,0.2,0.3,{'high' if number % 2 else 'low'}" for number in range(4)],
    }
    for name, rows in lines.items():
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    draw = np.random.default_rng(1)
    for kind in "ab":
        (folder / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / kind / f"{number}.png")
    times = np.arange(8000) / 8000
    for number in range(4):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((8000 * np.sin(2 * np.pi * 200 * (number + 1) * times)).astype("<i2").tobytes())


def regard(checkout: Path, arguments: list[str], threads: int) -> str:
    """Run a command of a checkout and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "regard", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=checkout)
    if done.returncode:
        raise RuntimeError(f"{checkout}: regard {' '.join(arguments)}\n{done.stderr[-2000:]}")
    return done.stdout


def make(checkout: Path, case: Case, variant: str, *, steps: int, data: Path, run: Path, is_before: bool) -> str:
    """Train, record attention, and return the answers."""
    precision, threads = VARIANTS[variant]
    options = (
        f"{case.options} --train.steps {steps} --train.precision {precision} --train.warmup 5 --train.log-every 1 "
        f"--train.validate-every {steps // 2} --train.tensorboard false --train.device cpu --train.average 2"
    )
    words = [word.format(data=data) for word in options.split()]
    if is_before:
        words = [RENAMED["options"].get(word, word) for word in words]
    regard(checkout, ["train", case.recipe, "--run", str(run), *words], threads)
    inputs = [text.format(data=data) for text in case.inputs]
    drawing = ["--out", str(run / "drawings.png")] if case.recipe == "draw" else ["--json"]
    answers = regard(checkout, ["predict", str(run), *inputs, *drawing], threads)
    if case.recipe != "rebuild":  # which has no attention
        regard(checkout, ["look", str(run), *inputs[:1], "--out", str(run.with_suffix(".safetensors"))], threads)
    return answers


def tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file: kind, shape and digest of the bytes of each."""
    import torch  # noqa: PLC0415  # `--help` needs no torch

    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name).contiguous() for name in file.keys()}  # noqa: SIM118  # no mapping
    return {
        name: (str(value.dtype), tuple(value.shape), sha256(value.flatten().view(torch.uint8).numpy()).hexdigest())
        for name, value in found.items()
    }


def rename_tensor(name: str) -> str:
    """Return the name that a tensor of BEFORE has in AFTER."""
    for pattern, replacement in RENAMED["tensors"]:
        name = re.sub(pattern, replacement, name)
    return name


def plain(value: Any, *, is_before: bool) -> Any:
    """JSON without times, with the keys of AFTER."""
    if isinstance(value, dict):
        keys = RENAMED["keys"] if is_before else {}
        return {keys.get(key, key): plain(one, is_before=is_before) for key, one in value.items() if key not in TIMES}
    return [plain(one, is_before=is_before) for one in value] if isinstance(value, list) else value


def contents(run: Path, answers: str, *, is_before: bool) -> dict[str, Any]:
    """By name, everything that must be equal."""
    found: dict[str, Any] = {}
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        for key, value in plain(json.loads(line), is_before=is_before).items():
            found[f"losses: line {number}, {key}"] = value
    files = {"parameters": run / "model.safetensors"}
    files["optimizer"] = sorted(run.glob("checkpoints/step-*/optimizer.safetensors"))[-1]
    for group, path in files.items():
        for name, value in tensors(path).items():
            found[f"{group}: {rename_tensor(name) if is_before else name}"] = value
    for number, line in enumerate(answers.replace(str(run), "RUN").splitlines()):
        found[f"answers: line {number}"] = (
            plain(json.loads(line), is_before=is_before) if line.startswith("{") else line
        )
    if (run / "drawings.png").exists():
        found["answers: drawing"] = (run / "drawings.png").read_bytes()
    capture = run.with_suffix(".safetensors")
    if capture.exists():
        for name, value in tensors(capture).items():
            found[f"captures: {name}"] = value
        with safe_open(capture, framework="pt") as file:
            index = plain(json.loads(file.metadata()["index"]), is_before=is_before)
        for place, leaf in leaves(index):
            if isinstance(leaf, int | float) and not isinstance(leaf, bool):
                found[f"captures: index{place}"] = leaf
    return found


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The values inside JSON, each with its place."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{place}/{key}")
    else:
        yield place, value


def compare(name: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the differences, a line each."""
    missing = [f"{name}: {key} is missing" for key in before.keys() - after.keys()]
    added = [f"{name}: {key} is new" for key in after.keys() - before.keys()]
    # As JSON or bytes, so that NaN equals NaN and 1 differs from 1.0.
    other = [f"{name}: {key} differs" for key in before.keys() & after.keys() if repr(before[key]) != repr(after[key])]
    return sorted(missing + added + other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="an empty or new folder for the runs, kept afterwards")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        data.mkdir()
        write_data(data)
        differences, values = [], 0
        for name in options.only:
            for variant in options.variants:
                sides = {}
                for side, checkout in checkouts.items():
                    # One path for both: answers may name it.
                    run = folder / side / f"{name}-{variant}"
                    run.parent.mkdir(exist_ok=True)
                    is_before = side == "before"
                    answers = make(
                        checkout, CASES[name], variant, steps=options.steps, data=data, run=run, is_before=is_before
                    )
                    sides[side] = contents(run, answers, is_before=is_before)
                found = compare(f"{name}-{variant}", **sides)
                values += len(sides["after"])
                differences += found
                print(f"{name}-{variant}: {len(sides['after'])} values, {len(found)} differ", flush=True)
    print("\n".join(differences[:200]))
    print(f"{values} values compared, {len(differences)} differ")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
