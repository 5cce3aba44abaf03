"""Interface of readers: what is read becomes a sequence of vectors.

    items = reader(source)        (batch, item, dim)

Source: lectures, E.11 (encoder-predictor-decoder view).
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from regard.attention.axes import is_inspectable
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


def check_padded(name: str, source: Any, shape: Shape = ("batch", "time")) -> None:
    """Raise TypeError unless a source is Padded, and ValueError unless its shapes are these."""
    if not isinstance(source, Padded):
        kind = type(source).__name__
        raise TypeError(f"`{name}` must be regard.Padded(items, lengths), got {kind}")
    sizes, lengths = source.items.shape, source.lengths.shape
    pairs = zip(shape, sizes, strict=False)
    fits = all(isinstance(own, str) or own == given for own, given in pairs)
    if not fits or len(sizes) != len(shape) or lengths != sizes[:1]:
        axes, given = ", ".join(map(str, shape)), f"{tuple(sizes)} and {tuple(lengths)}"
        raise ValueError(f"`{name}` must have items ({axes}) and lengths (batch), got {given}")
    check_lengths(f"`{name}`", source)


def check_numbers(reader: Reader, source: Any) -> None:
    """Raise TypeError or ValueError unless a source has the shape and dtype that a reader reads."""
    check_padded("source", source, reader.shapes()[0])
    given, expected = source.items.dtype, next(reader.parameters()).dtype
    is_cast = torch.is_autocast_enabled(source.items.device.type) and given.is_floating_point
    if given != expected and not is_cast:
        kind = type(reader).__name__
        raise ValueError(f"`source` of {kind} must be {expected}, as its weights, got {given}")


def check_lengths(name: str, items: Padded) -> None:
    """Raise ValueError if a length is beyond the items, as far as lengths can be read at once."""
    most, lengths = items.items.shape[1], items.lengths
    if is_inspectable(lengths) and bool((lengths > most).any()):
        raise ValueError(f"lengths of {name} must be at most {most}, got {int(lengths.max())}")
