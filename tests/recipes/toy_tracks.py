"""Recordings of people who walk in circles, which constant velocity does not predict."""

from pathlib import Path

import numpy as np

from tests.recipes.commands import command

ANGLES = 0.3 * np.arange(10)


def circles(*radii: float) -> np.ndarray:
    """Return tracks (people, 10, 2) on circles of these radii."""
    return np.stack([np.stack((r * np.cos(ANGLES), r * np.sin(ANGLES)), -1) for r in radii])


def write_recording(path: Path, tracks: np.ndarray) -> None:
    """Write tracks as frames 0, 10, 20 and so on."""
    rows = []
    for t in range(tracks.shape[1]):
        rows += [f"{10 * t} {person} {x} {y}\n" for person, (x, y) in enumerate(tracks[:, t])]
    path.write_text("".join(rows), encoding="utf-8")


def train_circles(folder: Path, words: str, *, crowd: int) -> None:
    """Train on pairs of people, or with crowd 3 on pairs and triples in turn."""
    draw = np.random.default_rng(1)
    for name, groups in (("train", 40), ("val", 8), ("test", 8)):
        lines = []
        for group in range(groups):
            phase, speed = draw.uniform(0, 6), draw.uniform(0.25, 0.35)
            for t in range(10):
                for person in range(2 + group % (crowd - 1)):
                    angle = phase + speed * t
                    x, y = (3 + person) * np.cos(angle), (3 + person) * np.sin(angle)
                    place = f"{1000 * group + 10 * t}\t{crowd * group + person}"
                    lines.append(f"{place}\t{x:.4f}\t{y:.4f}\n")
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder}/{name}.txt" for name in ("train", "val", "test"))
    small = "--data.observed 6 --data.predicted 4 --model.core.width 24 --model.core.layers 1"
    limits = "--model.dropout 0 --train.steps 200 --train.lr 5e-3 --train.warmup 10"
    more = "--train.validate-every 100 --train.precision float32 --train.tensorboard false"
    command(f"train tracks --run {folder}/run {words} {files} {small} {limits} {more}")
