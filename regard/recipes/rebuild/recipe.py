"""Recipe `rebuild`: autoencoders of images, scored by the squared error, compared with PCA.

    error = mean over images and pixels of (y - y~)^2, y within [0, 1]
    use   for quantized codes: number of codebook entries in use, and perplexity of their frequencies
    PCA   code of the first k principal components of the training images, the best linear code

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
from regard.data.images.dataset import ImageDataset, image_shape, load_digits, read_images, read_training_images
from regard.look.figures.results import plot_images
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.quantized import QuantizedAutoencoder, usage
from regard.models.build import build_autoencoder
from regard.recipes.base.image_batches import ImageBatches
from regard.recipes.base.pictures import load_pixels, read_shape, save_shape
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.rebuild.config import RebuildRunConfig
from regard.system.fingerprints import record_digests

_BATCH = 512


class Code(NamedTuple):
    """Code of an image, its numbers separated by spaces, and the squared error of its reconstruction."""

    text: str
    score: float


def pca_error(train: np.ndarray, test: np.ndarray, size: int) -> float:
    """Return the mean squared error per pixel of `test` images (uint8) from `size` principal components of `train`."""
    train_pixels, test_pixels = (torch.from_numpy(x.reshape(len(x), -1)).float() / 255 for x in (train, test))
    mean = train_pixels.mean(0)
    centered = train_pixels - mean
    # Eigenvectors of the covariance: exact, and at most pixels x pixels.
    _, vectors = torch.linalg.eigh((centered.T @ centered).double())
    basis = vectors[:, -size:].float()
    residual = (test_pixels - mean) - (test_pixels - mean) @ basis @ basis.T
    return residual.square().mean().item()


class RebuildRecipe(Recipe):
    """Recipe of autoencoders."""

    metric = "mse"
    higher_is_better = False
    shape: tuple[int, int, int]

    @property
    def config(self) -> RebuildRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, RebuildRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all images."""
        train, _ = self._splits
        build_autoencoder(self.config.model, image_shape(train))
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.test_images()

    def learn(self, folder: Path) -> None:
        """Save the shape of the training images."""
        save_shape(folder, image_shape(self._splits[0]))

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """Return batches of the training images, shuffled in each epoch."""
        train, _ = self._splits
        return ImageBatches(train.pixels, [0] * len(train), size=self.config.batch, seed=self.run.seed)

    def model(self) -> Autoencoder | QuantizedAutoencoder:
        """Return an autoencoder for this image size."""
        return build_autoencoder(self.config.model, self.shape)

    def describe(self) -> str:
        """Return the input size and the size of the code."""
        return f"images of {' x '.join(map(str, self.shape))} to {self.numbers} numbers"

    @property
    def numbers(self) -> int:
        """Size of a code."""
        if self.config.model.kind != "quantized":
            return self.config.model.code_dim
        return QuantizedAutoencoder(self.config.model, self.shape).numbers

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the error on the validation images, and the codebook usage if there is a codebook."""
        return {
            "mse": reconstruction_error(model, self._splits[1].pixels),
            **_codebook_usage(model, self._splits[1].pixels),
        }

    def has_test(self) -> bool:
        """Return True if there is test data; the built-in digits always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_images(self) -> ImageDataset:
        """Return the test images of the run."""
        data = self.config.data
        if data.test is None:
            return load_digits("test")
        return self.report_skipped(read_images(data.test, data, image_shape(self._splits[0])))

    def report_skipped(self, images: ImageDataset) -> ImageDataset:
        """Report what was left out, and return the images."""
        for line in images.left_out():
            self.notify(line)
        return images

    def score(self, model: nn.Module, images: ImageDataset) -> dict[str, float]:
        """Return the error, and that of PCA of the training images."""
        size = min(self.numbers, int(np.prod(self.shape)))
        scores = {"mse": reconstruction_error(model, images.pixels)}
        scores["mse_pca"] = pca_error(self._splits[0].pixels, images.pixels, size)
        return scores | _codebook_usage(model, images.pixels)

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedRebuild":
        """Return the trained run of this model."""
        return TrainedRebuild(self, model, folder)

    @cached_property
    def _splits(self) -> tuple[ImageDataset, ImageDataset]:
        train, val = read_training_images(self.config.data, seed=self.run.seed)
        return self.report_skipped(train), self.report_skipped(val)


class TrainedRebuild(TrainedRun):
    """Trained run of the recipe `rebuild`."""

    recipe: RebuildRecipe

    def predict(self, inputs: Sequence[str | Path | NDArray[Any]], **options: Any) -> Tensor:
        """Return the codes of images (images, code), or integers (images, rows, columns) if they are quantized.

        inputs: image files, or uint8 arrays (channels, height, width) of the run's image shape.
        """
        return _encode(self._model, np.stack([self._load_pixels(given, i) for i, given in enumerate(inputs, start=1)]))

    def answers(self, inputs: Sequence[str], *, n_best: int = 1, first: int = 1) -> list[list[Code]]:
        """Return the code of each image file as text."""
        results = []
        for number, path in enumerate(inputs, start=first):
            pixels = self._load_pixels(path, number)[None]
            code = _encode(self._model, pixels)[0].flatten()
            numbers = " ".join(f"{number:.4g}" if code.is_floating_point() else str(number) for number in code.tolist())
            results.append([Code(numbers, reconstruction_error(self._model, pixels))])
        return results

    def evaluate(
        self, path: str | Path | None = None, *, on_bad: OnBad = "error", notify: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Return the error on the run's test images or others, and that of PCA of the training images."""
        if path is None:
            self._check_test()
        data = replace(self.config.data, on_bad=on_bad)
        images = (
            self.recipe.test_images()
            if path is None
            else self.recipe.report_skipped(read_images(path, data, self.recipe.shape))
        )
        signature = f"{' x '.join(map(str, self.recipe.shape))} pixels, {self.recipe.numbers} numbers"
        if self.config.model.kind == "quantized":
            signature += f" of {self.config.model.codebook_size} codes"
        scores = self.recipe.score(self._model, images)
        return {"data": images.origin, "examples": len(images), **scores, "signature": signature, "samples": []}

    def draw(self, given: str | Path | NDArray[Any], out: Path, *, overwrite: bool = False) -> None:
        """Plot an image beside its reconstruction. Raises UserError as `regard.look.figures.results`."""
        pixels = self._load_pixels(given, 1)
        rebuilt = _reconstruct(self._model, pixels[None])[0].numpy()
        plot_images([("read", pixels.astype(np.float32) / 255), ("rebuilt", rebuilt)], out, overwrite=overwrite)

    def test_input(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels (channels, height, width) of an image of the test data."""
        self._check_test()
        images = self.recipe.test_images()
        number = get_input(range(len(images)), index, images.origin)
        return self._set_name(images.pixels[number], f"test image {index}")

    def _load_pixels(self, given: str | Path | NDArray[Any], number: int) -> NDArray[np.uint8]:
        data = self.config.data if self.config.data.size else replace(self.config.data, size=self.recipe.shape[1])
        return load_pixels(given, number, data, self.recipe.shape)


@torch.no_grad()
def reconstruction_error(model: nn.Module, pixels: np.ndarray) -> float:
    """Return the mean squared error per pixel."""
    total = 0.0
    for i in range(0, len(pixels), _BATCH):
        part = torch.from_numpy(pixels[i : i + _BATCH]).float() / 255
        total += (_reconstruct(model, pixels[i : i + _BATCH]) - part).double().square().sum().item()
    return total / pixels.size


def create_recipe(run: Run, notify: Callable[[str], None]) -> RebuildRecipe:
    """Create the recipe of a run."""
    return RebuildRecipe(run, notify)


@torch.no_grad()
def _reconstruct(model: nn.Module, pixels: np.ndarray) -> Tensor:
    images = torch.from_numpy(pixels).float() / 255
    return model(images.to(next(model.parameters()).device)).float().cpu()


@torch.no_grad()
def _encode(model: nn.Module, pixels: np.ndarray) -> Tensor:
    assert isinstance(model, Autoencoder | QuantizedAutoencoder)
    images = torch.from_numpy(pixels).float() / 255
    codes = model.encode(images.to(next(model.parameters()).device)).cpu()
    return codes.float() if codes.is_floating_point() else codes


def _codebook_usage(model: nn.Module, pixels: np.ndarray) -> dict[str, float]:
    """Return the number of codes in use and their perplexity; empty without a codebook."""
    if not isinstance(model, QuantizedAutoencoder):
        return {}
    codes = torch.cat([_encode(model, pixels[i : i + _BATCH]) for i in range(0, len(pixels), _BATCH)])
    used, perplexity = usage(codes, len(model.codebook.cluster_sizes))
    return {"codes_used": used, "code_perplexity": perplexity}
