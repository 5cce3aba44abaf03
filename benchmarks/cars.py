"""Recordings of made-up cars for the recipe `tracks`: a car brakes after the car ahead of it.

    python -m benchmarks.cars FOLDER        # train.txt, val.txt and test.txt: meters, 0.4 s apart

2 to 5 cars drive behind one another on a straight road, each at a constant speed. In 3 of 10
windows the first car brakes at a random time, and a car with a gap below 18 m to the car ahead
brakes 0.4 to 0.9 s after it. So the future of most cars is constant velocity, and braking is seen
in the track of the car ahead before it begins.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SUBSTEPS = 4
_DT = 0.4 / _SUBSTEPS


def make_platoon(draw: np.random.Generator, length: int = 20) -> NDArray[np.float64]:
    """Return the positions (cars, length, 2) of a platoon, the first car first."""
    count = int(draw.integers(2, 6))
    speed = draw.uniform(8, 15) + draw.normal(0, 0.3, count)
    gap = draw.uniform(8, 30, count)
    along = -np.cumsum(gap)
    starts = np.full(count, np.inf)
    if draw.random() < 0.3:
        starts[0] = draw.uniform(1, 3)
    deceleration, duration = draw.uniform(1, 3), draw.uniform(0.5, 1.5)
    for car in range(1, count):
        if gap[car] < 18:
            starts[car] = starts[car - 1] + 0.05 * gap[car]
    places = []
    for step in range(length * _SUBSTEPS):
        if step % _SUBSTEPS == 0:
            places.append(along)
        time = step * _DT
        brakes = (time >= starts) & (time < starts + duration)
        speed = np.maximum(speed - brakes * deceleration * _DT, 0)
        along = along + speed * _DT
    angle = draw.uniform(0, 2 * np.pi)
    return np.stack(places, 1)[..., None] * [np.cos(angle), np.sin(angle)]


def write_cars(path: Path, platoons: int, seed: int) -> None:
    """Write a recording of platoons, one after another."""
    draw, lines = np.random.default_rng(seed), []
    for platoon in range(platoons):
        tracks = make_platoon(draw)
        for time in range(tracks.shape[1]):
            frame = 10 * (platoon * tracks.shape[1] + time)
            for car, (x, y) in enumerate(tracks[:, time]):
                lines.append(f"{frame}\t{10 * platoon + car}\t{x:.3f}\t{y:.3f}\n")
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, platoons) in enumerate((("train", 400), ("val", 60), ("test", 100))):
        write_cars(folder / f"{split}.txt", platoons, seed)
