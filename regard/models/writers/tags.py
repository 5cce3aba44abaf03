"""Token classification head: one tag for each item of a sequence.

    p(tag_i = c | x) = softmax(W LayerNorm(h_i) + b)_c
    p(tag_i = c | x) = softmax(W LayerNorm(gelu(V h_i + d)) + b)_c    head gelu
    loss = sum over the tagged items of -log p(right tag)

Items whose target is NONE have no tag: padding, and the subwords of a word after its first.

Source: lectures, E.1 (sequence to sequence of the same length); collobert2011, section 3.3.1 (a tag
        per word).
"""

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.models.cores.core import Core
from regard.models.readers.reader import Shape
from regard.models.writers.writer import Writer, check_target
from regard.ops.copies import copy_to, cpu_copy
from regard.ops.token_loss import TokenLoss

NONE = -1
"""Target of an item without a tag."""


class TagWriter(Writer):
    """Token classification head for items (batch, time, dim); norm, head, bias: of VectorWriter."""

    part = "encoder"

    def __init__(
        self,
        dim: int,
        num_tags: int,
        *,
        norm: bool = True,
        head: Literal["linear", "gelu"] = "linear",
        bias: bool = True,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.dense = None if head == "linear" else Linear(dim, dim, bias=bias)
        self.norm: nn.Module = nn.LayerNorm(dim, bias=bias) if norm else nn.Identity()
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, num_tags)
        self.label_smoothing = label_smoothing

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> Padded:
        return encoded

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        return encoded, (*encoded[:-1], self.output.out_features)

    def answer(self, hidden: Padded) -> Float[Tensor, "batch time tags"]:
        return widen(self._scores(hidden.items)).softmax(-1)

    def loss(self, hidden: Padded, target: Int[Tensor, "batch time"]) -> TokenLoss:
        check_target(self, target, hidden.items.shape[:2])
        tagged = copy_to((cpu_copy(target) != NONE).flatten().nonzero().squeeze(1), target.device)
        vectors = hidden.items.flatten(0, 1).index_select(0, tagged)  # (tagged, dim)
        log_p = widen(self._scores(vectors)).log_softmax(-1)
        nll = -log_p.gather(1, target.flatten().index_select(0, tagged)[:, None]).sum()
        if not self.training or self.label_smoothing == 0:
            return TokenLoss(nll, nll.detach())
        total = (1 - self.label_smoothing) * nll - self.label_smoothing * log_p.mean(-1).sum()
        return TokenLoss(total, nll.detach())

    def label_axes(self) -> dict[str, int]:
        return {"output.weight": 0, "output.bias": 0}

    def count(self, target: Int[Tensor, "batch time"]) -> int:
        return int((cpu_copy(target) != NONE).sum())

    def _scores(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch tags"]:
        if self.dense is not None:
            hidden = nn.functional.gelu(self.dense(hidden))
        return self.output(self.dropout(self.norm(hidden)))
