"""Small point clouds with boxes, in files of all formats, and options of a small model."""

import csv
from pathlib import Path

import numpy as np

from tests.data.test_clouds import npz, pcd, ply

SMALL = (
    "--model.core.width 24 --model.core.layers 1 --model.core.decoder-layers 1 "
    "--model.core.heads 2 --model.core.feedforward 32 --model.dropout 0 --model.num-queries 4 "
    "--groups 32 --neighbors 6 --radius 0.4 --threshold 0.01 --batch 8 --data.points 160 "
    "--data.features intensity"
)
FORMATS = {
    "npz": lambda points: npz(points=points[:, :3], intensity=points[:, 3]),
    "csv": lambda points: (
        b"x,y,z,intensity\n" + b"\n".join(b"%f,%f,%f,%f" % tuple(row) for row in points.tolist())
    ),
    "ply": lambda points: ply("binary_little_endian", points),
    "pcd": lambda points: pcd("binary", points),
}


def scene(draw: np.random.Generator) -> tuple[np.ndarray, list[tuple]]:
    """Return a floor with up to two cuboids, dark low or bright tall ones, and their boxes."""
    floor = np.column_stack((draw.uniform(-1, 1, (60, 2)), np.zeros(60), np.full(60, 100.0)))
    parts, boxes = [floor], []
    for offset in (-0.5, 0.5):
        if draw.random() < 0.75:
            tall = bool(draw.integers(2))
            sides = np.array([0.5, 0.4, 0.9 if tall else 0.3])
            center = np.array([offset, draw.uniform(-0.6, 0.6), sides[2] / 2])
            points = center + (draw.random((40, 3)) - 0.5) * sides
            parts.append(np.column_stack((points, np.full(40, 200.0 if tall else 20.0))))
            boxes.append((*center.tolist(), *sides.tolist(), "tall" if tall else "low"))
    return draw.permutation(np.concatenate(parts)), boxes


def write_clouds(folder: Path) -> str:
    """Write clouds and tables of boxes, and return the options that name the tables."""
    draw = np.random.default_rng(1)
    for split, count in (("train", 40), ("val", 10), ("test", 16)):
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["file", "x", "y", "z", "dx", "dy", "dz", "label"])
            for i in range(count):
                points, boxes = scene(draw)
                kind = list(FORMATS)[i % 4]
                name = f"{split}{i}.{kind}"
                (folder / name).write_bytes(FORMATS[kind](points))
                writer.writerows([(name, *box) for box in boxes] or [(name, *[""] * 7)])
    return " ".join(f"--data.{name} {folder / name}.csv" for name in ("train", "val", "test"))
