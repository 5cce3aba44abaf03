"""Interface of writers, which query the core, compute the loss and return the answer.

    queries = embed_target(target)               decoder inputs, if the core decodes a target
    encoded = encode(core, items)                items of the reader, encoded by the core
    hidden  = read(core, encoded, source=source, queries=queries)
    total, nll = loss(hidden, target)            in training
    answer(hidden)                               in use

Source: lectures, E.11 (encoder-predictor-decoder view).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded, Unpadded
from regard.models.cores.core import Core
from regard.models.readers.reader import Shape


class Writer(nn.Module, ABC):
    """Base class of writers, the last part of a model (regard.models.model)."""

    part: ClassVar[Literal["encoder", "decoder", "set"]]
    """Part of the core that is used: encoded items (`encode`), targets in order (`begin`,
    `forward`, `step`), or a set of queries (`encode`, `decode_set`)."""
    dim: int | None = None
    """Size of the hidden vectors: core.memory_dim (encoder) or core.width; None: not checked."""
    queries_kind: str = ""
    """Origin of the queries of a writer of a set, for the outline of a model."""
    set_outputs: int | None = None
    """Number of hidden vectors of a set (Core.set_outputs); None: not checked."""

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Return the decoder inputs (rows, time, dim) for targets (rows, time) from `start` on.

        Raises: TypeError if part is not decoder.
        """
        raise TypeError(
            f"`embed` needs a writer that decodes targets in order, such as TokenWriter, got "
            f"{type(self).__name__}"
        )

    def embed_target(self, target: Any) -> Tensor | None:
        """Return the decoder inputs of all positions (teacher forcing), or None."""
        return None

    def encode(self, core: Core, items: Padded) -> Padded:
        """Return the encoded items."""
        return core.encode(items)

    @abstractmethod
    def read(self, core: Core, encoded: Any, *, source: Any, queries: Tensor | None) -> Any:
        """Return the hidden vectors that `loss` and `answer` take.

        encoded: what `encode` returned; for part decoder, the core's first state (CoreState).
        source:  what the reader was given.
        queries: what `embed_target` returned.
        """

    @abstractmethod
    def loss(self, hidden: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Return two sums over the batch: the objective, and the loss to report, detached."""

    def costs(self, hidden: Any, target: Any) -> Padded:
        """Return the training objective of each prediction in order (rows, predictions).

        By default one for each row: `loss` of that row alone, where hidden vectors and targets are
        tensors with the rows on their first axis, or tuples, lists and dataclasses of such.
        """
        rows = range(_count_rows(target))
        totals = [self.loss(_row(hidden, row), _row(target, row))[0] for row in rows]
        return Unpadded.of(torch.stack(totals)[:, None])

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        """Return the shapes of the hidden vectors and of the answer, given that of h^Enc."""
        return ("batch", "...", self.dim or "model"), ("batch", "...")

    def predictor_modules(self) -> list[nn.Module]:
        """Return the modules that come before the hidden vectors: embeddings of targets, a pool."""
        return []

    @abstractmethod
    def answer(self, hidden: Any) -> Any:
        """Return the prediction."""

    def label_axes(self) -> dict[str, int]:
        """Return the axis of the labels in each parameter that has a part per label, by its name.

        Training that starts from a run of other labels copies the parts of the labels that both
        have.
        """
        return {}

    def count(self, target: Any) -> int:
        """Return the number of predictions in a target; by default the rows."""
        return len(target)


def _row(part: Any, row: int) -> Any:
    """Return one row of tensors in nested tuples, lists and dataclasses."""
    if isinstance(part, Tensor):
        return part[row : row + 1]
    if isinstance(part, tuple | list):
        parts = [_row(inner, row) for inner in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(
            part, **{entry.name: _row(getattr(part, entry.name), row) for entry in fields(part)}
        )
    return part


def _count_rows(part: Any) -> int:
    if isinstance(part, Tensor):
        return len(part)
    inner = [getattr(part, entry.name) for entry in fields(part)] if is_dataclass(part) else part
    return _count_rows(inner[0])


def check_target(writer: Writer, target: Tensor, shape: Sequence[int]) -> None:
    """Raise ValueError unless a target has this shape: other sizes would be broadcast."""
    if target.shape != tuple(shape):
        kind, given = type(writer).__name__, tuple(target.shape)
        raise ValueError(f"the target of {kind} must have the shape {tuple(shape)}, got {given}")
