"""A long text as a row of token ids, and the windows of it that a language model sees.

    window i of epoch e      tokens o_e + i c ... o_e + (i + 1) c      c the context, o_e an offset of the epoch's own

so every token is predicted once an epoch, from up to c before it, and another epoch cuts the text elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.lines import not_utf8, read_lines
from regard.errors import UserError

_BLOCK = 1 << 20
_MOST_LINE = 10_000_000


@dataclass(frozen=True)
class Window:
    """Rows of consecutive tokens, -1 behind the end of a short one."""

    tokens: Tensor
    """(rows, time + 1): the first is known, the others are predicted."""
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "Window":
        """The same batch on a device."""
        return Window(self.tokens.to(device, non_blocking=True), self.indices)


class WindowBatches:
    """Windows of `context` predicted tokens, `rows` a batch.

    is_fixed: windows begin at the text's start, in order (for measuring); else cut and shuffled anew each epoch.
    Raises:  UserError for a text of fewer than two tokens.
    """

    def __init__(
        self,
        ids: NDArray[np.int32],
        *,
        context: int,
        rows: int,
        seed: int,
        is_fixed: bool = False,
        origin: str = "text",
    ):
        if len(ids) < 2:  # one to know, one to predict
            raise UserError(f"{origin}: a text must have two tokens at least, but has {len(ids)}.")
        self.ids, self.context, self.rows, self.seed, self.is_fixed = ids, context, rows, seed, is_fixed

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The first tokens of each batch's windows: a pure function of (seed, epoch)."""
        if self.is_fixed:
            starts = np.arange(0, len(self.ids) - 1, self.context)
        else:
            draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch))))
            most = min(self.context, max(1, len(self.ids) - 1 - self.context))
            starts = np.arange(int(draw.integers(most)), max(1, len(self.ids) - self.context), self.context)
            starts = draw.permutation(starts)
        return [tuple(starts[i : i + self.rows].tolist()) for i in range(0, len(starts), self.rows)]

    def collate(self, epoch: int, indices: Sequence[int]) -> Window:
        """The windows that begin at these tokens."""
        tokens = np.full((len(indices), self.context + 1), -1, np.int64)
        for row, start in enumerate(indices):
            piece = self.ids[start : start + self.context + 1]
            tokens[row, : len(piece)] = piece
        longest = int((tokens >= 0).sum(1).max())
        return Window(torch.from_numpy(tokens[:, :longest].copy()), tuple(indices))


def read_text(path: str | Path) -> str:
    """A text file, plain or gzip. Raises UserError naming the file and the line that is not UTF-8, or far too long."""
    lines = []
    for number, line in enumerate(read_lines(Path(path)), start=1):
        if len(line) > _MOST_LINE:
            raise UserError(
                f"{path}, line {number}: has {len(line):,} bytes, more than {_MOST_LINE:,}: no line of text."
            )
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: {not_utf8(error)}.") from None
    text = "\n".join(lines) + "\n"
    if not text.strip():
        raise UserError(f"{path}: holds white space and no text.")
    return text


def blocks(text: str) -> Iterator[str]:
    """The text in parts that end at a line feed each, but for the last: a million characters or one line, if longer."""
    start = 0
    while start < len(text):
        end = text.find("\n", min(start + _BLOCK, len(text))) + 1 or len(text)
        yield text[start:end]
        start = end
