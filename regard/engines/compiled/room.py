"""Room to compute in: one for each worker, kept from batch to batch, made larger when a batch needs it.

Fresh memory costs more than what is computed in it: the kernel zeroes each page.
"""

import numpy as np
import torch

from regard.engines.compiled.packed import aligned, in_panels
from regard.engines.compiled.products import PANELS
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.transformer import PackedTransformer
from regard.engines.compiled.work import (
    AROUND,
    ARRAYS,
    BEHIND,
    CODES,
    DECODERS,
    EDGE,
    HEADS,
    HIDDEN,
    ITEMS,
    KEY_HEADS,
    LOGITS,
    MAPPED,
    NORMED,
    NORMS,
    ORDER,
    PANELED,
    POSITIONS,
    READ,
    SCALED,
    SCORES,
    SIZE,
    SOURCES,
    TABLE,
    TARGETS,
    VALUE_SIZE,
    ZEROS,
)

LOGIT_ROWS = 48
"""Rows whose scores of the vocabulary are held at once: few enough for the cache, enough for the weights' way to it."""


class Room:
    """Work for batches of up to so many rows and places, and memories of so many slots."""

    def __init__(self, model: PackedTransformer):
        self.model = model
        self.rows = self.places = self.ordered = self.slots = 0
        self._work: np.ndarray | None = None
        self._arrays: dict[int, np.ndarray] = {}
        self._memory = np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)

    def work(self, *, rows: int, places: int, sources: int = 0) -> np.ndarray:
        """Room for `rows` items at once of sequences of up to `places` items, and `sources` items of all sources."""
        if self._work is None or rows > self.rows or places > self.places or sources > self.ordered:
            self.rows = max(self.rows, rows + rows // 4)
            self.places = max(self.places, places + places // 4)
            self.ordered = max(self.ordered, sources + sources // 4)
            with torch.device("cpu"):  # whatever the caller's default device is
                self._work = self._made()
        return self._work

    def memory(self, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of all blocks for so many items; untouched pages of it cost nothing."""
        if slots > self.slots:
            sizes = self.model.sizes
            shape = sizes[DECODERS], slots, sizes[KEY_HEADS]
            self.slots = slots
            self._memory = (
                np.empty((shape[0], slots, shape[2] * sizes[SIZE]), np.float32),
                np.empty((shape[0], slots, shape[2] * sizes[VALUE_SIZE]), np.float32),
            )
        return self._memory

    def _made(self) -> np.ndarray:
        model, rows, places = self.model, self.rows, in_panels(self.places)
        sizes, products = model.sizes, model.products
        items = in_panels(model.width)
        read = in_panels(int(sizes[HEADS] * sizes[VALUE_SIZE])) + PANEL
        packed = places * max(int(sizes[SIZE]), in_panels(int(sizes[VALUE_SIZE])))
        arrays = {
            TABLE: model.table,
            NORMS: np.concatenate(model.norms),
            SOURCES: model.source,
            TARGETS: model.target,
            POSITIONS: model.positions(self.places),
            AROUND: model.around(self.places),
            BEHIND: model.behind(self.places),
            ORDER: np.arange(self.ordered, dtype=np.int32)[None],
            ZEROS: aligned((1, max(products.widest, read, places))),
            ITEMS: aligned((rows, items)),
            NORMED: aligned((rows, items)),
            MAPPED: aligned((rows, model.widest_mapped)),
            READ: aligned((rows, read)),
            HIDDEN: aligned((rows, model.widest_hidden)),
            LOGITS: aligned((min(rows, LOGIT_ROWS), int(model.table[-1, PANELS]) * PANEL)),
            SCORES: aligned((max(LOGIT_ROWS, int(sizes[HEADS])), places)),
            PANELED: aligned((2, packed)),
            EDGE: aligned((1, places)),
            CODES: aligned((rows, 2 * in_panels(products.deepest)), np.uint8),
            SCALED: aligned((1, rows)),
        }
        self._arrays = arrays  # what the addresses point to
        places_of = [(arrays[which].ctypes.data, *arrays[which].shape) for which in range(ARRAYS)]
        return np.concatenate((sizes, np.array(places_of, np.int64).ravel()))
