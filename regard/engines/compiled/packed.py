"""From a model's weights to what compiled code reads: panels of columns, and tables of where they lie.

    float32    (panels, in, PANEL)          column c of panel p is output p * PANEL + c
    pairs      (panels, in / 2, PANEL, 2)   bfloat16, rounded to nearest even
    halves     (panels, in, LANES) words    the same, columns c and c + LANES of a panel in a word
    int8       (panels, in / 4, PANEL, 4)   round(127 w / max |w|), by the largest weight of each output

Outputs are filled up to whole panels, heads to whole registers, with zeros. The scale of the scores goes into the
queries' weights, sqrt(width) into the embeddings.

Source: int8: jacob2018, section 2, with a scale for each output.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.engines.compiled import tiles
from regard.engines.compiled.compiling import LANES
from regard.engines.compiled.products import (
    BIAS,
    CODE,
    DEPTH,
    FIELDS,
    KIND,
    OUT,
    PANELS,
    SCALES,
    SUMS,
    WEIGHTS,
    multiplier,
)
from regard.engines.compiled.tiles import BFLOAT16, FLOAT32, INT8, PANEL

KINDS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "int8": INT8}
"""What weights may be kept as."""
_LINE = 64


def in_panels(size: int) -> int:
    """The next multiple of a panel."""
    return -(-size // PANEL) * PANEL


def aligned(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Zeros that begin at a line of the cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + size].view(dtype).reshape(shape)


class Heads(NamedTuple):
    """Heads of a projection, each of which is to fill whole registers."""

    count: int
    size: int

    @property
    def padded(self) -> int:
        """Size of a head with what fills it up."""
        return -(-self.size // LANES) * LANES

    def of_outputs(self, weight: Tensor) -> Tensor:
        """(heads * size, ...) to (heads * padded, ...)."""
        heads = weight.unflatten(0, (self.count, self.size))
        filled = heads.new_zeros(self.count, self.padded, *heads.shape[2:])
        filled[:, : self.size] = heads
        return filled.flatten(0, 1)

    def of_inputs(self, weight: Tensor) -> Tensor:
        """(..., heads * size) to (..., heads * padded)."""
        return self.of_outputs(weight.T).T


class Products:
    """A table of products, and the arrays that its addresses point to.

    These lie in one piece of memory, for which numpy asks for huge pages: a step that reads every weight once is a
    fifth faster than from pages of 4 KiB, whose addresses must be looked up too often.
    """

    def __init__(self, kind: int):
        self.kind = kind
        self.rows: list[list[int]] = []
        self.arrays: list[np.ndarray] = []  # the rows name them by their number, counted from 1
        self.memory = np.zeros(0, np.uint8)
        self.widest = self.deepest = PANEL

    def table(self) -> np.ndarray:
        """(products, FIELDS), after the last has been added."""
        firsts = np.cumsum([0, *(-(-array.nbytes // _LINE) * _LINE for array in self.arrays)])
        self.memory = aligned((int(firsts[-1]),), np.uint8)
        for first, array in zip(firsts, self.arrays, strict=False):
            self.memory[first : first + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
        addresses = np.array([0, *(self.memory.ctypes.data + firsts[:-1])], np.int64)
        self.arrays = []
        table = np.array(self.rows, np.int64).reshape(-1, FIELDS)
        for column in (WEIGHTS, BIAS, SCALES, SUMS):
            table[:, column] = addresses[table[:, column]]
        return table

    def nothing(self) -> None:
        """A product that this model has not."""
        self.rows.append([0] * FIELDS)

    def add(self, weight: Tensor, bias: Tensor | None, *, behind: float = 0.0) -> None:
        """x W^T + b for W (out, in); `behind`: what stands behind the last output."""
        wide = weight.detach().float().cpu().numpy()
        outputs, inputs = wide.shape
        panels = -(-outputs // PANEL)
        biases = aligned((panels * PANEL,))
        biases[:outputs] = 0 if bias is None else bias.detach().float().cpu().numpy()
        biases[outputs:] = behind
        filled = np.zeros((panels * PANEL, inputs), np.float32)
        filled[:outputs] = wide
        entry = [0] * FIELDS
        entry[KIND], entry[CODE] = self.kind, multiplier[self.kind]()
        entry[DEPTH], entry[OUT], entry[PANELS] = inputs, outputs, panels
        entry[BIAS] = self._kept(biases)
        match self.kind:
            case tiles.FLOAT32:
                entry[WEIGHTS] = self._kept(_panels(filled))
            case tiles.PAIRS:
                entry[WEIGHTS] = self._kept(_pairs(filled))
            case tiles.HALVES:
                entry[WEIGHTS] = self._kept(_halves(_panels(filled)))
            case _:
                codes, scales, sums = _bytes(filled)
                entry[WEIGHTS], entry[SCALES], entry[SUMS] = map(self._kept, (codes, scales, sums))
        self.rows.append(entry)
        self.widest, self.deepest = max(self.widest, panels * PANEL), max(self.deepest, inputs)

    def _kept(self, array: np.ndarray) -> int:
        self.arrays.append(array)
        return len(self.arrays)


def _panels(weight: np.ndarray) -> np.ndarray:
    """(out, in) to (panels, in, PANEL)."""
    return weight.reshape(-1, PANEL, weight.shape[1]).transpose(0, 2, 1)


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """The bits of bfloat16."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16().view(torch.int16).numpy().view(np.uint16)


def _pairs(weight: np.ndarray) -> np.ndarray:
    """(out, in) as bfloat16 in panels, two numbers of a column side by side."""
    outputs, inputs = weight.shape
    filled = np.zeros((outputs, -(-inputs // 2) * 2), np.uint16)
    filled[:, :inputs] = _rounded(weight)
    return filled.reshape(-1, PANEL, filled.shape[1] // 2, 2).transpose(0, 2, 1, 3)


def _halves(panels: np.ndarray) -> np.ndarray:
    """The same, two columns side by side in a word."""
    words = _rounded(panels).astype(np.uint32)
    return words[..., :LANES] | (words[..., LANES:] << 16)


def _bytes(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of (out, in) in panels, and of each output its scale and 128 times the sum of its bytes."""
    outputs, inputs = weight.shape
    scales = np.abs(weight).max(1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    filled = np.zeros((outputs, -(-inputs // 4) * 4), np.int8)
    filled[:, :inputs] = np.rint(weight * inverse[:, None]).astype(np.int8)
    codes = filled.reshape(-1, PANEL, filled.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return codes, scales.astype(np.float32), (128 * filled.sum(1, dtype=np.int32)).astype(np.int32)
