"""Vectors of numbers as data: splits, and the size of a run's vectors."""

from functools import cached_property
from typing import Any, ClassVar

from regard.data.artifact import Artifact
from regard.data.config import VectorsConfig
from regard.data.held_out import split_data
from regard.data.vectors import VectorDataset, make_curve, read_vectors
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
            vectors = _read(data.test, data, self.size or self._training[0].values.shape[1])
        values: Any = vectors.values
        names = View(len(values), lambda i: " ".join(f"{number:.4g}" for number in values[i]))
        notes = (*vectors.skipped, *vectors.notices)
        return Dataset(vectors, vectors.origin, values, names=names, notes=notes)

    @cached_property
    def _training(self) -> tuple[VectorDataset, VectorDataset]:
        data = self.data
        if data.train is None:
            return make_curve(data, "train"), make_curve(data, "val")
        train = _read(data.train, data)
        if data.val is not None:
            return train, _read(data.val, data, train.values.shape[1])
        return split_data(train, data.val_share, "vectors", seed=self.seed)


def _read(path: str, data: VectorsConfig, size: int | None = None) -> VectorDataset:
    return read_vectors(path, size=size, header=data.header, on_bad=data.on_bad)


class VectorSize(Artifact):
    """Size of a run's vectors."""

    size: int
    file: ClassVar[str] = "vectors.json"
