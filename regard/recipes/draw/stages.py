"""Models that `draw` trains first: an image tokenizer (autoencoder), a classifier of drawings.

    RUN/autoencoder/, RUN/classifier/            checkpoints, logs and parameters of a training
    RUN/autoencoder.json, RUN/classifier.json    shape of the images; written last

The classifier is independent of the other models and their outputs: it is trained to classify the
images of the training split, with an additional class for empty cells (black, with a little noise).
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import InputBatches
from regard.data.embedded.scenes import CanvasDataset, SceneDataset
from regard.data.images.image_batches import ImageBatches
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.recipes.base.config import COSINE
from regard.recipes.base.pictures import InputShape, format_shape
from regard.recipes.base.recipe import plan_by_count
from regard.recipes.base.run import Run, training_fingerprint
from regard.recipes.base.scoring import device_of
from regard.recipes.draw.classifier import ROWS, ConvolutionalClassifier
from regard.system.writing import replace_atomically
from regard.training.distribution import World, pick_device
from regard.training.protocols import TrainingBatches
from regard.training.seeds import derive_seed

AUTOENCODER, CLASSIFIER = "autoencoder", "classifier"


@torch.no_grad()
def encode_canvases(
    model: QuantizedAutoencoder, drawings: CanvasDataset, indices: Sequence[int]
) -> Tensor:
    """Return the codes (count, positions) of canvases, row by row."""
    codes = []
    for rows in plan_by_count(indices, ROWS):
        pixels = _to_tensor(drawings, indices[rows.start : rows.stop]).to(device_of(model))
        codes.append(model.encode(pixels).flatten(1).cpu())
    return torch.cat(codes)


@torch.no_grad()
def reconstruct(model: QuantizedAutoencoder, codes: Tensor) -> NDArray[np.uint8]:
    """Return the canvases (count, channels, height, width) of codes (count, positions)."""
    parts = []
    for part in codes.split(ROWS):
        pixels = model.decode(part.to(device_of(model)).unflatten(1, model.grid))
        parts.append(pixels.float().clamp(0, 1).mul(255).round().byte().cpu())
    return torch.cat(parts).numpy()


def autoencoder_scores(model: QuantizedAutoencoder, drawings: CanvasDataset) -> dict[str, float]:
    """Return the squared error of an autoencoder, and the use of its codes."""
    indices = drawings.epoch(0)
    codes = encode_canvases(model, drawings, indices)
    difference = reconstruct(model, codes).astype(np.float64) - stack_canvases(drawings, indices)
    return {"mse": float(np.square(difference / 255).mean()), **model.codebook.usage(codes)}


def train_autoencoder(
    folder: Path, run: Run, train: CanvasDataset, val: CanvasDataset, notify: Callable[[str], None]
) -> None:
    """Train the autoencoder on the training canvases, unless that is done."""
    if (folder / f"{AUTOENCODER}.json").exists():
        return
    config = run.config
    torch.manual_seed(derive_seed(run.seed, 1))
    model = QuantizedAutoencoder(config.autoencoder, train.shape)
    sizes = f"{format_shape(train.shape)} to {format_shape(model.grid)} codes"
    notify(f"training the autoencoder first: canvases of {sizes}")
    _train_stage(
        folder / AUTOENCODER,
        run,
        model,
        InputBatches(
            train.epoch,
            partial(_to_tensor, train),
            rows=config.autoencoder_batch,
            seed=derive_seed(run.seed, 2),
        ),
        shape=train.shape,
        steps=config.autoencoder_steps,
        lr=config.autoencoder_lr,
        measure=lambda model: autoencoder_scores(model, val),
        metric="mse",
    )


def train_classifier(
    folder: Path, run: Run, train: SceneDataset, val: SceneDataset, notify: Callable[[str], None]
) -> None:
    """Train the classifier on the images of the training split, unless that is done."""
    if (folder / f"{CLASSIFIER}.json").exists():
        return
    shape, classes = train.images.shape, len(train.names)
    torch.manual_seed(derive_seed(run.seed, 3))
    model = ConvolutionalClassifier(shape, classes + 1, label_smoothing=0.1)
    sizes = f"images of {format_shape(shape)} to {classes} classes, or empty"
    notify(f"then training the classifier that scores drawings: {sizes}")
    # As many empty cells as a class has images.
    count = -(-len(train.images) // classes)
    draw = np.random.Generator(np.random.PCG64(run.seed))
    noise = draw.integers(0, 12, (count, *shape), np.uint8)
    batches = ImageBatches(
        np.concatenate((train.images.pixels, noise)),
        np.array([*train.numbers, *[classes] * count]),
        rows=128,
        seed=derive_seed(run.seed, 4),
        augment=("shift",),
    )
    _train_stage(
        folder / CLASSIFIER,
        run,
        model,
        batches,
        shape=shape,
        steps=run.config.classifier_steps,
        lr=2e-3,
        measure=lambda model: {"accuracy": model.accuracy(val)},
        metric="accuracy",
    )


def _train_stage(
    folder: Path,
    run: Run,
    model: nn.Module,
    batches: TrainingBatches,
    *,
    shape: tuple[int, int, int],
    steps: int,
    lr: float,
    measure: Callable[..., dict[str, float]],
    metric: str,
) -> None:
    """Train a stage in a folder of its own, or resume it, and record its end.

    The calling process trains alone: batch norm would depend on the number of processes.
    """
    train = run.config.train
    config = replace(
        COSINE,
        steps=steps,
        lr=lr,
        warmup=min(100, steps // 4),
        precision="float32",
        validate_every=max(1, -(-steps // 4)),
        tensorboard=train.tensorboard,
        checkpoint_minutes=train.checkpoint_minutes,
        device=train.device,
    )
    loop = importlib.import_module("regard.training.loop")  # imports rich
    result = loop.fit(
        model,
        batches,
        config=config,
        folder=folder,
        seed=derive_seed(run.seed, 5),
        validate=measure,
        metric=metric,
        maximize=metric == "accuracy",
        fingerprint=training_fingerprint(run),
        world=World(device=pick_device(train.device)),
    )
    if result.is_interrupted:
        raise KeyboardInterrupt
    with replace_atomically(folder.with_suffix(".json")) as unfinished:
        InputShape(shape).save(unfinished)


def stack_canvases(drawings: CanvasDataset, indices: Sequence[int]) -> NDArray[np.uint8]:
    """Return canvases (count, channels, height, width)."""
    return np.stack([drawings.canvas(i) for i in indices])


def _to_tensor(drawings: CanvasDataset, indices: Sequence[int]) -> Tensor:
    return torch.from_numpy(stack_canvases(drawings, indices)).float() / 255
