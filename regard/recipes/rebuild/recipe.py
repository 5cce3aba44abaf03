"""Recipe `rebuild`: autoencoders of images or vectors, scored by squared error, beside PCA.

    error   mean of (y - y~)^2 over images and pixels, y within [0, 1]; or over vectors and numbers
    use     of quantized codes: number of codebook entries in use, and perplexity of frequencies
    PCA     code of the first k principal components of the training data, the best linear code;
            with a condition x, of the residuals of the linear regression on x

Source: lectures, E.8 (autoencoders); PCA as the best linear code: baldi1989.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import InputBatches
from regard.data.config import ImagesConfig, VectorsConfig
from regard.data.held_out import split_data
from regard.data.images.files import ENDINGS
from regard.data.tables import TABLES
from regard.data.vectors import VectorDataset, make_curve, parse_vector, read_vectors
from regard.errors import UserError
from regard.look.manifold import FINE, STEPS, X_STEPS, Manifold, plane
from regard.look.output import load_figures
from regard.models.autoencoders.autoencoder import Autoencoder, AutoencoderBase
from regard.models.autoencoders.latent import LatentVariableModel
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.pictures import ImageSplits, InputShape, format_shape
from regard.recipes.base.recipe import Answer, Dataset, Example, Recipe, View, plan_by_count
from regard.recipes.base.scoring import device_of
from regard.recipes.rebuild.config import RebuildRunConfig
from regard.system.files import plain_name
from regard.system.progress import track
from regard.trace import Trace

_ROWS = 512

Values = NDArray[np.uint8] | NDArray[np.float32]
"""Pixels (images, channels, height, width), or vectors (rows, size)."""


def pca_error(train: np.ndarray, test: np.ndarray, size: int, conditions: int = 0) -> float:
    """Return the mean squared error of `test` from `size` principal components of `train`.

    With conditions x, which rows have first, the components are those of the residuals on x.
    """
    known, values = _to_tensor(train).flatten(1), _to_tensor(test).flatten(1)
    mean = known.mean(0)
    known, values = known - mean, values - mean
    if conditions:
        slopes = torch.linalg.lstsq(known[:, :conditions], known[:, conditions:]).solution
        known = known[:, conditions:] - known[:, :conditions] @ slopes
        values = values[:, conditions:] - values[:, :conditions] @ slopes
    # Eigenvectors of the covariance: exact, and at most pixels x pixels.
    _, vectors = torch.linalg.eigh((known.T @ known).double())
    basis = vectors[:, -size:].float()
    return (values - values @ basis @ basis.T).square().mean().item()


class RebuildRecipe(Recipe[RebuildRunConfig]):
    """Recipe of autoencoders."""

    metric = "mse"
    unit = "examples"
    batch_rows = _ROWS
    higher_is_better = False
    look_hint = (
        "--out FILE.png shows an input and its reconstruction, --view manifold (of two numbers) "
        "the code and the energy"
    )
    tables = (*TABLES, "ubyte", ".npy", ".npz")
    files_of_folder = ENDINGS
    shape: tuple[int, ...] = ()
    """Shape of the images or vectors, once it is known."""
    names: tuple[str, ...] = ()
    """Names of the numbers of vectors, once they are known, if their file has a header."""

    def load(self, split: str) -> Dataset[Any]:
        data = self.config.data
        if isinstance(data, ImagesConfig):
            return self._images.load(split, data)
        if split != "test":
            vectors = self._vectors[split == "val"]
        elif data.test is None:
            vectors = make_curve(data, "test")
        else:
            size, names = self.shape[0] if self.shape else None, self.names
            if size is None:
                train = self._vectors[0]
                size, names = train.values.shape[1], train.names
            vectors = read_vectors(data.test, data, size=size, names=names)
        values: Any = vectors.values
        names = View(len(values), lambda i: " ".join(f"{number:.4g}" for number in values[i]))
        return Dataset(vectors, vectors.origin, values, names=names, notes=vectors.notices)

    @cached_property
    def _images(self) -> ImageSplits:
        return ImageSplits(self.settings.data, self.run.seed)

    @cached_property
    def _vectors(self) -> tuple[VectorDataset, VectorDataset]:
        data = self.settings.data
        if data.train is None:
            return make_curve(data, "train"), make_curve(data, "val")
        train = read_vectors(data.train, data)
        if data.val is not None:
            size = train.values.shape[1]
            return train, read_vectors(data.val, data, size=size, names=train.names)
        return split_data(train, data.val_share, "vectors", seed=self.run.seed)

    @property
    def _reads_vectors(self) -> bool:
        return isinstance(self.config.data, VectorsConfig)

    def encode(self, dataset: Dataset[Any]) -> Dataset[Any]:
        self._check_range(dataset.data.values, dataset.origin)
        return dataset

    def fit(self, train: Dataset[Any]) -> dict[str, Any]:
        data = self.encode(train).data
        names = data.names if self._reads_vectors else ()
        return {InputShape.file: InputShape(data.values.shape[1:], names)}

    def open(self, folder: Path) -> None:
        known = InputShape.load(folder / InputShape.file)
        self.shape = self._images.shape = known.shape
        self.names = known.names

    def batches(self) -> InputBatches:
        values = self.train.data.values
        return InputBatches(
            lambda _: range(len(values)),
            lambda indices: _to_tensor(values[indices]),
            rows=self.config.batch,
            seed=self.run.seed,
        )

    def model(self) -> AutoencoderBase:
        config = self.config.model
        if config.kind == "latent":
            return LatentVariableModel(config, self._target_shape, self._conditions)
        kind = QuantizedAutoencoder if config.kind == "quantized" else Autoencoder
        return kind(config, self.shape)

    def describe(self) -> str:
        if self._reads_vectors:
            code = "an angle" if self.config.model.kind == "latent" else _count(self.numbers)
            return f"vectors of {self._sides} to {code}"
        return f"images of {format_shape(self.shape)} to {_count(self.numbers)}"

    @property
    def numbers(self) -> int:
        """Size of a code."""
        if self.config.model.kind == "quantized":
            return QuantizedAutoencoder(self.config.model, self.shape).numbers
        return self.config.model.code_size

    @property
    def _conditions(self) -> int:
        """Number of numbers x before y in each row."""
        return self.settings.data.conditions if self._reads_vectors else 0

    @property
    def _target_shape(self) -> tuple[int, ...]:
        """Shape of y."""
        return (self.shape[0] - self._conditions, *self.shape[1:])

    @property
    def _sides(self) -> str:
        """Size of an input, in words."""
        if not self._reads_vectors:
            return f"{format_shape(self.shape)} pixels"
        return _count(self._target_shape[0]) + (" given x" if self._conditions else "")

    def measure(self, model: nn.Module) -> dict[str, float]:
        return reconstruction_scores(model, self.encoded_val.data.values)

    def metrics(self, inference: ActiveModel, dataset: Dataset[Any]) -> dict[str, Any]:
        model, values = inference.model, dataset.data.values
        size = min(self.numbers, math.prod(self._target_shape))
        signature = f"{self._sides}, {_count(self.numbers)}"
        if self.config.model.kind == "quantized":
            signature += f" of {self.config.model.codebook_size} codes"
        return {
            **reconstruction_scores(model, values),
            "mse_pca": pca_error(self.train.data.values, values, size, self._conditions),
            "signature": signature,
        }

    def is_table(self, path: Path) -> bool:
        has_vectors = self._reads_vectors and plain_name(path).endswith(".txt")
        return has_vectors or super().is_table(path)

    def input_column(self, path: Path) -> str:
        is_list = not self._reads_vectors and plain_name(path).endswith(TABLES)
        return "file" if is_list else ""

    def preprocess(self, given: Any, number: int) -> list[Values]:
        if not isinstance(self.config.data, VectorsConfig):
            return [self._images.read_pixels(given, number)]
        try:
            text = given.decode("utf-8") if isinstance(given, bytes) else given
            row = np.asarray(parse_vector(text, self.shape[0]), np.float32)
        except (ValueError, TypeError) as error:
            raise UserError(f"input {number}: {error}") from error
        self._check_range(row, f"input {number}")
        return [row]

    def forward(
        self, inference: ActiveModel, rows: Sequence[Values], trace: Trace | None = None
    ) -> list[tuple[Tensor, float, float | None]]:
        """Return the code of each row, the error of its reconstruction, and F(y) if asked for.

        Shapes: code (code,), or integers (rows, columns) if it is quantized.
        """
        model, values = inference.model, _to_tensor(np.stack(rows))
        on_device = values.to(device_of(model))
        codes = model.encode(on_device)
        rebuilt = model.reconstruct(codes, on_device).float().cpu()
        errors = (rebuilt - values[:, model.conditions :]).double().square().flatten(1).mean(1)
        energies: list[Any] = [None] * len(rows)
        if self.config.energy:
            energies = model.energy(on_device).tolist()
        codes = codes.cpu() if isinstance(model, QuantizedAutoencoder) else codes.float().cpu()
        return [*zip(codes, errors.tolist(), energies, strict=True)]

    def postprocess(self, example: Example) -> Answer:
        ((code, error, energy),) = example.outputs
        json = {"code": code.tolist(), "error": error}
        if energy is not None:
            return Answer(energy, json | {"energy": energy}, [f"{energy:.6g}"])
        form = ".4g" if code.is_floating_point() else "d"
        return Answer(code, json, [" ".join(format(one, form) for one in code.flatten().tolist())])

    def stack(self, values: list[Any]) -> Tensor | list[float]:
        return values if self.config.energy else torch.stack(values)

    def plot_answer(self, inference: ActiveModel, row: Values, out: Path, **options: Any) -> None:
        """Plot an input and its reconstruction to an image file."""
        rebuilt = _reconstruct(inference.model, row[None]).numpy()
        if self._reads_vectors:
            # On the surface, a point and its reconstruction have the same x.
            outputs = np.concatenate((row[None, : self._conditions], rebuilt), 1)
            self.plot_manifold(inference, out, inputs=row[None], outputs=outputs, **options)
        else:
            images = [("read", row.astype(np.float32) / 255), ("rebuilt", rebuilt[0])]
            results = load_figures("results")
            results.plot_images(images, out, **options)

    def plot_manifold(self, inference: ActiveModel, out: Path, **options: Any) -> None:
        """Plot the manifold of the reconstructions to an image file."""
        if self._target_shape != (2,):
            got = format_shape(self._target_shape)
            raise UserError(f"the manifold needs vectors of 2 numbers, got {got}")
        figures = load_figures("manifold")
        model, data = inference.model, self.train.data.values
        title = f"rebuild: {self.describe()}"
        if self._conditions:
            figures.plot_surface(data, *sweep_surface(model, data), out, title=title, **options)
            return
        codes, rebuilt = trace_codes(model, data), _reconstruct(model, data).numpy()
        has_angles = isinstance(model, LatentVariableModel)
        content = Manifold(data, codes, rebuilt, map_energy(model, data), has_angles)
        figures.plot_manifold(content, out, title=title, **options)

    def _check_range(self, values: Values, origin: str) -> None:
        """Raise UserError for numbers outside [0, 1] with the cost cross-entropy."""
        if not self._reads_vectors or self.config.model.cost != "cross-entropy" or not values.size:
            return
        y = values[..., self._conditions :]
        low, high = float(y.min()), float(y.max())
        if low < 0 or high > 1:
            expected = "numbers must be from 0 to 1 with --model.cost cross-entropy"
            raise UserError(f"{origin}: {expected}, got {low:g} to {high:g}")


@torch.no_grad()
def reconstruction_scores(model: Any, pixels: np.ndarray) -> dict[str, float]:
    """Return the mean squared error per pixel or number, and the use of a codebook."""
    total, count, codes = 0.0, 0, []
    for rows in track(plan_by_count(pixels, _ROWS), "inputs", len(pixels)):
        part = pixels[rows.start : rows.stop]
        y = _to_tensor(part)[:, model.conditions :]
        total += (_reconstruct(model, part) - y).double().square().sum().item()
        count += y.numel()
        if isinstance(model, QuantizedAutoencoder):
            codes.append(model.encode(_to_tensor(part).to(device_of(model))).cpu())
    use = model.codebook.usage(torch.cat(codes)) if isinstance(model, QuantizedAutoencoder) else {}
    return {"mse": total / count} | use


@torch.no_grad()
def trace_codes(model: Any, data: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return y~(h) for h swept over the codes of the data, (steps, 2); None if h is no number.

    Of a latent-variable model, y~(z) for z swept over [0, 2 pi].
    """
    if isinstance(model, LatentVariableModel):
        angles = torch.linspace(0, 2 * math.pi, STEPS * FINE + 1, device=device_of(model))
        return model.decode(angles[:, None]).float().cpu().numpy()
    codes = model.encode(torch.from_numpy(data).to(device_of(model))).float()
    if codes.shape[1] != 1:
        return None
    low, high = codes.min().item(), codes.max().item()
    swept = torch.linspace(low, high, STEPS * FINE + 1, device=codes.device)[:, None]
    return model.decode(swept).float().cpu().numpy()


@torch.no_grad()
def sweep_surface(
    model: LatentVariableModel, data: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return x (X_STEPS + 1,) over the range of the data, and y~(x, z) (X_STEPS + 1, STEPS + 1, 2).

    z is swept from 0 to 2 pi in steps of pi / 24.
    """
    x = torch.linspace(float(data[:, 0].min()), float(data[:, 0].max()), X_STEPS + 1)
    z = torch.linspace(0, 2 * math.pi, STEPS + 1)
    rows = torch.cartesian_prod(x, z).to(device_of(model))
    y = model.decode(rows[:, 1:], rows[:, :1]).float().cpu()
    return x.numpy(), y.view(X_STEPS + 1, STEPS + 1, 2).numpy()


@torch.no_grad()
def map_energy(model: Any, data: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return F(y) on a grid around the data (rows: second number); None with regularizer kl."""
    if isinstance(model, Autoencoder) and model.regularizer.name == "kl":
        return None
    x, y = plane(data)
    points = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    parts = torch.from_numpy(points).to(device_of(model)).split(_ROWS)
    energy = torch.cat([model.energy(part) for part in parts])
    return energy.float().cpu().numpy().reshape(len(y), len(x))


@torch.no_grad()
def _reconstruct(model: nn.Module, pixels: np.ndarray) -> Tensor:
    return model(_to_tensor(pixels).to(device_of(model))).float().cpu()


def _to_tensor(values: np.ndarray) -> Tensor:
    """Return pixels (uint8) within [0, 1], and vectors as they are."""
    tensor = torch.from_numpy(values).float()
    return tensor / 255 if values.dtype == np.uint8 else tensor


def _count(numbers: int) -> str:
    return f"{numbers} number{'' if numbers == 1 else 's'}"
