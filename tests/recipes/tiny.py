"""Tiny data and settings of a quick run for every recipe."""

import atexit
import functools
import os
import shutil
import tempfile
import wave
from pathlib import Path

import numpy as np
from PIL import Image

_CORE = "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --model.core.feedforward 8"
_DECODER = "--model.core.decoder-layers 1"
_TRAIN = (
    "--train.steps 1 --train.average 0 --train.device cpu --train.tensorboard false --threads 1"
)
_FILES = "--data.train {0}/{1} --data.val {0}/{1} --data.test {0}/{1}"
_BASE = {
    "dates": f"--data.locales en --data.epoch-size 8 --data.val-size 4 --data.test-size 4 {_CORE} "
    f"{_DECODER} "
    "--source-tokenizer.kind char --source-tokenizer.vocab-size 100 --decode.max-length 12",
    "translate": f"{_FILES.replace('{1}', 'pairs.tsv')} {_CORE} {_DECODER} --tokenizer.kind word "
    "--decode.max-length 12 --decode.beam 2",
    "reviews": f"{_FILES.replace('{1}', 'reviews.tsv')} --model.core transformer {_CORE} "
    f"--model.pool-heads 2",
    "tags": f"{_FILES.replace('{1}', 'tags.txt')} {_CORE}",
    "images": f"{_FILES.replace('{1}', 'images')} {_CORE} --model.pool-heads 2 --batch 4",
    "language": f"{_FILES.replace('{1}', 'text.txt')} {_CORE} --context 8 --batch 2 "
    f"--sample.length 8",
    "tracks": f"{_FILES.replace('{1}', 'tracks.txt')} {_CORE} --batch 4",
    "rebuild": f"{_FILES.replace('{1}', 'images')} --model.hidden 8 --model.code-dim 4 --batch 4",
    "boxes": f"{_FILES.replace('{1}', 'boxes.csv')} {_CORE} {_DECODER} --data.width 32 "
    f"--data.height 24 --batch 2 "
    "--model.num-queries 4",
    "points": f"{_FILES.replace('{1}', 'clouds.csv')} {_CORE} {_DECODER} --batch 2 --groups 8 "
    f"--neighbors 4 "
    "--model.num-queries 4",
    "events": f"{_FILES.replace('{1}', 'events.csv')} {_CORE} {_DECODER} --data.seconds 1 "
    f"--data.bands 8 "
    "--data.hop 0.02 --batch 2 --channels 4",
    "caption": f"--data.epoch-size 8 --data.test-size 2 --data.width 24 --data.height 24 {_CORE} "
    f"{_DECODER} --batch 4 "
    "--decode.max-extra 8 --decode.beam 2",
    "draw": f"{_FILES.replace('{1}', 'images')} {_CORE} {_DECODER} --data.epoch-size 8 "
    f"--data.test-size 2 "
    "--data.columns 1 --data.max-items 1 --autoencoder.code-dim 4 --autoencoder.codebook-size 4 "
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


class _Base(dict[str, list[str]]):
    def __missing__(self, recipe: str) -> list[str]:
        self[recipe] = f"{_BASE[recipe]} {_TRAIN}".format(folder()).split()
        return self[recipe]


BASE = _Base()
"""Options of a quick run, by recipe."""


def _write_texts(path: Path) -> None:
    pairs = ["a b\tb a", "c\tc", "a c b\tb c a", "b\tb", "c a\ta c", "b c\tc b"]
    (path / "pairs.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    reviews = [
        f"{text}\t{label}"
        for text, label in (("good a", "yes"), ("bad b", "no"), ("good c b", "yes")) * 3
    ]
    (path / "reviews.tsv").write_text("\n".join(reviews) + "\n", encoding="utf-8")
    (path / "tags.txt").write_text(
        "Ann B-PER\nsees O\nBob B-PER\n\nBob B-PER\nsat O\n\n" * 3, encoding="utf-8"
    )
    (path / "text.txt").write_text("a b c a b c b a c\n" * 20, encoding="utf-8")
    rows = [
        f"{frame}\t{person}\t{0.1 * frame + person:.2f}\t{0.2 * person:.2f}"
        for frame in range(26)
        for person in (1, 2)
    ]
    (path / "tracks.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _write_images(path: Path) -> None:
    draw = np.random.default_rng(1)
    for kind in "ab":
        (path / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / "images" / kind / f"{number}.png")
    rows = [f"images/{kind}/{number}.png,1,1,4,4,{kind}" for kind in "ab" for number in range(4)]
    (path / "boxes.csv").write_text(
        "\n".join(["file,x,y,width,height,label", *rows]) + "\n", encoding="utf-8"
    )


def _write_clouds(path: Path) -> None:
    draw = np.random.default_rng(2)
    for number in range(4):
        np.savez(path / f"{number}.npz", points=draw.uniform(0, 2, (30, 3)))
    rows = [
        f"{number}.npz,1,1,1,0.5,0.5,1,{'high' if number % 2 else 'low'}" for number in range(4)
    ]
    (path / "clouds.csv").write_text(
        "\n".join(["file,x,y,z,dx,dy,dz,label", *rows]) + "\n", encoding="utf-8"
    )


def _write_sounds(path: Path) -> None:
    times = np.arange(8000) / 8000
    for number in range(4):
        with wave.open(str(path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(
                (8000 * np.sin(2 * np.pi * 200 * (number + 1) * times)).astype("<i2").tobytes()
            )
    rows = [f"{number}.wav,0.2,0.3,{'high' if number % 2 else 'low'}" for number in range(4)]
    (path / "events.csv").write_text(
        "\n".join(["file,onset,duration,label", *rows]) + "\n", encoding="utf-8"
    )
