"""Room to compute in: one for each worker, kept from batch to batch, made larger when a batch needs it.

Fresh memory costs more than what is computed in it: the kernel zeroes each page.
"""

import numpy as np

from regard.engines.compiled.packed import aligned, in_panels
from regard.engines.compiled.products import PANELS, multiplier
from regard.engines.compiled.tiles import FLOAT32, PANEL
from regard.engines.compiled.transformer import PackedTransformer
from regard.engines.compiled.work import DECODERS, HEADS, KEY_HEADS, SIZE, VALUE_SIZE, Work

__all__ = ["LOGIT_ROWS", "Room"]

LOGIT_ROWS = 48
"""Rows whose scores of the vocabulary are held at once: few enough for the cache, enough for the weights' way to it."""


class Room:
    """Work for batches of up to so many rows and places, and memories of so many slots."""

    def __init__(self, model: PackedTransformer):
        self.model = model
        self.rows = self.places = self.slots = 0
        self._work: Work | None = None
        self._memory = np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)

    def work(self, *, rows: int, places: int) -> Work:
        """Room for `rows` items at once of sequences of up to `places` items."""
        if self._work is None or rows > self.rows or places > self.places:
            self.rows = max(self.rows, rows + rows // 4)
            self.places = max(self.places, places + places // 4)
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

    def _made(self) -> Work:
        model, rows, places = self.model, self.rows, in_panels(self.places)
        sizes, products = model.sizes, model.products
        items = in_panels(model.core.width)
        read = in_panels(int(sizes[HEADS] * sizes[VALUE_SIZE])) + PANEL
        widest = max(products.widest, read)
        vocab = int(model.table[-1, PANELS]) * PANEL
        return Work(
            sizes=sizes,
            table=model.table,
            codes_of=np.array([multiplier[FLOAT32]()], np.int64),
            norms=np.stack(model.norms),
            source=model.source,
            target=model.target,
            positions=model.positions(self.places),
            around=model.around(self.places),
            behind=model.behind(self.places),
            items=aligned((rows, items)),
            normed=aligned((rows, items)),
            mapped=aligned((rows, model.widest_mapped)),
            read=aligned((rows, read)),
            hidden=aligned((rows, model.widest_hidden)),
            logits=aligned((min(rows, LOGIT_ROWS), vocab)),
            scores=aligned((max(LOGIT_ROWS, int(sizes[HEADS])), places)),
            panels=aligned((places * int(sizes[SIZE]) + places * in_panels(int(sizes[VALUE_SIZE])),)),
            edge=aligned((places,)),
            zeros=aligned((widest,)),
            order=np.arange(max(places, rows, self.places), dtype=np.int32),
            codes=aligned((rows, -(-products.deepest // 4) * 4), np.uint8),
            scales=aligned((rows,)),
        )
