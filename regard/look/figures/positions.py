"""Positions figure: the matrix of every positional encoding of a model, positions down, dimensions across.

    added       P[i]: the vector added at position i               sinusoidal, learned
    rotary      cosine and sine of the angle of each pair at i     pairs across
    bias        one panel per head: queries down, keys across      ALiBi, relative biases

Source: lectures, D.1, D.2.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from regard.attention.biases import Bias, DistanceBias
from regard.attention.positions import Positions
from regard.errors import UserError
from regard.layers.positions.base import PositionalEncoding
from regard.look.figures.matrix import Matrix, Sheet

_LENGTH = 100
"""Number of positions of encodings without a largest one."""
_MOST_HEADS = 16
_COLUMNS = 4
_GAP = 0.45


def plot_positions(model: nn.Module, path: str | Path, *, overwrite: bool = False) -> Path:
    """Plot the positional encodings of a model.

    Raises: UserError if the model has none, for another suffix, an existing file (unless overwrite), or if the folder
            does not exist.
    """
    matrices = [matrix for name, module in model.named_modules() for matrix in _matrices(name, module)]
    if not matrices:
        raise UserError(
            f"view 'positions' requires a positional encoding, which this {type(model).__name__} does not have"
        )
    sheet, left, top, bottom = Sheet(), _GAP, 0.1, 0.0
    for number, matrix in enumerate(matrices):
        if number and number % _COLUMNS == 0:
            left, top = _GAP, bottom + _GAP / 2
        right, end = sheet.add(matrix, left, top)
        left, bottom = right + _GAP, max(bottom, end)
    return sheet.save(Path(path), overwrite=overwrite)


def _matrices(name: str, module: nn.Module) -> list[Matrix]:
    """Return the matrices of a module; none if it is no positional encoding."""
    match module:
        case PositionalEncoding():
            try:
                numbers = module.matrix(_LENGTH if module.max_length is None else module.max_length)
            except ValueError:  # no effect, or a bias, which is a module of its own
                return []
            words = "cos and sin of each pair" if module.rotates else "position x dimension"
            return [_matrix(f"{name}: {type(module).__name__}, {words}", numbers)]
        case DistanceBias():
            heads = _of_heads(module)
            return [_matrix(f"{name}, head {head + 1}", numbers) for head, numbers in enumerate(heads[:_MOST_HEADS])]
    return []


def _of_heads(bias: Bias) -> Tensor:
    """Return the bias of 100 queries and keys, (head, query, key)."""
    positions = Positions(_LENGTH, _LENGTH, torch.device("cpu"))
    tensor = bias.materialize(torch.zeros(1, 1, _LENGTH, 1), positions)
    return tensor.reshape(-1, _LENGTH, _LENGTH)


def _matrix(title: str, numbers: Tensor) -> Matrix:
    array = numbers.detach().float().cpu().numpy()
    labels = [str(position) for position in range(len(array))]
    return Matrix(title=title, numbers=array, rows=labels, columns=[str(i) for i in range(array.shape[1])])
