"""The recipe `rebuild`: images through a narrow code and back; scored by the squared error, beside PCA.

    error = mean over images and pixels of (y - y~)^2, y within [0, 1]
    use   where codes are entries of a codebook: how many are in use, and the perplexity of how often each is
    PCA   the code is the k directions in which the training images vary most: the best that a linear code can do

Source: lectures, F (autoencoders); PCA as the best linear code: baldi1989.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.images import Images, embedded_digits, read_images, read_training, shape_of
from regard.digests import recorded
from regard.errors import UserError
from regard.look.plot_result import plot_images
from regard.models.autoencoder import Autoencoder
from regard.models.build import build_autoencoder
from regard.models.quantized import QuantizedAutoencoder, usage
from regard.recipes.config import Rebuild
from regard.recipes.folder import Run
from regard.recipes.images import ImageBatches, read_shape, save_shape
from regard.recipes.pictures import pixels_of
from regard.recipes.task import Task, Trained, numbered

_BATCH = 512


class Code(NamedTuple):
    """The code of an image, its numbers separated by a space, and the squared error of the image made from it."""

    text: str
    score: float


def pca_error(train: np.ndarray, test: np.ndarray, size: int) -> float:
    """Mean squared error a pixel of `test` images by the first `size` principal components of `train`; bytes."""
    known, other = (torch.from_numpy(x.reshape(len(x), -1)).float() / 255 for x in (train, test))
    mean = known.mean(0)
    centered = known - mean
    # Eigenvectors of the covariance: exact, and no larger than pixels x pixels.
    _, vectors = torch.linalg.eigh((centered.T @ centered).double())
    basis = vectors[:, -size:].float()
    rest = (other - mean) - (other - mean) @ basis @ basis.T
    return rest.square().mean().item()


class RebuildTask(Task):
    """Images, and an autoencoder."""

    metric = "error"
    maximize = False
    shape: tuple[int, int, int]

    @property
    def config(self) -> Rebuild:
        """All settings of the run."""
        assert isinstance(self.run.config, Rebuild)
        return self.run.config

    def check(self) -> None:
        """Read all images."""
        train, _ = self._learned
        build_autoencoder(self.config.model, shape_of(train))
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                self.test_images()

    def learn(self, folder: Path) -> None:
        """The size of the training images."""
        save_shape(folder, shape_of(self._learned[0]))

    def open(self, folder: Path) -> None:
        """The same."""
        self.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """All training images, in a new order each epoch."""
        train, _ = self._learned
        return ImageBatches(train.pixels, [0] * len(train), size=self.config.batch, seed=self.run.seed)

    def model(self) -> Autoencoder | QuantizedAutoencoder:
        """For images of this size."""
        return build_autoencoder(self.config.model, self.shape)

    def describe(self) -> str:
        """What is read, and how narrow it gets."""
        return f"images of {' x '.join(map(str, self.shape))} to {self.numbers} numbers"

    @property
    def numbers(self) -> int:
        """Numbers of a code."""
        if self.config.model.kind != "quantized":
            return self.config.model.code
        return QuantizedAutoencoder(self.config.model, self.shape).numbers

    def measure(self, model: nn.Module) -> dict[str, float]:
        """The error on the validation images, and how its codebook is used if it has one."""
        return {"error": error(model, self._learned[1].pixels), **_usage(model, self._learned[1].pixels)}

    def has_test(self) -> bool:
        """Always for the digits."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_images(self) -> Images:
        """The run's test images."""
        data = self.config.data
        if data.test is None:
            return embedded_digits("test")
        return self.told(read_images(data.test, data, shape_of(self._learned[0])))

    def told(self, images: Images) -> Images:
        """The images; what was left out is told."""
        for line in images.left_out():
            self.tell(line)
        return images

    def scores(self, model: nn.Module, images: Images) -> dict[str, float]:
        """The error, and that of PCA of the training images."""
        size = min(self.numbers, int(np.prod(self.shape)))
        found = {"error": error(model, images.pixels)}
        found["error_pca"] = pca_error(self._learned[0].pixels, images.pixels, size)
        return found | _usage(model, images.pixels)

    def trained(self, model: nn.Module, folder: Path) -> "TrainedRebuild":
        """The model in use."""
        return TrainedRebuild(self, model, folder)

    @cached_property
    def _learned(self) -> tuple[Images, Images]:
        train, val = read_training(self.config.data, seed=self.run.seed)
        return self.told(train), self.told(val)


class TrainedRebuild(Trained):
    """An autoencoder in use."""

    task: RebuildTask

    def predict(self, inputs: Sequence[str | Path | NDArray[Any]], **options: Any) -> Tensor:
        """The codes of images (images, code); whole numbers (images, rows, columns) where they are quantized.

        inputs: image files, or bytes (channels, height, width) of the run's shape.
        """
        return _codes(self._model, np.stack([self._pixels(one, i) for i, one in enumerate(inputs, start=1)]))

    def answers(self, inputs: Sequence[str], *, n_best: int = 1, first: int = 1) -> list[list[Code]]:
        """For each image file its code."""
        found = []
        for number, path in enumerate(inputs, start=first):
            pixels = self._pixels(path, number)[None]
            code = _codes(self._model, pixels)[0].flatten()
            numbers = " ".join(f"{number:.4g}" if code.is_floating_point() else str(number) for number in code.tolist())
            found.append([Code(numbers, error(self._model, pixels))])
        return found

    def evaluate(
        self, path: str | Path | None = None, *, on_bad: OnBad = "error", tell: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """The error on the run's test images, or on others, beside that of PCA (of the training images)."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        data = replace(self.config.data, on_bad=on_bad)
        images = self.task.test_images() if path is None else self.task.told(read_images(path, data, self.task.shape))
        signature = f"{' x '.join(map(str, self.task.shape))} pixels, {self.task.numbers} numbers"
        if self.config.model.kind == "quantized":
            signature += f" of {self.config.model.codes} codes"
        scores = self.task.scores(self._model, images)
        return {"data": images.origin, "examples": len(images), **scores, "signature": signature, "samples": []}

    def draw(self, given: str | Path | NDArray[Any], out: Path, *, overwrite: bool = False) -> None:
        """An image beside what became of it. Raises UserError as `regard.look.plot_result`."""
        pixels = self._pixels(given, 1)
        rebuilt = _rebuilt(self._model, pixels[None])[0].numpy()
        plot_images([("read", pixels.astype(np.float32) / 255), ("rebuilt", rebuilt)], out, overwrite=overwrite)

    def test_input(self, index: int) -> NDArray[np.uint8]:
        """The pixels (channels, height, width) of an image of the test data."""
        self._check_test()
        images = self.task.test_images()
        number = numbered(range(len(images)), index, images.origin)
        return self._named(images.pixels[number], f"test image {index}")

    def _pixels(self, one: str | Path | NDArray[Any], number: int) -> NDArray[np.uint8]:
        data = self.config.data if self.config.data.size else replace(self.config.data, size=self.task.shape[1])
        return pixels_of(one, number, data, self.task.shape)


@torch.no_grad()
def error(model: nn.Module, pixels: np.ndarray) -> float:
    """Mean squared error a pixel."""
    total = 0.0
    for i in range(0, len(pixels), _BATCH):
        part = torch.from_numpy(pixels[i : i + _BATCH]).float() / 255
        total += (_rebuilt(model, pixels[i : i + _BATCH]) - part).double().square().sum().item()
    return total / pixels.size


@torch.no_grad()
def _rebuilt(model: nn.Module, pixels: np.ndarray) -> Tensor:
    images = torch.from_numpy(pixels).float() / 255
    return model(images.to(next(model.parameters()).device)).float().cpu()


@torch.no_grad()
def _codes(model: nn.Module, pixels: np.ndarray) -> Tensor:
    assert isinstance(model, Autoencoder | QuantizedAutoencoder)
    images = torch.from_numpy(pixels).float() / 255
    codes = model.encode(images.to(next(model.parameters()).device)).cpu()
    return codes.float() if codes.is_floating_point() else codes


def _usage(model: nn.Module, pixels: np.ndarray) -> dict[str, float]:
    """How many codes are in use on images, and the perplexity of that; nothing if there is no codebook."""
    if not isinstance(model, QuantizedAutoencoder):
        return {}
    codes = torch.cat([_codes(model, pixels[i : i + _BATCH]) for i in range(0, len(pixels), _BATCH)])
    used, perplexity = usage(codes, len(model.codebook.uses))
    return {"codes_used": used, "code_perplexity": perplexity}


def task(run: Run, tell: Callable[[str], None]) -> RebuildTask:
    """This recipe at work."""
    return RebuildTask(run, tell)
