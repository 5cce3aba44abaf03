"""What `draw` learns before its own model: a tokenizer of images, and a judge of drawings.

    RUN/autoencoder/     its training, as of any run; model.safetensors are its weights
    RUN/autoencoder.json its canvases and what it measured; written last, so that it is there when the training is done
    RUN/judge/, RUN/judge.json    the same of the classifier

The judge never sees a drawing nor what the other models learn: it is trained on the images of the training split, and
tells their classes, and places where nothing is (black, with a little noise).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checksums import sealed, unsealed
from regard.data.images import shape_of
from regard.data.scenes import NOTHING, Drawings, Scenes, cells
from regard.errors import UserError
from regard.files import read_json, write_atomically
from regard.models.convolutional import ConvolutionalClassifier
from regard.models.quantized import QuantizedAutoencoder, usage
from regard.models.size import TRAINED, fitting_memory
from regard.recipes.draw_config import Draw
from regard.recipes.folder import Run, decisive
from regard.recipes.images import ImageBatch, ImageBatches, shape_in
from regard.run_files import claim_folder
from regard.train.config import TrainConfig
from regard.train.contracts import Batches
from regard.train.loop import fit
from regard.train.step import seed_of
from regard.train.weights import load_weights

_ROWS = 256
_MOST_CLASSES = 1 << 20
_AUTOENCODER, _JUDGE = "autoencoder", "judge"
_JUDGE_LR, _JUDGE_BATCH, _NOISE = 2e-3, 128, 12


class CanvasBatches:
    """Batches of canvases in an order of their own for each epoch, for an autoencoder."""

    def __init__(self, drawings: Drawings, *, size: int, seed: int):
        self.drawings, self.size, self.seed = drawings, size, seed

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The canvases of each batch: a pure function of (seed, epoch)."""
        order = np.array(self.drawings.epoch(epoch))
        np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch)))).shuffle(order)
        return [tuple(order[i : i + self.size].tolist()) for i in range(0, len(order), self.size)]

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        """Their pixels within [0, 1]."""
        pixels = np.stack([self.drawings.canvas(i) for i in indices])
        return ImageBatch(torch.from_numpy(pixels).float() / 255, torch.zeros(len(indices)), tuple(indices))


@torch.no_grad()
def codes_of(model: QuantizedAutoencoder, drawings: Drawings, indices: Sequence[int]) -> list[list[int]]:
    """The codes of canvases, row by row."""
    found: list[list[int]] = []
    for i in range(0, len(indices), _ROWS):
        pixels = np.stack([drawings.canvas(index) for index in indices[i : i + _ROWS]])
        found += model.encode(_images(pixels, model)).flatten(1).tolist()
    return found


@torch.no_grad()
def rebuilt(model: QuantizedAutoencoder, codes: Tensor) -> NDArray[np.uint8]:
    """The canvases (count, channels, height, width) of codes (count, places), row by row."""
    device = next(model.parameters()).device
    parts = [
        model.decode(part.to(device).unflatten(1, model.grid)).float().clamp(0, 1).mul(255).round().byte().cpu()
        for part in codes.split(_ROWS)
    ]
    return torch.cat(parts).numpy()


def learn_autoencoder(folder: Path, run: Run, drawings: tuple[Drawings, Drawings], tell: Callable[[str], None]) -> None:
    """Train the tokenizer of images on the training canvases, unless that is done."""
    config, (train, val) = _config(run), drawings
    if (folder / f"{_AUTOENCODER}.json").exists():
        return
    torch.manual_seed(seed_of(run.seed, 1))
    with fitting_memory(copies=TRAINED):
        model = QuantizedAutoencoder(config.autoencoder, train.shape)
    tell(f"first an autoencoder: canvases of {_sizes(train.shape)} to {_sizes(model.grid)} codes")
    shown = list(val.epoch(0))

    def measure(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, QuantizedAutoencoder)
        codes = torch.tensor(codes_of(model, val, shown))
        pixels = np.stack([val.canvas(i) for i in shown])
        used, perplexity = usage(codes, len(model.codebook.uses))
        difference = rebuilt(model, codes).astype(np.float64) - pixels
        return {"error": float(np.square(difference / 255).mean()), "codes_used": used, "code_perplexity": perplexity}

    batches = CanvasBatches(train, size=config.autoencoder_batch, seed=seed_of(run.seed, 2))
    settings = _settings(config, steps=config.autoencoder_steps, lr=config.autoencoder_lr)
    found = _fitted(
        folder / _AUTOENCODER, run, model, batches, settings=settings, measure=measure, metric="error", maximize=False
    )
    _finish(folder, _AUTOENCODER, {"shape": list(train.shape), **found})


def open_autoencoder(folder: Path, config: Draw) -> QuantizedAutoencoder:
    """The tokenizer of images. Raises UserError naming the file."""
    told = _told(folder, _AUTOENCODER)
    shape = shape_in(folder / f"{_AUTOENCODER}.json", told, of="the canvases")
    with fitting_memory():
        model = QuantizedAutoencoder(config.autoencoder, shape)
    load_weights(folder / _AUTOENCODER / "model.safetensors", model)
    return model.eval()


def learn_judge(folder: Path, run: Run, drawings: tuple[Scenes, Scenes], tell: Callable[[str], None]) -> None:
    """Train the judge on the images of the training split, unless that is done."""
    config, (train, val) = _config(run), drawings
    if (folder / f"{_JUDGE}.json").exists():
        return
    torch.manual_seed(seed_of(run.seed, 3))
    shape = shape_of(train.images)
    model = _judge(shape, len(train.names), label_smoothing=0.1)
    tell(f"then a judge of drawings: images of {_sizes(shape)} to {len(train.names)} classes, or nothing")
    pixels, labels = _with_nothing(train, seed=run.seed)
    batches = ImageBatches(pixels, labels, size=_JUDGE_BATCH, seed=seed_of(run.seed, 4), augment="shift")

    def measure(model: nn.Module) -> dict[str, float]:
        return {"accuracy": Judge(model, config).accuracy(val)}

    settings = _settings(config, steps=config.judge_steps, lr=_JUDGE_LR)
    found = _fitted(
        folder / _JUDGE, run, model, batches, settings=settings, measure=measure, metric="accuracy", maximize=True
    )
    _finish(folder, _JUDGE, {"shape": list(shape), "classes": len(train.names), **found})


class Judge:
    """A classifier that says which classes there are at the places of a canvas."""

    def __init__(self, model: nn.Module, config: Draw):
        assert isinstance(model, ConvolutionalClassifier)
        self.model, self.rows, self.columns = model, config.data.rows, config.data.columns

    @classmethod
    def open(cls, folder: Path, config: Draw) -> "Judge":
        """As `learn_judge` left it."""
        told = _told(folder, _JUDGE)
        path, classes = folder / f"{_JUDGE}.json", told.get("classes")
        if type(classes) is not int or not 0 < classes <= _MOST_CLASSES:
            raise UserError(f"{path}: damaged: it must hold the shape of the images and their classes")
        model = _judge(shape_in(path, told, of="the images"), classes)
        load_weights(folder / _JUDGE / "model.safetensors", model)
        return cls(model.eval(), config)

    @torch.no_grad()
    def classes(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The likeliest class of each image, or NOTHING."""
        parts = [self.model(_images(images[i : i + _ROWS], self.model)) for i in range(0, len(images), _ROWS)]
        said = torch.cat(parts).argmax(-1).cpu().numpy()
        return np.where(said == parts[0].shape[1] - 1, NOTHING, said)

    def sees(self, canvases: NDArray[np.uint8]) -> list[tuple[int, ...]]:
        """The classes at the places of each canvas, row by row."""
        said = self.classes(cells(canvases, self.rows, self.columns)).reshape(len(canvases), -1)
        return [tuple(row) for row in said.tolist()]

    def accuracy(self, scenes: Scenes) -> float:
        """On the real images themselves, percent."""
        said = self.classes(scenes.images.pixels)
        return 100 * float((said == np.asarray(scenes.numbers)).mean())


def _judge(shape: tuple[int, int, int], classes: int, *, label_smoothing: float = 0.0) -> ConvolutionalClassifier:
    """A network of another kind than what draws, with one class more: nothing."""
    return ConvolutionalClassifier(shape, classes + 1, label_smoothing=label_smoothing)


def _with_nothing(train: Scenes, *, seed: int) -> tuple[NDArray[np.uint8], list[int]]:
    """The images and their classes, and as many dark places as a class has images."""
    pixels, classes = train.images.pixels, len(train.names)
    count = -(-len(pixels) // classes)
    noise = np.random.Generator(np.random.PCG64(seed)).integers(0, _NOISE, (count, *pixels.shape[1:]), np.uint8)
    return np.concatenate((pixels, noise)), [*train.numbers, *[classes] * count]


def _settings(config: Draw, *, steps: int, lr: float) -> TrainConfig:
    """How a stage is trained: as the model where that concerns the machine."""
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


def _fitted(
    folder: Path,
    run: Run,
    model: nn.Module,
    batches: Batches,
    *,
    settings: TrainConfig,
    measure: Callable[[nn.Module], dict[str, float]],
    metric: str,
    maximize: bool,
) -> dict[str, float]:
    """Train a stage in its own folder, from wherever it stands; what its weights measure."""
    if torch.distributed.is_initialized():
        raise UserError(
            f"the {folder.name} of a drawing model is trained by one process: start without torchrun until the "
            "training of the model itself has begun; several processes can go on with that"
        )
    claim_folder(folder)
    result = fit(
        model,
        batches,
        config=settings,
        folder=folder,
        seed=seed_of(run.seed, 5),
        validate=measure,
        metric=metric,
        maximize=maximize,
        fingerprint=decisive(run),
    )
    if result.is_interrupted:
        raise KeyboardInterrupt
    return result.metrics


def _finish(folder: Path, name: str, told: dict[str, Any]) -> None:
    content = {"format": f"regard-{name}", "version": 1, **told}
    write_atomically(folder / f"{name}.json", json.dumps(sealed(content), indent=2) + "\n")


def _told(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not path.exists():
        raise UserError(f"{path} is missing: the run is not complete")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("version") != 1:
        raise UserError(f"{path}: damaged, or of another version")
    return unsealed(path, content)


def _images(pixels: NDArray[np.uint8], model: nn.Module) -> Tensor:
    return (torch.from_numpy(pixels).float() / 255).to(next(model.parameters()).device)


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _config(run: Run) -> Draw:
    assert isinstance(run.config, Draw)
    return run.config
