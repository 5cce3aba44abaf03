"""Base class of output heads that predict from one vector per row.

    h  = pool(core.encode(items))                       one vector per row (regard.layers.pool)
    h' = dropout(LayerNorm(h))      scores = W h' + b
    h' = dropout(f(V LayerNorm(h) + c))                 with f = tanh or relu: a hidden layer
    h' = dropout(LayerNorm(gelu(V h + c)))              with gelu

Subclasses define the prediction and the loss.

Without a hidden layer, the scores of one input are a sum over the encoded items x_i (`explain`).
The pool is a sum of terms t_i; at the mean m and the deviation s = sqrt(variance + eps) of the
vector h of this input, LayerNorm is linear:

    d . scores = sum_i g . t_i + g . t_0 + d . (W beta + b)
    g = (u - mean(u)) / s        u = gamma * (W^T d)

gamma and beta: scale and shift of LayerNorm; t_0: bias of the pool; d: weights of the scores, such
as 1 and -1 for the difference of two classes. The contributions g . t_i are exact for this input.
x_i is the state of the encoder at item i, which has read other items.

Source: lectures, E.1 (sequence to vector); sums of terms through a LayerNorm at its own mean and
        deviation: elhage2021.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.pool import AttentionPooling, ClassToken
from regard.models.cores.core import Core
from regard.models.readers.reader import Shape
from regard.models.writers.writer import Writer


class Contributions(NamedTuple):
    """Terms of combinations of the scores of each row, by part and item, and a bias."""

    parts: tuple[str, ...]
    terms: Float[Tensor, "batch combination part time"]
    bias: Float[Tensor, "batch combination"]

    @property
    def total(self) -> Float[Tensor, "batch combination"]:
        return self.terms.sum((-2, -1)) + self.bias


class NoTermsError(Exception):
    """The scores cannot be written as a sum over the items."""


class VectorWriter(Writer):
    """Output head for one vector per row (batch, dim).

    pool: module from the encoded items (Padded) to one vector per row; by default a learned query
          that attends to them. A ClassToken is put before the items that the core encodes.
    norm:  False leaves out LayerNorm.
    head:  linear, or tanh, relu or gelu, the nonlinearity of a hidden layer of equal size.
    bias:  False leaves out the biases of LayerNorm and of the hidden layer.
    label_smoothing: of heads that predict labels, in training.
    """

    part = "encoder"

    def __init__(
        self,
        dim: int,
        size: int,
        *,
        pool: nn.Module | None = None,
        norm: bool = True,
        head: Literal["linear", "tanh", "relu", "gelu"] = "linear",
        bias: bool = True,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.dim, self.label_smoothing = dim, label_smoothing
        self.pool = AttentionPooling(dim, num_heads=1) if pool is None else pool
        self.vector_dim = dim
        if isinstance(pool, ClassToken):
            self.vector_dim = dim * pool.num_vectors
        self.norm: nn.Module = nn.LayerNorm(self.vector_dim, bias=bias) if norm else nn.Identity()
        self.head, self.dense = head, None
        if head != "linear":
            self.dense = Linear(self.vector_dim, self.vector_dim, bias=bias)
        self.dropout = Dropout(dropout)
        self.output = Linear(self.vector_dim, size)

    def encode(self, core: Core, items: Padded) -> Padded:
        return core.encode(self.pool.prepend(items) if isinstance(self.pool, ClassToken) else items)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> Any:
        """Return the vector of each row. Raises: ValueError if the pool gives another shape."""
        vector = self.pool(encoded)
        shape = encoded.items.shape[0], self.vector_dim
        if vector.shape != shape:
            kind, given = type(self.pool).__name__, tuple(vector.shape)
            raise ValueError(f"vectors of the pool {kind} must be {shape}, got {given}")
        return vector

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        return ("batch", self.vector_dim or "model"), ("batch", self.output.out_features)

    def predictor_modules(self) -> list[nn.Module]:
        return [self.pool]

    def scores(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch size"]:
        if self.dense is not None and self.head == "gelu":
            vector = self.norm(nn.functional.gelu(self.dense(vector)))
            return self.output(self.dropout(vector))
        vector = self.norm(vector)
        if self.dense is not None:
            vector = self.dense(vector)
            vector = vector.tanh() if self.head == "tanh" else vector.relu()
        return self.output(self.dropout(vector))

    def label_axes(self) -> dict[str, int]:
        return {"output.weight": 0, "output.bias": 0}

    def explain(
        self,
        core: Core,
        encoded: Padded,
        weights: Float[Tensor, "combination size"],
        *,
        source: Any = None,
    ) -> Contributions:
        """Return weights @ scores as a sum of contributions of the items, in evaluation.

        Raises: NoTermsError if the pool has no `decompose`, norm or output layer are other modules,
                or the terms do not sum to the scores.
        """
        found = self.terms(encoded, weights, source)
        scores = self.scores(self.read(core, encoded, source=source))
        if scores.shape[-1] != weights.shape[-1]:
            raise NoTermsError(
                f"`scores` returns {scores.shape[-1]} for {weights.shape[-1]} answers"
            )
        size = found.terms.abs().sum((-2, -1)) + found.bias.abs()
        check_sum(found.total, size, scores @ weights.T)
        return found

    def terms(
        self, encoded: Padded, weights: Float[Tensor, "combination size"], source: Any
    ) -> Contributions:
        decompose = getattr(self.pool, "decompose", None)
        if decompose is None:
            raise NoTermsError(f"the pool {type(self.pool).__name__} has no method `decompose`")
        is_linear = self.dense is None and isinstance(self.output, nn.Linear)
        if not is_linear or type(self.norm) not in (nn.LayerNorm, nn.Identity):
            raise NoTermsError("the output layer is not a LayerNorm and a Linear")
        if self.output.out_features != weights.shape[-1]:
            count = self.output.out_features
            raise NoTermsError(f"the writer has {count} scores for {weights.shape[-1]} answers")
        pooled, vector, norm = decompose(encoded), self.pool(encoded), self.norm
        direction = weights @ self.output.weight
        slope = direction.expand(len(vector), *direction.shape)
        if isinstance(norm, nn.LayerNorm):
            variance, _ = torch.var_mean(vector, -1, unbiased=False)
            slope = slope if norm.weight is None else slope * norm.weight
            deviation = (variance + norm.eps).sqrt()[:, None, None]
            slope = (slope - slope.mean(-1, keepdim=True)) / deviation
        terms = torch.einsum("bcd,bptd->bcpt", slope, pooled.terms)
        bias = slope @ pooled.bias
        shift = norm.bias if isinstance(norm, nn.LayerNorm) else None
        if shift is not None:
            bias = bias + direction @ shift
        if self.output.bias is not None:
            bias = bias + weights @ self.output.bias
        return Contributions(pooled.parts, terms, bias)


def check_sum(total: Tensor, size: Tensor, expected: Tensor) -> None:
    """Raise NoTermsError if terms, of absolute values `size`, do not sum to the scores."""
    if not ((total - expected).abs() <= 1e-3 * (size + 1)).all():
        raise NoTermsError("the terms do not sum to the scores of the model")
