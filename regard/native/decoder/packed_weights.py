"""Packing of model weights for compiled code: panels of columns, and tables of their addresses.

    float32    (panels, in, PANEL)          column c of panel p is output p * PANEL + c
    pairs      (panels, in / 2, PANEL, 2)   bfloat16, rounded to nearest even
    halves     (panels, in, LANES) words    bfloat16, columns c and c + LANES of a panel in a word
    int8       (panels, in / 4, PANEL, 4)   round(127 w / max |w|), max over each output's weights

Outputs are padded with zeros to whole panels, heads to whole registers. The scale of the scores is
folded into the query weights, sqrt(width) into the embeddings.

Source: int8: jacob2018, section 2, with a scale for each output.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.native.decoder import matmul, tiles
from regard.native.decoder.tiles import PANEL
from regard.native.processor import LANES

KINDS = {"float32": tiles.FLOAT32, "bfloat16": tiles.BFLOAT16, "int8": tiles.INT8}
"""Storage formats of the weights by compute type."""
_LINE = 64


def round_up_to_panel(size: int) -> int:
    """Round a size up to a multiple of a panel."""
    return -(-size // PANEL) * PANEL


def aligned_zeros(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Return zeros aligned to a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + size].view(dtype).reshape(shape)


class Heads(NamedTuple):
    """Heads of a projection, each padded to whole registers."""

    count: int
    size: int

    @property
    def padded_size(self) -> int:
        """Size of a head, padded to whole registers."""
        return -(-self.size // LANES) * LANES

    def pad_outputs(self, weight: Tensor) -> Tensor:
        """Pad (heads * size, ...) to (heads * padded_size, ...)."""
        heads = weight.unflatten(0, (self.count, self.size))
        after = [0, 0] * (heads.dim() - 2) + [0, self.padded_size - self.size]
        return functional.pad(heads, after).flatten(0, 1)

    def pad_inputs(self, weight: Tensor) -> Tensor:
        """Pad (..., heads * size) to (..., heads * padded_size)."""
        return self.pad_outputs(weight.T).T


class ProductTable:
    """Builder of the table of products and of the arrays that its addresses point to.

    The arrays share one allocation, for which numpy requests huge pages: a step that reads every
    weight once is a fifth faster than with pages of 4 KiB, which cause more TLB misses.
    """

    def __init__(self, kind: int):
        self.kind = kind
        self.rows: list[list[int]] = []
        self.arrays: list[np.ndarray] = []  # the rows refer to them by index, starting at 1
        self.memory = np.zeros(0, np.uint8)
        self.widest = self.deepest = self.last_width = PANEL

    def build_table(self) -> np.ndarray:
        """Return the table (products, matmul.FIELDS), after all products have been added."""
        firsts = np.cumsum([0, *(-(-array.nbytes // _LINE) * _LINE for array in self.arrays)])
        self.memory = aligned_zeros((int(firsts[-1]),), np.uint8)
        arrays, self.arrays = self.arrays[::-1], []
        for first in firsts[:-1]:
            array = arrays.pop()  # each is freed when it is copied
            content = self.memory[first : first + array.nbytes].view(array.dtype)
            content.reshape(array.shape)[:] = array
        addresses = np.array([0, *(self.memory.ctypes.data + firsts[:-1])], np.int64)
        table = np.array(self.rows, np.int64).reshape(-1, matmul.FIELDS)
        for column in (matmul.WEIGHTS, matmul.BIAS, matmul.SCALES, matmul.SUMS):
            table[:, column] = addresses[table[:, column]]
        return table

    def add(self, weight: Tensor, bias: Tensor | None, *, padding_bias: float = 0.0) -> None:
        """Add x W^T + b for W (out, in); `padding_bias` is the bias of the padding outputs."""
        wide = weight.detach().float().cpu().numpy()
        outputs, inputs = wide.shape
        panels = -(-outputs // PANEL)
        biases = aligned_zeros((panels * PANEL,))
        biases[:outputs] = 0 if bias is None else bias.detach().float().cpu().numpy()
        biases[outputs:] = padding_bias
        padded = wide
        if outputs < panels * PANEL:
            padded = np.zeros((panels * PANEL, inputs), np.float32)
            padded[:outputs] = wide
        entry = [0] * matmul.FIELDS
        entry[matmul.KIND], entry[matmul.CODE] = self.kind, matmul.multiplier[self.kind]()
        entry[matmul.DEPTH], entry[matmul.OUT], entry[matmul.PANELS] = inputs, outputs, panels
        columns = matmul.BIAS, matmul.WEIGHTS, matmul.SCALES, matmul.SUMS
        for column, array in zip(columns, (biases, *_PACK[self.kind](padded)), strict=False):
            self.arrays.append(array)
            entry[column] = len(self.arrays)
        self.rows.append(entry)
        self.last_width = panels * PANEL
        self.widest, self.deepest = max(self.widest, panels * PANEL), max(self.deepest, inputs)


def _panels(weight: np.ndarray) -> tuple[np.ndarray]:
    """Reshape (out, in) to (panels, in, PANEL)."""
    return (weight.reshape(-1, PANEL, weight.shape[1]).transpose(0, 2, 1),)


def _bfloat16_bits(numbers: np.ndarray) -> np.ndarray:
    rounded = torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def _pairs(weight: np.ndarray) -> tuple[np.ndarray]:
    """Return (out, in) as bfloat16 in panels, two numbers of a column next to each other."""
    outputs, inputs = weight.shape
    padded = np.zeros((outputs, -(-inputs // 2) * 2), np.uint16)
    padded[:, :inputs] = _bfloat16_bits(weight)
    return (padded.reshape(-1, PANEL, padded.shape[1] // 2, 2).transpose(0, 2, 1, 3),)


def _halves(weight: np.ndarray) -> tuple[np.ndarray]:
    """Return (out, in) as bfloat16 in panels, two columns in a word."""
    words = _bfloat16_bits(*_panels(weight)).astype(np.uint32)
    return (words[..., :LANES] | (words[..., LANES:] << 16),)


def _bytes(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (out, in) as bytes in panels, and scale and 128 times the byte sum per output."""
    outputs, inputs = weight.shape
    scales = np.abs(weight).max(1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    padded = np.zeros((outputs, -(-inputs // 4) * 4), np.int8)
    padded[:, :inputs] = np.rint(weight * inverse[:, None]).astype(np.int8)
    codes = padded.reshape(-1, PANEL, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return codes, scales.astype(np.float32), (128 * padded.sum(1, dtype=np.int32)).astype(np.int32)


_PACK = {tiles.FLOAT32: _panels, tiles.PAIRS: _pairs, tiles.HALVES: _halves, tiles.INT8: _bytes}
"""For each kind, the function that returns its arrays: weights and, for bytes, scales and sums."""
