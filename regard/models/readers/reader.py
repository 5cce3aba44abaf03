"""Interface of readers: what is read becomes a sequence of vectors.

    items = reader(source)        (batch, item, dim)

Source: lectures, E.11 (encoder-predictor-decoder view).
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from regard.attention.masks import Padded

Shape = tuple[int | str, ...]
"""Sizes of a tensor, and names of axes whose size varies."""


class Reader(nn.Module, ABC):
    """Base class of readers, the first part of a model (regard.models.model)."""

    dim: int | None = None
    """Size of the items, which must be the width of the core; None: not checked."""

    def shapes(self) -> tuple[Shape, Shape]:
        """Return the shapes of the source and of the items, for the outline of a model."""
        return ("batch", "source"), ("batch", "source", self.dim or "model")

    @abstractmethod
    def forward(self, source: Any) -> Padded:
        """Return the items of each row: (batch, item, dim)."""
