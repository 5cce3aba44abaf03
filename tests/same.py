"""Two checkouts compared bit for bit: does a change of structure change a number?

    python tests/same.py record CHECKOUT FILE.json [--only NAME ...] [--variants NAME ...]
    python tests/same.py compare BEFORE.json AFTER.json

CHECKOUT is a folder that holds `regard/`. For each case and variant (float32 or bfloat16, one or
two threads) a small model is trained, answers, and records attention. Compared are

    losses      every number of log.jsonl except times
    parameters  the tensors of model.safetensors, and those of the optimizer in the last checkpoint
    answers     what `regard predict --json` prints
    captures    the tensors and numbers of what `regard look --out FILE.safetensors` writes

Exit status 1: something differs.
"""

import argparse
import contextlib
import io
import json
import os
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

VARIANTS = {
    "float32-1": ("float32", 1),
    "float32-2": ("float32", 2),
    "bfloat16-1": ("bfloat16", 1),
    "bfloat16-2": ("bfloat16", 2),
}
TIMES = {"seconds", "created"}

_FILES = "--data.train {data}/X --data.val {data}/X --data.test {data}/X"
_TRANSFORMER = (
    "--model.core transformer --model.core.width 16 --model.core.layers 2 --model.core.heads 2 "
)
_TRANSFORMER += "--model.core.feedforward 24 --model.dropout 0.1"
_RECURRENT = (
    "--model.core recurrent --model.core.width 16 --model.core.hidden 18 "
    "--model.core.attention-hidden 11"
)
_SELF_ATTENTIVE = (
    f"{_RECURRENT.replace('recurrent', 'self-attentive')} --model.core.self-attention-hidden 7"
)
_PAIRS = f"{_FILES.replace('X', 'pairs.tsv')} --tokenizer.kind word --decode.beam 3 "
_PAIRS += "--train.batch-tokens 120"
_REVIEWS = f"{_FILES.replace('X', 'reviews.tsv')} --naive-bayes prefixes"
_IMAGES = _FILES.replace("X", "images")


@dataclass(frozen=True)
class Case:
    """A training run: its recipe, options, and the inputs that it answers."""

    recipe: str
    options: str
    inputs: tuple[str, ...]
    attends: bool = True


CASES = {
    "dates": Case(
        "dates",
        f"--data.locales en de --data.epoch-size 400 --data.val-size 20 --data.test-size 8 "
        f"{_TRANSFORMER} "
        "--source-tokenizer.vocab-size 120 --train.batch-tokens 600 --train.ema 0.9",
        ("May 1, 1998", "3. Juni 2001"),
    ),
    "translate": Case(
        "translate", f"{_PAIRS} {_TRANSFORMER}", ("ada bob sees cleo", "dan sees eve")
    ),
    "translate-post-alibi": Case(
        "translate",
        f"{_PAIRS} {_TRANSFORMER} --model.core.norm-order post --model.core.positions alibi "
        f"--model.tie target",
        ("ada bob sees cleo",),
    ),
    "translate-recurrent": Case(
        "translate", f"{_PAIRS} {_RECURRENT}", ("ada bob sees cleo", "dan sees eve")
    ),
    "translate-self-attentive": Case(
        "translate", f"{_PAIRS} {_SELF_ATTENTIVE}", ("ada bob sees cleo",)
    ),
    "reviews": Case("reviews", f"{_REVIEWS} {_TRANSFORMER}", ("good a", "bad c b")),
    "reviews-recurrent": Case("reviews", f"{_REVIEWS} {_RECURRENT}", ("good a",)),
    "tags": Case("tags", f"{_FILES.replace('X', 'tags.txt')} {_TRANSFORMER}", ("Ann sees Bob",)),
    "images": Case("images", f"{_IMAGES} {_TRANSFORMER} --batch 4", ("{data}/images/a/1.png",)),
    "language": Case(
        "language",
        f"{_FILES.replace('X', 'text.txt')} {_TRANSFORMER} --context 12 --batch 4 --sample.length "
        f"16",
        ("a b c",),
    ),
    "language-recurrent": Case(
        "language",
        f"{_FILES.replace('X', 'text.txt')} {_RECURRENT} --context 12 --batch 4 --sample.length 16",
        ("a b c",),
        attends=False,
    ),
    "language-self-attentive": Case(
        "language",
        f"{_FILES.replace('X', 'text.txt')} {_SELF_ATTENTIVE} --context 12 --batch 4 "
        f"--sample.length 16",
        ("a b c",),
    ),
    "tracks": Case(
        "tracks",
        f"{_FILES.replace('X', 'tracks.txt')} {_TRANSFORMER} --batch 4",
        ("{data}/tracks.txt",),
    ),
    "rebuild": Case(
        "rebuild",
        f"{_IMAGES} --model.hidden 16 --model.code-dim 4 --batch 4",
        ("{data}/images/a/1.png",),
        attends=False,
    ),
    "boxes": Case(
        "boxes",
        f"{_FILES.replace('X', 'boxes.csv')} {_TRANSFORMER} --data.width 32 --data.height 24 "
        f"--batch 2 "
        "--model.num-queries 4",
        ("{data}/images/a/1.png",),
    ),
    "events": Case(
        "events",
        f"{_FILES.replace('X', 'events.csv')} {_TRANSFORMER} --data.seconds 1 --data.bands 8 "
        f"--data.hop 0.02 "
        "--batch 2 --channels 4",
        ("{data}/1.wav",),
    ),
    "draw": Case(
        "draw",
        f"{_IMAGES} {_TRANSFORMER} --data.epoch-size 16 --data.test-size 2 --data.columns 1 "
        f"--data.max-items 1 "
        "--autoencoder.code-dim 4 --autoencoder.codebook-size 4 --autoencoder.channels 4 "
        "--autoencoder-steps 8 "
        "--autoencoder-batch 4 --classifier-steps 8",
        ("a",),
    ),
}


def write_data(folder: Path) -> None:
    """Write the data of all cases."""
    words = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hal"]
    sources = [
        f"{words[i % 8]} {words[(3 * i + 1) % 8]} sees {words[(5 * i) % 7]}" for i in range(24)
    ]
    lines = {
        "pairs.tsv": [
            f"{source}\t{' '.join(reversed(source.upper().split()))}" for source in sources
        ],
        "reviews.tsv": ["good a\tyes", "bad b\tno", "good c b\tyes", "bad a c\tno"] * 6,
        "tags.txt": ["Ann B-PER\nsees O\nBob B-PER\n", "Bob B-PER\nsat O\n"] * 8,
        "text.txt": ["a b c a b c b a c", "c b a"] * 40,
        "tracks.txt": [
            f"{t}\t{who}\t{0.1 * t + who:.2f}\t{0.2 * who:.2f}"
            for t in range(30)
            for who in (1, 2, 3)
        ],
        "boxes.csv": ["file,x,y,width,height,label"]
        + [
            f"images/{kind}/{number}.png,1,1,4,{3 + number},{kind}"
            for kind in "ab"
            for number in range(4)
        ],
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
            file.writeframes(
                (8000 * np.sin(2 * np.pi * 200 * (number + 1) * times)).astype("<i2").tobytes()
            )


def regard(arguments: list[str]) -> str:
    """Run a command in this process and return what it prints."""
    from regard.cli.main import main  # noqa: PLC0415  # of the checkout that is recorded

    printed, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(notes):
        status = main(arguments)
    if status:
        raise RuntimeError(f"regard {' '.join(arguments)}\n{notes.getvalue()[-2000:]}")
    return printed.getvalue()


def make(case: Case, variant: str, *, steps: int, data: Path, run: Path) -> str:
    """Train, record attention, and return the answers."""
    options = (
        f"{case.options} --train.steps {steps} --train.precision {VARIANTS[variant][0]} "
        f"--train.warmup 5 "
        f"--train.log-every 1 --train.validate-every {steps // 2} --train.tensorboard false "
        f"--train.device cpu "
        "--train.average 2 --train.keep-finished checkpoints"
    )
    words = [word.format(data=data) for word in options.split()]
    regard(["train", case.recipe, "--run", str(run), *words])
    inputs = [text.format(data=data) for text in case.inputs]
    if len(inputs) > 1:
        (data / "inputs.txt").write_text("\n".join(inputs) + "\n", encoding="utf-8")
    asked = [str(data / "inputs.txt")] if len(inputs) > 1 else inputs
    drawing = ["--out", str(run.with_suffix(".png"))] if case.recipe == "draw" else ["--json"]
    answers = regard(["predict", str(run), *asked, *drawing])
    if case.attends:
        regard(["look", str(run), *inputs[:1], "--out", str(run.with_suffix(".safetensors"))])
    return answers


def tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file: kind, shape and digest of the bytes of each."""
    import torch  # noqa: PLC0415  # `--help` needs no torch

    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name).contiguous() for name in file.keys()}  # noqa: SIM118  # no mapping
    return {
        name: (
            str(value.dtype),
            tuple(value.shape),
            sha256(value.flatten().view(torch.uint8).numpy()).hexdigest(),
        )
        for name, value in found.items()
    }


def plain(value: Any) -> Any:
    """JSON without times."""
    if isinstance(value, dict):
        return {
            key: plain(one)
            for key, one in value.items()
            if key not in TIMES and not key.endswith("_per_s")
        }
    return [plain(one) for one in value] if isinstance(value, list) else value


def log_lines(run: Path) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of the log, each with its name."""
    for number, line in enumerate((run / "log.jsonl").read_text(encoding="utf-8").splitlines()):
        for key, value in plain(json.loads(line)).items():
            yield f"losses: line {number}, {key}", value


def saved_tensors(run: Path) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and the state of the optimizer."""
    files = {"parameters": run / "model.safetensors"}
    files["optimizer"] = sorted(run.glob("checkpoints/step-*/optimizer.safetensors"))[-1]
    for group, path in files.items():
        for name, value in tensors(path).items():
            yield f"{group}: {name}", value


def answer_lines(run: Path, answers: str) -> Iterator[tuple[str, Any]]:
    """Yield the printed answers, or the drawing."""
    for number, line in enumerate(answers.replace(str(run), "RUN").splitlines()):
        if line.startswith("{"):
            for place, leaf in leaves(plain(json.loads(line))):
                yield f"answers: line {number}{place}", leaf
        else:
            yield f"answers: line {number}", line
    drawing = run.with_suffix(".png")
    if drawing.exists():
        yield "answers: drawing", sha256(drawing.read_bytes()).hexdigest()


def captured(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and the numbers of a capture."""
    for name, value in tensors(path).items():
        yield f"captures: {name}", value
    with safe_open(path, framework="pt") as file:
        index = plain(json.loads(file.metadata()["index"]))
    for place, leaf in leaves(index):
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            yield f"captures: index{place}", leaf


def contents(run: Path, answers: str) -> dict[str, Any]:
    """By name, everything that must be equal."""
    capture = run.with_suffix(".safetensors")
    captures = captured(capture) if capture.exists() else ()
    return dict([*log_lines(run), *saved_tensors(run), *answer_lines(run, answers), *captures])


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The values inside JSON, each with its place."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{place}/{key}")
    else:
        yield place, value


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the differences, a line each."""
    missing = [f"{key} is missing" for key in before.keys() - after.keys()]
    added = [f"{key} is new" for key in after.keys() - before.keys()]
    # As text, so that NaN equals NaN and 1 differs from 1.0.
    other = [
        f"{key} differs"
        for key in before.keys() & after.keys()
        if repr(before[key]) != repr(after[key])
    ]
    return sorted(missing + added + other)


def record_variant(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Record all cases in one variant, in this process."""
    (variant,) = options.variants
    recorded = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder)
        for name in options.only:
            run = folder / f"run-{name}"
            answers = make(
                CASES[name],
                variant,
                steps=options.steps,
                data=folder,
                run=run,
            )
            found = contents(run, answers)
            recorded[f"{name}-{variant}"] = {
                key.replace(temporary, ""): value for key, value in found.items()
            }
            print(f"{name}-{variant}: {len(found)} values", flush=True)
    return json.loads(json.dumps(recorded).replace(temporary, ""))


def record(options: argparse.Namespace) -> None:
    """Record the variants in a process each, so that each has its own number of threads."""
    recorded: dict[str, dict[str, Any]] = {}
    checkout = options.checkout.resolve()
    for variant in options.variants:
        part = options.file.resolve().with_suffix(f".{variant}.json")
        environment = os.environ | {
            "PYTHONPATH": str(checkout),
            "OMP_NUM_THREADS": str(VARIANTS[variant][1]),
        }
        words = [
            "record",
            str(checkout),
            str(part),
            "--only",
            *options.only,
            "--variants",
            variant,
            "--child",
        ]
        words += ["--steps", str(options.steps)]
        subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), *words],
            check=True,
            env=environment,
            cwd=checkout,
        )
        recorded |= json.loads(part.read_text(encoding="utf-8"))
        part.unlink()
    options.file.write_text(json.dumps(recorded), encoding="utf-8")


def compare_files(options: argparse.Namespace) -> int:
    """Print what differs between two records; return how much."""
    before, after = (
        json.loads(path.read_text(encoding="utf-8")) for path in (options.before, options.after)
    )
    differences, values = [], 0
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            differences.append(f"{name} is in one file only")
            continue
        found = [f"{name}: {line}" for line in compare(before[name], after[name])]
        print(f"{name}: {len(after[name])} values, {len(found)} differ")
        values += len(after[name])
        differences += found
    print("\n".join(differences[:200]))
    print(f"{values} values compared, {len(differences)} differ")
    return len(differences)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    recording.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    recording.add_argument("--steps", type=int, default=30)
    recording.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return int(bool(compare_files(options)))
    if options.child:
        options.file.write_text(json.dumps(record_variant(options)), encoding="utf-8")
    else:
        record(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
