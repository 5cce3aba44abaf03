"""Windows of a long text for language models.

    window i of epoch e      tokens o_e + i c ... o_e + (i + 1) c      c: context length, o_e:
                             offset of the epoch

Every token is predicted once per epoch, from up to c preceding tokens; each epoch splits the text
at other positions.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.masks import Padded
from regard.data.batches import Batch, BatchesByCount, pad
from regard.errors import UserError

WindowBatch = Batch[None, Padded]
"""Targets (rows, time + 1) without a source, padded with 0; the first token is input only."""


@dataclass(eq=False)
class WindowBatches(BatchesByCount):
    """Batches of `rows` windows with `context` predicted tokens each, in order from the start of
    the text (is_fixed), else shifted and shuffled in each epoch."""

    data: NDArray[np.int32]
    _: KW_ONLY
    context: int
    origin: str = "text"

    def __post_init__(self) -> None:
        if len(self.data) < 2:  # one input, one prediction
            problem = f"a text must have at least two tokens, got {len(self.data)}."
            raise UserError(f"{self.origin}: {problem}")

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        if self.is_fixed:
            return np.arange(0, len(self.data) - 1, self.context)
        most = min(self.context, max(1, len(self.data) - 1 - self.context))
        first = int(draw.integers(most))
        return np.arange(first, max(1, len(self.data) - self.context), self.context)

    def collate(self, epoch: int, indices: Sequence[int]) -> WindowBatch:
        windows = [self.data[start : start + self.context + 1] for start in indices]
        return Batch(None, pad(windows), tuple(indices))
