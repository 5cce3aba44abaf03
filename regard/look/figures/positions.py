"""Positions figure, and pictures of masks, biases and matrices (regard.attention.picture).

    added       P[i]: the vector added at position i               sinusoidal, learned
    rotary      cosine and sine of the angle of each pair at i     pairs across
    bias        one panel per head: queries down, keys across      ALiBi, relative biases

Source: lectures, D.1, D.2.
"""

import re
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.attention.biases import DistanceBias
from regard.attention.picture import Picture
from regard.attention.positions import Positions
from regard.errors import UserError
from regard.layers.positions.base import PositionalEncoding
from regard.look.figures.canvas import open_figure
from regard.look.figures.matrix import Matrix, fit_cell, plot_matrices

_LENGTH = 100
"""Number of positions of encodings without a largest one."""
_WIDTH = 10.0
"""Width in inches, beyond which matrices continue below."""


def plot_positions(model: nn.Module, path: Path, *, overwrite: bool = False) -> None:
    """Plot the positional encodings of a model. Raises: UserError if it has none."""
    matrices = []
    for name, module in model.named_modules():
        if isinstance(module, PositionalEncoding):
            length = _LENGTH if module.max_length is None else module.max_length
            across = "cosine and sine of the angle of each pair" if module.rotates else "dimension"
            with suppress(ValueError):  # no effect, or a bias, which is a module of its own
                numbers = module.matrix(length)
                matrices.append(_matrix(_words(name, module), numbers, ("position", across)))
        elif isinstance(module, DistanceBias):
            positions = Positions(_LENGTH, _LENGTH, torch.device("cpu"))
            items = torch.zeros(1, 1, _LENGTH, 1)
            tensor = module.materialize(items, items, positions)
            heads = tensor.reshape(-1, _LENGTH, _LENGTH)[:16]
            for head, numbers in enumerate(heads, 1):
                title = f"{_words(name, module)}, head {head}"
                matrices.append(_matrix(title, numbers, ("query", "key")))
    if not matrices:
        raise UserError(
            f"view 'positions' requires a positional encoding, which this {type(model).__name__} "
            "does not have"
        )
    with open_figure(path, overwrite=overwrite) as figure:
        plot_matrices(figure, [("", matrices)], width=_WIDTH)


def plot_picture(picture: Picture, path: Path, *, overwrite: bool = False) -> None:
    """Plot the panels of a picture of a mask, bias or matrix."""
    matrices = []
    for title, numbers in picture.panels:
        rows, columns = numbers.shape
        matrix = Matrix(
            title,
            numbers.detach().float().cpu().numpy(),
            rows=_every_second(picture.first, rows),
            columns=_every_second(0, columns),
            names=picture.names,
            is_weights=picture.is_mask,
            is_signed=picture.is_signed,
            cell=None if picture.has_numbers else fit_cell(numbers.shape, 2.0),
        )
        matrices.append(matrix)
    about = f"the first {len(matrices)} panels" if picture.left_out else ""
    meaning = "blue: above zero, orange: below zero, gray: masked (-inf)"
    if picture.is_mask:
        meaning = "blue: may attend, white: masked"
    elif not picture.is_signed:
        meaning = "white: zero, dark blue: the largest"
    texts = {"title": picture.heading, "about": about, "note": meaning}
    with open_figure(path, overwrite=overwrite) as figure:
        plot_matrices(figure, [("", matrices)], width=_WIDTH, **texts)


def _every_second(first: int, count: int) -> list[str]:
    """Return the numbers from `first` on, of which every second one is empty."""
    return ["" if number % 2 else str(first + number) for number in range(count)]


def _words(name: str, module: nn.Module) -> str:
    """Return the kind of an encoding or bias, and its side, such as "relative bias, encoder"."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(module).__name__).lower()
    sides = [side for side in ("encoder", "decoder") if side in name.split(".")]
    return ", ".join([kind, *sides])


def _matrix(title: str, numbers: Tensor, names: tuple[str, str]) -> Matrix:
    rows, columns = (list(map(str, range(size))) for size in numbers.shape)
    array = numbers.detach().float().cpu().numpy()
    return Matrix(title, array, rows=rows, columns=columns, names=names)
