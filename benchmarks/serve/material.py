"""Runs of two sizes, their export for CTranslate2, and texts of Multi30k.

The runs are trained for a few minutes, so that their outputs have the lengths of captions.
"""

import gzip
import random
import subprocess
import sys
from pathlib import Path

__all__ = ["BEAM", "SIZES", "captions", "export", "mixed_texts", "run_folder"]

BEAM = 4
SIZES = {
    "4+4 x 128": "--train.steps 1500 --train.warmup 200",
    "6+6 x 512": "--train.steps 150 --train.warmup 50 --train.lr 1e-3 --model.core.layers 6 "
    "--model.core.width 512 --model.core.heads 8 --model.core.feedforward 2048",
}
"""Options of `regard train translate` for each size."""
_ALL = "--tokenizer.vocab-size 10000 --model.core.norm-order pre --train.batch-tokens 2048"


def run_folder(data: Path, runs: Path, size: str) -> Path:
    """Return the run of a size, which is trained if it is not there."""
    folder = runs / size.replace(" ", "")
    if not folder.exists():
        command = [sys.executable, "-m", "regard", "train", "translate", "--run", str(folder)]
        for split in ("train", "val"):
            files = [data / f"multi30k/{split}.lc.norm.tok.{side}.gz" for side in ("en", "de")]
            command += [f"--data.{split}", str(files[0]), f"--data.{split}-target", str(files[1])]
        subprocess.run([*command, *_ALL.split(), *SIZES[size].split()], check=True)
    return folder


def export(run: Path) -> Path:
    """Return the folder of a run's export for CTranslate2, which is written if it is not there."""
    folder = run.with_name(f"{run.name}-ctranslate2")
    if not folder.exists():
        command = [sys.executable, "-m", "regard", "export", str(run), "--to", "ctranslate2"]
        subprocess.run([*command, "--out", str(folder)], check=True)
    return folder


def captions(data: Path) -> list[str]:
    """Return the 1,000 captions of the test, in random order."""
    path = data / "multi30k" / "test_2016_flickr.lc.norm.tok.en.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        texts = [line.strip() for line in file]
    random.Random(1).shuffle(texts)
    return texts


def mixed_texts(data: Path) -> list[str]:
    """Return captions, of which every fourth is joined to the next one or two."""
    texts = captions(data)
    for start in range(0, len(texts), 4):
        texts[start] = " ".join(texts[start : start + 2 + start // 4 % 2])
    return texts
