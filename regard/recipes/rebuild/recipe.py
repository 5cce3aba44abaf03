"""Recipe `rebuild`: autoencoders of images, scored by the squared error, compared with PCA.

    error = mean over images and pixels of (y - y~)^2, y within [0, 1]
    use   for quantized codes: number of codebook entries in use, and perplexity of their frequencies
    PCA   code of the first k principal components of the training images, the best linear code

Source: lectures, E.8 (autoencoders); PCA as the best linear code: baldi1989.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.images.dataset import ImageDataset, image_shape
from regard.look.figures.results import plot_images
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.quantized import QuantizedAutoencoder, usage
from regard.models.build import build_autoencoder
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.image_batches import ImageBatches
from regard.recipes.base.pictures import ImageSplits, prepare_pixels, read_shape, save_shape
from regard.recipes.base.recipe import Examples, Prepared, Recipe, plan_by_count
from regard.recipes.base.scoring import device_of
from regard.recipes.rebuild.config import RebuildRunConfig
from regard.trace import Trace

_BATCH = 512


class Code(NamedTuple):
    """Code of an image, and the squared error of its reconstruction."""

    code: Tensor
    """(code,), or integers (rows, columns) if it is quantized."""
    error: float
    energy: float | None = None
    """F(y), if it was asked for."""


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


class RebuildRecipe(Recipe[RebuildRunConfig]):
    """Recipe of autoencoders."""

    metric = "mse"
    higher_is_better = False
    plots_answers = True
    shape: tuple[int, int, int]

    def read(self, split: str, other: Any = None) -> Examples[ImageDataset]:
        """Return the images of a split, or of a folder, a list or an IDX file."""
        return self._splits.read(split, other)

    def check_examples(self, split: str, examples: Examples[ImageDataset]) -> None:
        """Check that there is an autoencoder for this size."""
        if split == "train":
            build_autoencoder(self.config.model, image_shape(examples.data))

    def learn(self, folder: Path) -> None:
        """Save the shape of the training images."""
        save_shape(folder, image_shape(self.train.data))

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.shape = self._splits.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """Return batches of the training images, shuffled in each epoch."""
        pixels = self.train.data.pixels
        return ImageBatches(pixels, [0] * len(pixels), size=self.config.batch, seed=self.run.seed)

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
        pixels = self.usable_val.data.pixels
        return {"mse": reconstruction_error(model, pixels), **_codebook_usage(model, pixels)}

    def score(self, inference: ActiveModel, examples: Examples[ImageDataset], options: Any) -> dict[str, Any]:
        """Return the error, that of PCA of the training images, and the codebook usage."""
        model, pixels = inference.model, examples.data.pixels
        size = min(self.numbers, int(np.prod(self.shape)))
        scores = {"mse": reconstruction_error(model, pixels)}
        scores["mse_pca"] = pca_error(self.train.data.pixels, pixels, size)
        return scores | _codebook_usage(model, pixels)

    def report(self, inference: ActiveModel, examples: Examples[ImageDataset]) -> dict[str, Any]:
        """Return the sizes of the images and of the code."""
        signature = f"{' x '.join(map(str, self.shape))} pixels, {self.numbers} numbers"
        if self.config.model.kind == "quantized":
            signature += f" of {self.config.model.codebook_size} codes"
        return {"signature": signature}

    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        """Return the pixels of each image."""
        return prepare_pixels(inputs, first, self.config.data, self.shape)

    def plan(self, rows: Sequence[Any]) -> list[range]:
        """Return batches of images."""
        return plan_by_count(rows, _BATCH)

    def answer(
        self, inference: ActiveModel, rows: Sequence[NDArray[np.uint8]], options: Any, trace: Trace | None = None
    ) -> list[Code]:
        """Return the code of each image, and the error of its reconstruction."""
        model, images = inference.model, torch.from_numpy(np.stack(rows)).float() / 255
        codes = model.encode(images.to(device_of(model)))
        errors = (model.decode(codes).float().cpu() - images).double().square().flatten(1).mean(1)
        energies = model.energy(images.to(device_of(model))).tolist() if options.energy else [None] * len(rows)
        codes = codes.cpu() if isinstance(model, QuantizedAutoencoder) else codes.float().cpu()
        return [Code(*answer) for answer in zip(codes, errors.tolist(), energies, strict=True)]

    def values(self, answers: list[Code]) -> Tensor | list[float]:
        """Return the codes (images, code), integers (images, rows, columns) if they are quantized; or the energies."""
        energies = [answer.energy for answer in answers if answer.energy is not None]
        return energies or torch.stack([answer.code for answer in answers])

    def lines(self, answer: Code) -> list[str]:
        """Return the energy, or the numbers of a code in one line."""
        if answer.energy is not None:
            return [f"{answer.energy:.6g}"]
        code, is_quantized = answer.code.flatten(), not answer.code.is_floating_point()
        return [" ".join(str(number) if is_quantized else f"{number:.4g}" for number in code.tolist())]

    def json(self, answer: Code) -> dict[str, Any]:
        """Return the code and the error; and the energy, if it was asked for."""
        energy = {} if answer.energy is None else {"energy": answer.energy}
        return {"code": answer.code.tolist(), "error": answer.error} | energy

    def plot_answer(self, inference: ActiveModel, row: NDArray[np.uint8], out: Path, *, overwrite: bool) -> None:
        """Plot an image beside its reconstruction. Raises UserError as `regard.look.figures.results`."""
        rebuilt = _reconstruct(inference.model, row[None])[0].numpy()
        plot_images([("read", row.astype(np.float32) / 255), ("rebuilt", rebuilt)], out, overwrite=overwrite)

    @cached_property
    def _splits(self) -> ImageSplits:
        return ImageSplits(self.config.data, self.run.seed)


@torch.no_grad()
def reconstruction_error(model: nn.Module, pixels: np.ndarray) -> float:
    """Return the mean squared error per pixel."""
    total = 0.0
    for i in range(0, len(pixels), _BATCH):
        part = torch.from_numpy(pixels[i : i + _BATCH]).float() / 255
        total += (_reconstruct(model, pixels[i : i + _BATCH]) - part).double().square().sum().item()
    return total / pixels.size


@torch.no_grad()
def _reconstruct(model: nn.Module, pixels: np.ndarray) -> Tensor:
    images = torch.from_numpy(pixels).float() / 255
    return model(images.to(device_of(model))).float().cpu()


def _codebook_usage(model: nn.Module, pixels: np.ndarray) -> dict[str, float]:
    """Return the number of codes in use and their perplexity; empty without a codebook."""
    if not isinstance(model, QuantizedAutoencoder):
        return {}
    batches = (torch.from_numpy(pixels[i : i + _BATCH]).float() / 255 for i in range(0, len(pixels), _BATCH))
    with torch.no_grad():
        codes = torch.cat([model.encode(images.to(device_of(model))).cpu() for images in batches])
    used, perplexity = usage(codes, len(model.codebook.cluster_sizes))
    return {"codes_used": used, "code_perplexity": perplexity}
