"""Models that `draw` trains first: an image tokenizer (autoencoder), a classifier of drawings.

    RUN/autoencoder/, RUN/classifier/            checkpoints, logs and parameters of a training
    RUN/autoencoder.json, RUN/classifier.json    shape of the images, and metrics; written last

The classifier is independent of the other models and their outputs: it is trained to classify the
images of the training split, with an additional class for empty cells (black, with a little noise).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.artifact import Artifact
from regard.data.batches import Batch, BatchesByCount
from regard.data.embedded.scenes import NOTHING, CanvasDataset, SceneDataset, split_cells
from regard.data.images.dataset import image_shape
from regard.data.images.image_batches import ImageBatch, ImageBatches
from regard.errors import UserError
from regard.models.autoencoders.quantized import QuantizedAutoencoder, usage
from regard.recipes.base.config import COSINE
from regard.recipes.base.recipe import plan_by_count
from regard.recipes.base.run import Run, training_fingerprint
from regard.recipes.base.scoring import device_of
from regard.recipes.draw.classifier import ConvolutionalClassifier
from regard.recipes.draw.config import DrawRunConfig
from regard.system.writing import replace_atomically
from regard.training.loop import fit
from regard.training.protocols import TrainingBatches
from regard.training.seeds import derive_seed
from regard.training.tensors import load_weights

ROWS = 256
"""Canvases or texts in a batch of evaluation and prediction."""
_AUTOENCODER, _CLASSIFIER = "autoencoder", "classifier"
_CLASSIFIER_LR, _CLASSIFIER_BATCH, _NOISE = 2e-3, 128, 12


class TrainedStage(Artifact):
    """Shape (channels, height, width) of the images of a stage, its metrics, and its classes."""

    shape: tuple[int, int, int]
    metrics: dict[str, float]
    classes: int = 0


class CanvasBatches(BatchesByCount):
    """Batches of canvases for an autoencoder, shuffled in each epoch."""

    def __init__(self, drawings: CanvasDataset, *, size: int, seed: int):
        super().__init__(rows=size, seed=seed)
        self.drawings = drawings

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.array(self.drawings.epoch(epoch))

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        pixels = torch.from_numpy(_stack(self.drawings, indices)).float() / 255
        return Batch(pixels, torch.zeros(len(indices)), tuple(indices))


@torch.no_grad()
def encode_canvases(
    model: QuantizedAutoencoder, drawings: CanvasDataset, indices: Sequence[int]
) -> list[list[int]]:
    """Return the codes of canvases, row by row."""
    codes: list[list[int]] = []
    for rows in plan_by_count(indices, ROWS):
        pixels = _stack(drawings, indices[rows.start : rows.stop])
        codes += model.encode(_to_tensor(pixels, model)).flatten(1).tolist()
    return codes


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
    codes = torch.tensor(encode_canvases(model, drawings, indices))
    used, perplexity = usage(codes, len(model.codebook.cluster_sizes))
    difference = reconstruct(model, codes).astype(np.float64) - _stack(drawings, indices)
    return {
        "mse": float(np.square(difference / 255).mean()),
        "codes_used": used,
        "code_perplexity": perplexity,
    }


def train_autoencoder(
    folder: Path, run: Run, train: CanvasDataset, val: CanvasDataset, notify: Callable[[str], None]
) -> None:
    """Train the autoencoder on the training canvases, unless that is done."""
    if (folder / f"{_AUTOENCODER}.json").exists():
        return
    config = run.config
    torch.manual_seed(derive_seed(run.seed, 1))
    model = QuantizedAutoencoder(config.autoencoder, train.shape)
    sizes = f"{_format_shape(train.shape)} to {_format_shape(model.grid)} codes"
    notify(f"training the autoencoder first: canvases of {sizes}")
    batches = CanvasBatches(train, size=config.autoencoder_batch, seed=derive_seed(run.seed, 2))
    metrics = _train_stage(
        folder / _AUTOENCODER,
        run,
        model,
        batches,
        steps=config.autoencoder_steps,
        lr=config.autoencoder_lr,
        measure=lambda model: autoencoder_scores(model, val),
        metric="mse",
        maximize=False,
    )
    _write_stage(folder, _AUTOENCODER, TrainedStage(train.shape, metrics))


def load_autoencoder(folder: Path, config: DrawRunConfig) -> QuantizedAutoencoder:
    """Load what `train_autoencoder` wrote. Raises UserError naming the file."""
    stage = TrainedStage.load(folder / f"{_AUTOENCODER}.json")
    model = QuantizedAutoencoder(config.autoencoder, stage.shape)
    load_weights(folder / _AUTOENCODER / "model.safetensors", model)
    return model.eval()


def train_classifier(
    folder: Path, run: Run, train: SceneDataset, val: SceneDataset, notify: Callable[[str], None]
) -> None:
    """Train the classifier on the images of the training split, unless that is done."""
    if (folder / f"{_CLASSIFIER}.json").exists():
        return
    config, shape, classes = run.config, image_shape(train.images), len(train.names)
    torch.manual_seed(derive_seed(run.seed, 3))
    model = ConvolutionalClassifier(shape, classes + 1, label_smoothing=0.1)
    sizes = f"images of {_format_shape(shape)} to {classes} classes, or empty"
    notify(f"then training the classifier that scores drawings: {sizes}")
    # As many empty cells as a class has images.
    count = -(-len(train.images) // classes)
    draw = np.random.Generator(np.random.PCG64(run.seed))
    noise = draw.integers(0, _NOISE, (count, *shape), np.uint8)
    batches = ImageBatches(
        np.concatenate((train.images.pixels, noise)),
        [*train.numbers, *[classes] * count],
        size=_CLASSIFIER_BATCH,
        seed=derive_seed(run.seed, 4),
        augment="shift",
    )
    metrics = _train_stage(
        folder / _CLASSIFIER,
        run,
        model,
        batches,
        steps=config.classifier_steps,
        lr=_CLASSIFIER_LR,
        measure=lambda model: {"accuracy": CellClassifier(model, config).accuracy(val)},
        metric="accuracy",
        maximize=True,
    )
    _write_stage(folder, _CLASSIFIER, TrainedStage(shape, metrics, classes))


class CellClassifier:
    """Classifier of the cells of a canvas."""

    def __init__(self, model: ConvolutionalClassifier, config: DrawRunConfig):
        self.model, self.rows, self.columns = model, config.data.rows, config.data.columns

    @classmethod
    def load(cls, folder: Path, config: DrawRunConfig) -> "CellClassifier":
        """Load what `train_classifier` wrote."""
        stage = TrainedStage.load(folder / f"{_CLASSIFIER}.json")
        model = ConvolutionalClassifier(stage.shape, stage.classes + 1)
        load_weights(folder / _CLASSIFIER / "model.safetensors", model)
        return cls(model.eval(), config)

    @torch.no_grad()
    def classify(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the most likely class of each image, or NOTHING."""
        parts = []
        for rows in plan_by_count(images, ROWS):
            parts.append(self.model(_to_tensor(images[rows.start : rows.stop], self.model)))
        classes = torch.cat(parts).argmax(-1).cpu().numpy()
        return np.where(classes == parts[0].shape[1] - 1, NOTHING, classes)

    def classify_cells(self, canvases: NDArray[np.uint8]) -> list[tuple[int, ...]]:
        """Return the classes of the cells of each canvas, row by row."""
        classes = self.classify(split_cells(canvases, self.rows, self.columns))
        return [tuple(row) for row in classes.reshape(len(canvases), -1).tolist()]

    def accuracy(self, scenes: SceneDataset) -> float:
        """Return the accuracy on the original images, in percent."""
        classes = self.classify(scenes.images.pixels)
        return 100 * float((classes == np.asarray(scenes.numbers)).mean())


def _train_stage(
    folder: Path,
    run: Run,
    model: nn.Module,
    batches: TrainingBatches,
    *,
    steps: int,
    lr: float,
    measure: Callable[..., dict[str, float]],
    metric: str,
    maximize: bool,
) -> dict[str, float]:
    """Train a stage in a folder of its own, or resume it; return its validation metrics."""
    if torch.distributed.is_initialized():
        raise UserError(f"the {folder.name} is trained by a single process: start without torchrun")
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
    result = fit(
        model,
        batches,
        config=config,
        folder=folder,
        seed=derive_seed(run.seed, 5),
        validate=measure,
        metric=metric,
        maximize=maximize,
        fingerprint=training_fingerprint(run),
    )
    if result.is_interrupted:
        raise KeyboardInterrupt
    return result.metrics


def _write_stage(folder: Path, name: str, stage: TrainedStage) -> None:
    with replace_atomically(folder / f"{name}.json") as unfinished:
        stage.save(unfinished)


def _stack(drawings: CanvasDataset, indices: Sequence[int]) -> NDArray[np.uint8]:
    return np.stack([drawings.canvas(i) for i in indices])


def _to_tensor(pixels: NDArray[np.uint8], model: nn.Module) -> Tensor:
    return (torch.from_numpy(pixels).float() / 255).to(device_of(model))


def _format_shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
