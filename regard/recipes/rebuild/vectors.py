"""Vectors of numbers as data and inputs: splits, batches, rows, the size of a run's vectors."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.artifact import Artifact
from regard.data.batches import Batch, BatchesByCount
from regard.data.config import VectorsConfig
from regard.data.held_out import hold_out
from regard.data.vectors import VectorDataset, make_curve, parse_vector, read_vectors
from regard.errors import UserError
from regard.recipes.base.recipe import Dataset, View


class VectorSplits:
    """Vectors of the splits of a run; training and validation vectors are read together, once."""

    def __init__(self, data: VectorsConfig, seed: int):
        self.data, self.seed = data, seed
        self.size: int | None = None
        """Size of all vectors, once it is known."""

    def load(self, split: str, data: VectorsConfig) -> Dataset[VectorDataset]:
        """Return the vectors of a split; `data` names those of the test."""
        if split != "test":
            vectors = self._training[split == "val"]
        elif data.test is None:
            vectors = make_curve(data, "test")
        else:
            size = self.size or self._training[0].values.shape[1]
            vectors = read_vectors(data.test, size=size, header=data.header, on_bad=data.on_bad)
        values: Any = vectors.values
        names = View(len(values), lambda i: " ".join(f"{number:.4g}" for number in values[i]))
        return Dataset(vectors, vectors.origin, values, names=names, notes=vectors.skipped)

    @cached_property
    def _training(self) -> tuple[VectorDataset, VectorDataset]:
        data = self.data
        if data.train is None:
            return make_curve(data, "train"), make_curve(data, "val")
        train = read_vectors(data.train, header=data.header, on_bad=data.on_bad)
        if data.val is not None:
            return train, read_vectors(
                data.val, size=train.values.shape[1], header=data.header, on_bad=data.on_bad
            )
        parts = hold_out(
            len(train), data.val_share, seed=self.seed, origin=train.origin, noun="vectors"
        )
        val = VectorDataset(train.values[parts.val], train.origin, (parts.notice,))
        return replace(train, values=train.values[parts.train]), val


class VectorBatches(BatchesByCount):
    """Batches of vectors, shuffled in each epoch."""

    def __init__(self, values: NDArray[np.float32], *, size: int, seed: int):
        super().__init__(rows=size, seed=seed)
        self.values = values

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(self.values))

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Tensor, Tensor]:
        """Return the tensors of these rows."""
        rows = torch.from_numpy(self.values[list(indices)])
        return Batch(rows, torch.zeros(len(indices)), tuple(indices))


def read_vector(given: Any, number: int, size: int) -> NDArray[np.float32]:
    """Return an input, a text of numbers or a sequence of them, as a row of float32."""
    try:
        text = given.decode("utf-8") if isinstance(given, bytes) else given
        return np.asarray(parse_vector(text, size), np.float32)
    except (ValueError, TypeError) as error:
        raise UserError(f"input {number}: {error}") from error


class VectorSize(Artifact):
    """Size of a run's vectors."""

    size: int
    file: ClassVar[str] = "vectors.json"
