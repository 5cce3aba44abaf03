"""Models that `draw` trains before its main model: an image tokenizer (autoencoder), and a
classifier of drawings.

    RUN/autoencoder/     checkpoints and logs as of any training; model.safetensors has its
    parameters RUN/autoencoder.json shape of the canvases, and metrics; written last, when the
    training is finished RUN/classifier/, RUN/classifier.json    the same of the classifier

The classifier is independent of the other models and their outputs: it is trained to classify the
images of the training split, with an additional class for empty cells (black, with a little noise).
"""

from collections.abc import Callable, Sequence
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
from regard.recipes.base.run import Run, training_fingerprint
from regard.recipes.draw.classifier import ConvolutionalClassifier
from regard.recipes.draw.config import DrawRunConfig
from regard.training.config import TrainConfig
from regard.training.loop import fit
from regard.training.protocols import TrainingBatches
from regard.training.seeds import derive_seed
from regard.training.tensors import load_weights

_ROWS = 256
_AUTOENCODER, _CLASSIFIER = "autoencoder", "classifier"
_CLASSIFIER_LR, _CLASSIFIER_BATCH, _NOISE = 2e-3, 128, 12


class Stage(Artifact):
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
        """Return their pixels in [0, 1]."""
        pixels = np.stack([self.drawings.canvas(i) for i in indices])
        return Batch(
            torch.from_numpy(pixels).float() / 255, torch.zeros(len(indices)), tuple(indices)
        )


@torch.no_grad()
def encode_canvases(
    model: QuantizedAutoencoder, drawings: CanvasDataset, indices: Sequence[int]
) -> list[list[int]]:
    """Return the codes of canvases, row by row."""
    codes: list[list[int]] = []
    for i in range(0, len(indices), _ROWS):
        pixels = np.stack([drawings.canvas(index) for index in indices[i : i + _ROWS]])
        codes += model.encode(_to_tensor(pixels, model)).flatten(1).tolist()
    return codes


@torch.no_grad()
def reconstruct(model: QuantizedAutoencoder, codes: Tensor) -> NDArray[np.uint8]:
    """Return the canvases (count, channels, height, width) of codes (count, positions), given row
    by row."""
    device = next(model.parameters()).device
    parts = [
        model.decode(part.to(device).unflatten(1, model.grid))
        .float()
        .clamp(0, 1)
        .mul(255)
        .round()
        .byte()
        .cpu()
        for part in codes.split(_ROWS)
    ]
    return torch.cat(parts).numpy()


def train_autoencoder(
    folder: Path,
    run: Run,
    drawings: tuple[CanvasDataset, CanvasDataset],
    notify: Callable[[str], None],
) -> None:
    """Train the autoencoder on the training canvases, unless that is done."""
    config, (train, val) = _config(run), drawings
    if (folder / f"{_AUTOENCODER}.json").exists():
        return
    torch.manual_seed(derive_seed(run.seed, 1))
    model = QuantizedAutoencoder(config.autoencoder, train.shape)
    notify(
        f"training the autoencoder first: canvases of {_format_shape(train.shape)} to "
        f"{_format_shape(model.grid)} codes"
    )
    indices = list(val.epoch(0))

    def measure(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, QuantizedAutoencoder)
        codes = torch.tensor(encode_canvases(model, val, indices))
        pixels = np.stack([val.canvas(i) for i in indices])
        used, perplexity = usage(codes, len(model.codebook.cluster_sizes))
        difference = reconstruct(model, codes).astype(np.float64) - pixels
        return {
            "mse": float(np.square(difference / 255).mean()),
            "codes_used": used,
            "code_perplexity": perplexity,
        }

    batches = CanvasBatches(train, size=config.autoencoder_batch, seed=derive_seed(run.seed, 2))
    settings = _settings(config, steps=config.autoencoder_steps, lr=config.autoencoder_lr)
    metrics = _train_stage(
        folder / _AUTOENCODER,
        run,
        model,
        batches,
        settings=settings,
        measure=measure,
        metric="mse",
        maximize=False,
    )
    _write_stage(folder, _AUTOENCODER, Stage(train.shape, metrics))


def load_autoencoder(folder: Path, config: DrawRunConfig) -> QuantizedAutoencoder:
    """Load the autoencoder. Raises UserError naming the file."""
    stage = Stage.load(folder / f"{_AUTOENCODER}.json")
    model = QuantizedAutoencoder(config.autoencoder, stage.shape)
    load_weights(folder / _AUTOENCODER / "model.safetensors", model)
    return model.eval()


def train_classifier(
    folder: Path,
    run: Run,
    drawings: tuple[SceneDataset, SceneDataset],
    notify: Callable[[str], None],
) -> None:
    """Train the classifier on the images of the training split, unless that is done."""
    config, (train, val) = _config(run), drawings
    if (folder / f"{_CLASSIFIER}.json").exists():
        return
    torch.manual_seed(derive_seed(run.seed, 3))
    shape = image_shape(train.images)
    model = _build_classifier(shape, len(train.names), label_smoothing=0.1)
    size = _format_shape(shape)
    notify(
        f"then training the classifier that scores drawings: images of {size} to "
        f"{len(train.names)} classes, or empty"
    )
    pixels, labels = _add_empty_images(train, seed=run.seed)
    batches = ImageBatches(
        pixels, labels, size=_CLASSIFIER_BATCH, seed=derive_seed(run.seed, 4), augment="shift"
    )

    def measure(model: nn.Module) -> dict[str, float]:
        return {"accuracy": CellClassifier(model, config).accuracy(val)}

    settings = _settings(config, steps=config.classifier_steps, lr=_CLASSIFIER_LR)
    metrics = _train_stage(
        folder / _CLASSIFIER,
        run,
        model,
        batches,
        settings=settings,
        measure=measure,
        metric="accuracy",
        maximize=True,
    )
    _write_stage(folder, _CLASSIFIER, Stage(shape, metrics, len(train.names)))


class CellClassifier:
    """Classifier of the cells of a canvas."""

    def __init__(self, model: nn.Module, config: DrawRunConfig):
        assert isinstance(model, ConvolutionalClassifier)
        self.model, self.rows, self.columns = model, config.data.rows, config.data.columns

    @classmethod
    def load(cls, folder: Path, config: DrawRunConfig) -> "CellClassifier":
        """Load what `train_classifier` wrote."""
        stage = Stage.load(folder / f"{_CLASSIFIER}.json")
        model = _build_classifier(stage.shape, stage.classes)
        load_weights(folder / _CLASSIFIER / "model.safetensors", model)
        return cls(model.eval(), config)

    @torch.no_grad()
    def classify(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the most likely class of each image, or NOTHING."""
        parts = [
            self.model(_to_tensor(images[i : i + _ROWS], self.model))
            for i in range(0, len(images), _ROWS)
        ]
        classes = torch.cat(parts).argmax(-1).cpu().numpy()
        return np.where(classes == parts[0].shape[1] - 1, NOTHING, classes)

    def classify_cells(self, canvases: NDArray[np.uint8]) -> list[tuple[int, ...]]:
        """Return the classes of the cells of each canvas, row by row."""
        classes = self.classify(split_cells(canvases, self.rows, self.columns)).reshape(
            len(canvases), -1
        )
        return [tuple(row) for row in classes.tolist()]

    def accuracy(self, scenes: SceneDataset) -> float:
        """Return the accuracy on the original images, in percent."""
        classes = self.classify(scenes.images.pixels)
        return 100 * float((classes == np.asarray(scenes.numbers)).mean())


def _build_classifier(
    shape: tuple[int, int, int], classes: int, *, label_smoothing: float = 0.0
) -> ConvolutionalClassifier:
    """Return a convolutional classifier with one additional class for empty cells."""
    return ConvolutionalClassifier(shape, classes + 1, label_smoothing=label_smoothing)


def _add_empty_images(train: SceneDataset, *, seed: int) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the images and their classes, and as many empty cells as a class has images."""
    pixels, classes = train.images.pixels, len(train.names)
    count = -(-len(pixels) // classes)
    noise = np.random.Generator(np.random.PCG64(seed)).integers(
        0, _NOISE, (count, *pixels.shape[1:]), np.uint8
    )
    return np.concatenate((pixels, noise)), [*train.numbers, *[classes] * count]


def _settings(config: DrawRunConfig, *, steps: int, lr: float) -> TrainConfig:
    """Return the training settings of a stage; device and logging are those of the run."""
    return TrainConfig(
        steps=steps,
        lr=lr,
        warmup=min(100, steps // 4),
        schedule="cosine",
        label_smoothing=0.0,
        validate_every=max(1, -(-steps // 4)),
        average=0,
        patience=0,
        tensorboard=config.train.tensorboard,
        checkpoint_minutes=config.train.checkpoint_minutes,
        device=config.train.device,
    )


def _train_stage(
    folder: Path,
    run: Run,
    model: nn.Module,
    batches: TrainingBatches,
    *,
    settings: TrainConfig,
    measure: Callable[[nn.Module], dict[str, float]],
    metric: str,
    maximize: bool,
) -> dict[str, float]:
    """Train a stage in its own folder, or resume it; return its validation metrics."""
    if torch.distributed.is_initialized():
        raise UserError(
            f"the {folder.name} of a drawing model is trained by a single process: start without "
            f"torchrun until the "
            "training of the model itself has started; several processes can continue that"
        )
    result = fit(
        model,
        batches,
        config=settings,
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


def _write_stage(folder: Path, name: str, stage: Stage) -> None:
    unfinished = folder / f".{name}.json.new"
    stage.save(unfinished)
    unfinished.replace(folder / f"{name}.json")


def _to_tensor(pixels: NDArray[np.uint8], model: nn.Module) -> Tensor:
    return (torch.from_numpy(pixels).float() / 255).to(next(model.parameters()).device)


def _format_shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _config(run: Run) -> DrawRunConfig:
    assert isinstance(run.config, DrawRunConfig)
    return run.config
