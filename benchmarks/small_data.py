"""Augmentation on small data: accuracy of runs with other augmentations, over seeds.

    python benchmarks/small_data.py fashion $DATA/fashion-mnist OUT --augment auto none "crop flip"
    python benchmarks/small_data.py cells $DATA/bccd OUT --mixup 0 0.2

fashion: Fashion-MNIST, 100 images of each class; chosen on the last 5,000 training images, tested
         on the 10,000 of the test.
cells:   windows of 200 x 200 pixels of photos of blood (BCCD), at 32 x 32: the number of red cells
         whose centers are inside, 0, 1, 2, or 3 and more; tested on 200 of each of the validation
         split, with the last parameters.
--each:  images of each class. Further options are those of `regard train images`.
A line for each run: augmentation, mixup, seed, accuracy on the test, processor seconds.
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

WINDOW, SIDE, OF_TEST, CLASSES, RED_CELL = 200, 32, 200, 4, 1


def read_idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write images or labels; their magic numbers are 2051 and 2049."""
    magic = 2051 if array.ndim == 3 else 2049
    header = np.array([magic, *array.shape], ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes(), mtime=0))


def prepare_fashion(data: Path, out: Path, each: int) -> list[str]:
    """Write a training set of `each` images a class, and the images to choose on."""
    images = read_idx(data / "train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read_idx(data / "train-labels-idx1-ubyte.gz", 8)
    rows = np.concatenate([np.flatnonzero(labels[:55_000] == c)[:each] for c in range(10)])
    for name, part in (("train", rows), ("val", np.arange(55_000, 60_000))):
        write_idx(out / f"{name}-images-idx3-ubyte.gz", images[part])
        write_idx(out / f"{name}-labels-idx1-ubyte.gz", labels[part])
    words = ["--data.train", f"{out}/train-images-idx3-ubyte.gz"]
    words += ["--data.val", f"{out}/val-images-idx3-ubyte.gz"]
    return [*words, "--data.test", f"{data}/t10k-images-idx3-ubyte.gz"]


def prepare_cells(data: Path, out: Path, each: int) -> list[str]:
    """Write a folder of windows for each class and split; the last parameters are used."""
    for split, count in (("train", each), ("val", OF_TEST)):
        content = json.loads((data / f"instances_{split}.json").read_text())
        draw, written = np.random.default_rng(0), [0] * CLASSES
        with tarfile.open(data / f"{split}.tar") as tar:
            members = {Path(name).name: name for name in tar.getnames()}
            while min(written) < count:
                image = content["images"][draw.integers(len(content["images"]))]
                corner = draw.integers((image["width"] - WINDOW, image["height"] - WINDOW))
                inside = 0
                for box in content["annotations"]:
                    if box["image_id"] == image["id"] and box["category_id"] == RED_CELL:
                        center = np.array(box["bbox"][:2]) + np.array(box["bbox"][2:]) / 2
                        inside += int(((center >= corner) & (center < corner + WINDOW)).all())
                label = min(inside, CLASSES - 1)
                if written[label] == count:
                    continue
                stream = tar.extractfile(members[image["file_name"]])
                assert stream is not None
                window = Image.open(stream).crop((*corner, *(corner + WINDOW)))
                path = out / split / str(label) / f"{written[label]}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                window.resize((SIDE, SIDE), Image.Resampling.BOX).save(path)
                written[label] += 1
    return ["--data.train", f"{out}/train", "--data.val", f"{out}/val", "--data.test", f"{out}/val"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("task", choices=("fashion", "cells"))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--augment", nargs="+", default=["auto"])
    parser.add_argument("--mixup", nargs="+", default=["0"])
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--each", type=int, default=100)
    given, options = parser.parse_known_args()
    given.out.mkdir(parents=True, exist_ok=True)
    prepare = prepare_fashion if given.task == "fashion" else prepare_cells
    data = prepare(given.data, given.out, given.each)
    for augment in given.augment:
        for mixup in given.mixup:
            for seed in given.seeds:
                run = given.out / f"{augment.replace(' ', '+')},{mixup},{seed}"
                words = [sys.executable, "-m", "regard", "train", "images", "--run", str(run)]
                words += [*data, "--seed", seed, "--augment", *augment.split()]
                before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                subprocess.run(
                    [*words, "--mixup", mixup, *options], check=True, capture_output=True
                )
                seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
                report = json.loads((run / "report.json").read_text())
                accuracy = report["test"]["accuracy"]
                line = f"{given.task} | {augment} | {mixup} | {seed} | {accuracy:.2f}"
                print(f"{line} | {seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
