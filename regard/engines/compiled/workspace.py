"""Workspace of a worker: buffers that are reused between batches and grow on demand.

Fresh memory costs more than the computation in it, as the operating system zeroes each page.
"""

import numpy as np
import torch

from regard.engines.compiled.program import PackedTransformer
from regard.native.decoder.layout import (
    ARRAYS,
    CODES,
    DECODER_BIAS,
    DECODERS,
    ENCODER_BIAS,
    HEADS,
    HIDDEN,
    IDENTITY,
    ITEMS,
    KEY_HEADS,
    KEY_MASK,
    LOGITS,
    MAPPED,
    NORMED,
    NORMS,
    PACKED,
    POSITIONS,
    READ,
    ROTATIONS,
    ROW_SCALES,
    SCORES,
    SIZE,
    SOURCES,
    TABLE,
    TARGETS,
    VALUE_SIZE,
    ZEROS,
)
from regard.native.decoder.matmul import PANELS
from regard.native.decoder.packed_weights import aligned_zeros, round_up_to_panel
from regard.native.decoder.tiles import PANEL

LOGIT_ROWS = 48
"""Rows of logits computed at a time: few enough for the cache, enough to amortize loading the weights."""


class Workspace:
    """Buffers for batches of up to `rows` rows and `positions` positions, and memories of `slots` slots."""

    def __init__(self, model: PackedTransformer):
        self.model = model
        self.rows = self.positions = self.num_sources = self.slots = 0
        self._context: np.ndarray | None = None
        self._arrays: dict[int, np.ndarray] = {}
        self._memory = np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)

    def context(self, *, rows: int, positions: int, sources: int = 0) -> np.ndarray:
        """Return a context for `rows` items at once, sequences of up to `positions` items, `sources` source items."""
        if self._context is None or rows > self.rows or positions > self.positions or sources > self.num_sources:
            self.rows = max(self.rows, rows + rows // 4)
            self.positions = max(self.positions, positions + positions // 4)
            self.num_sources = max(self.num_sources, sources + sources // 4)
            with torch.device("cpu"):  # independent of the default device of the caller
                self._context = self._allocate()
        return self._context

    def memory(self, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """Return buffers for keys and values of all blocks and `slots` items; untouched pages cost nothing."""
        if slots > self.slots:
            sizes = self.model.sizes
            shape = sizes[DECODERS], slots, sizes[KEY_HEADS]
            self.slots = slots
            self._memory = (
                np.empty((shape[0], slots, shape[2] * sizes[SIZE]), np.float32),
                np.empty((shape[0], slots, shape[2] * sizes[VALUE_SIZE]), np.float32),
            )
        return self._memory

    def _allocate(self) -> np.ndarray:
        model, rows, positions = self.model, self.rows, round_up_to_panel(self.positions)
        sizes, products = model.sizes, model.products
        items = round_up_to_panel(model.width)
        read = round_up_to_panel(int(sizes[HEADS] * sizes[VALUE_SIZE])) + PANEL
        packed_size = positions * max(int(sizes[SIZE]), round_up_to_panel(int(sizes[VALUE_SIZE])))
        arrays = {
            TABLE: model.table,
            NORMS: np.concatenate(model.norms),
            SOURCES: model.source,
            TARGETS: model.target,
            POSITIONS: model.positional_encodings(self.positions),
            ENCODER_BIAS: model.encoder_bias(self.positions),
            DECODER_BIAS: model.decoder_bias(self.positions),
            ROTATIONS: model.rotations(self.positions),
            IDENTITY: np.arange(self.num_sources, dtype=np.int32)[None],
            ZEROS: aligned_zeros((1, max(products.widest, read, positions))),
            ITEMS: aligned_zeros((rows, items)),
            NORMED: aligned_zeros((rows, items)),
            MAPPED: aligned_zeros((rows, model.widest_mapped)),
            READ: aligned_zeros((rows, read)),
            HIDDEN: aligned_zeros((rows, model.widest_hidden)),
            LOGITS: aligned_zeros((min(rows, LOGIT_ROWS), int(model.table[-1, PANELS]) * PANEL)),
            SCORES: aligned_zeros((max(LOGIT_ROWS, int(sizes[HEADS])), positions)),
            PACKED: aligned_zeros((2, packed_size)),
            KEY_MASK: aligned_zeros((1, positions)),
            CODES: aligned_zeros((rows, 2 * round_up_to_panel(products.deepest)), np.uint8),
            ROW_SCALES: aligned_zeros((1, rows)),
        }
        self._arrays = arrays  # keeps the addresses valid
        descriptors = [(arrays[index].ctypes.data, *arrays[index].shape) for index in range(ARRAYS)]
        return np.concatenate((sizes, np.array(descriptors, np.int64).ravel()))
