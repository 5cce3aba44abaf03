"""Tiny data and settings of a quick run for every recipe."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

_CORE = "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --model.core.feedforward 8"
_DECODER = "--model.core.decoder-layers 1"
_TRAIN = (
    "--train.steps 1 --train.average 0 --train.device cpu --train.precision float32 "
    "--train.tensorboard false --threads 1"
)
_LABELS = ("low", "high")
_FILES = "--data.train {0}/FILE --data.val {0}/FILE --data.test {0}/FILE"
_PATHS = {
    "translate": "pairs.tsv",
    "reviews": "reviews.tsv",
    "tags": "tags.txt",
    "images": "images",
    "language": "text.txt",
    "tracks": "tracks.txt",
    "rebuild": "images",
    "boxes": "boxes.csv",
    "points": "clouds.csv",
    "events": "events.csv",
    "draw": "images",
}
_BASE = {
    "dates": f"{_CORE} {_DECODER} --data.locales en --data.epoch-size 8 --data.val-size 4 "
    "--data.test-size 4 --source-tokenizer.kind char --source-tokenizer.vocab-size 100 "
    "--decode.max-length 12",
    "translate": f"{_CORE} {_DECODER} --tokenizer.kind word --decode.max-length 12 --decode.beam 2",
    "reviews": f"--model.core transformer {_CORE} --model.pool-heads 2",
    "tags": _CORE,
    "images": f"{_CORE} --model.pool-heads 2 --batch 4",
    "language": f"{_CORE} --context 8 --batch 2 --sample.length 8",
    "tracks": f"{_CORE} --batch 4",
    "rebuild": "--model.hidden 8 --model.code-dim 4 --batch 4",
    "boxes": f"{_CORE} {_DECODER} --data.width 32 --data.height 24 --batch 2 --model.num-queries 4",
    "points": f"{_CORE} {_DECODER} --batch 2 --groups 8 --neighbors 4 --model.num-queries 4",
    "events": f"{_CORE} {_DECODER} --data.seconds 1 --data.bands 8 --data.hop 0.02 --batch 2 "
    "--channels 4",
    "caption": f"{_CORE} {_DECODER} --data.epoch-size 8 --data.test-size 2 --data.width 24 "
    "--data.height 24 --batch 4 --decode.max-extra 8 --decode.beam 2",
    "draw": f"{_CORE} {_DECODER} --data.epoch-size 8 --data.test-size 2 --data.columns 1 "
    "--data.max-items 1 --autoencoder.code-dim 4 --autoencoder.codebook-size 4 "
    "--autoencoder.channels 4 --autoencoder-steps 1 --autoencoder-batch 4 --classifier-steps 1",
}


@functools.cache
def folder() -> Path:
    """Return the folder of data and runs, which is removed with the process that imports this."""
    path, owner = Path(tempfile.mkdtemp(prefix="regard-tiny-")), os.getpid()
    _write_texts(path)
    _write_images(path)
    _write_clouds(path)
    _write_sounds(path)
    atexit.register(
        lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == owner else None
    )
    return path


def quick_options(recipe: str) -> list[str]:
    """Return the options of a quick run of a recipe."""
    files = _FILES.replace("FILE", _PATHS[recipe]).format(folder()) if recipe in _PATHS else ""
    return f"{files} {_BASE[recipe]} {_TRAIN}".split()


def _write_texts(path: Path) -> None:
    pairs = ["a b\tb a", "c\tc", "a c b\tb c a", "b\tb", "c a\ta c", "b c\tc b"]
    (path / "pairs.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    reviews = "good a\tyes\nbad b\tno\ngood c b\tyes\n" * 3
    (path / "reviews.tsv").write_text(reviews, encoding="utf-8")
    tags = "Ann B-PER\nsees O\nBob B-PER\n\nBob B-PER\nsat O\n\n" * 3
    (path / "tags.txt").write_text(tags, encoding="utf-8")
    (path / "text.txt").write_text("a b c a b c b a c\n" * 20, encoding="utf-8")
    tracks = ""
    for t in range(26):
        tracks += f"{t}\t1\t{0.1 * t + 1:.2f}\t0.2\n{t}\t2\t{0.1 * t + 2:.2f}\t0.4\n"
    (path / "tracks.txt").write_text(tracks, encoding="utf-8")


def _write_images(path: Path) -> None:
    draw = np.random.default_rng(1)
    for kind in "ab":
        (path / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / "images" / kind / f"{number}.png")
    rows = [f"images/{kind}/{number}.png,1,1,4,4,{kind}\n" for kind in "ab" for number in range(4)]
    table = "file,x,y,width,height,label\n" + "".join(rows)
    (path / "boxes.csv").write_text(table, encoding="utf-8")


def _write_clouds(path: Path) -> None:
    draw = np.random.default_rng(2)
    for number in range(4):
        np.savez(path / f"{number}.npz", points=draw.uniform(0, 2, (30, 3)))
    rows = [f"{number}.npz,1,1,1,0.5,0.5,1,{_LABELS[number % 2]}\n" for number in range(4)]
    table = "file,x,y,z,dx,dy,dz,label\n" + "".join(rows)
    (path / "clouds.csv").write_text(table, encoding="utf-8")


def _write_sounds(path: Path) -> None:
    times = np.arange(8000) / 8000
    for number in range(4):
        tone = 8000 * np.sin(2 * np.pi * 200 * (number + 1) * times)
        soundfile.write(path / f"{number}.wav", tone.astype(np.int16), 8000)
    rows = [f"{number}.wav,0.2,0.3,{_LABELS[number % 2]}\n" for number in range(4)]
    table = "file,onset,duration,label\n" + "".join(rows)
    (path / "events.csv").write_text(table, encoding="utf-8")
