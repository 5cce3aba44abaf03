"""Time of the augmentation of 128 images beside a training step of the recipe `images`.

    python benchmarks/augment_speed.py

Milliseconds of one core, in bfloat16, the least of several.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from regard.data.images.image_batches import ImageBatches
from regard.models.build import build_classifier
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.recipes.images.config import ImagesRunConfig

ROWS, CLASSES = 128, 10
SHAPES = (1, 28, 28), (3, 32, 32), (3, 64, 64)
CHANGES = (
    (("shift",), 0.0),
    (("crop", "flip", "color"), 0.0),
    (("randaugment",), 0.0),
    (("crop", "flip", "color", "randaugment"), 0.2),
)


def measure(run: Callable[[int], object], times: int) -> float:
    """Return the least milliseconds of processor time of a call."""
    seconds = []
    for number in range(times):
        start = time.process_time()
        run(number)
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds)


def main() -> None:
    torch.set_num_threads(1)
    config, draw = ImagesRunConfig().model, np.random.default_rng(0)
    for shape in SHAPES:
        pixels = draw.integers(0, 256, (1000, *shape), np.uint8)
        labels = draw.integers(0, CLASSES, 1000)
        reader = ImageReader(shape, config.core.width, dropout=config.dropout)
        model = build_classifier(
            config, reader, lambda dim, pool: ClassWriter(dim, CLASSES, pool=pool)
        )
        optimizer = torch.optim.AdamW(model.train().parameters())
        batch = ImageBatches(pixels, labels, rows=ROWS, seed=1).collate(0, range(ROWS))

        def step(number: int, model=model, optimizer=optimizer, batch=batch) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                total = model.loss(batch).total
            (total / ROWS).backward()
            optimizer.step()

        print(*shape, "| step |", f"{measure(step, 4):.1f}", flush=True)
        for names, mixup in CHANGES:
            batches = ImageBatches(
                pixels, labels, rows=ROWS, seed=1, augment=names, mixup=mixup, num_classes=CLASSES
            )
            least = measure(lambda epoch, batches=batches: batches.collate(epoch, range(ROWS)), 6)
            print(*shape, "|", *names, "| mixup", mixup, "|", f"{least:.1f}", flush=True)


if __name__ == "__main__":
    main()
