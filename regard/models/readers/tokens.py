"""Token reader: an embedding of token ids.

    x_i = c E[id_i]              E (vocab, d), c = sqrt(d) or 1
    x_i = c E[id_i] W^T          embeddings of another size e: E (vocab, e), W (d, e)

    root    c = sqrt(e), entries of variance 1/e, so that x has variance 1      vaswani2017
    one     c = 1, entries with a standard deviation of 0.02                    radford2018

Source: lectures, D.13 (h_0 = U W_e + W_p) and C.9 (other widths); lan2020, section 3.1.
"""

import math
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.forms import NoFormError, TableForm
from regard.layers.linear import Linear
from regard.models.readers.reader import Reader, check_padded


def embedding_table(vocab: int, dim: int, *, std: float | None = None) -> nn.Embedding:
    """Return an embedding table (vocab, dim), normal with this or dim^(-1/2) deviation."""
    table = nn.Embedding(vocab, dim)
    nn.init.normal_(table.weight, std=dim**-0.5 if std is None else std)
    return table


def embedding_projection(dim: int, width: int) -> Linear:
    """Return the map W (width, dim) of embeddings to items, without bias. (glorot2010)"""
    projection = Linear(dim, width, bias=False)
    nn.init.xavier_uniform_(projection.weight)
    return projection


class TokenReader(Reader):
    """Embedding of token ids as items (batch, time, dim); the table may be shared with a writer.

    scale:      root: embeddings are multiplied by the root of their size; one: they are not.
    projection: map of the embeddings to the width, if they have another size
    (`embedding_projection`).
    Raises: ValueError if scale is unknown, or the projection has a bias.
    """

    def __init__(
        self,
        table: nn.Embedding,
        *,
        scale: Literal["root", "one"] = "root",
        projection: Linear | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        if scale not in ("root", "one"):
            raise ValueError(f"scale must be root or one, got {scale!r}")
        check_projection("projection", projection)
        self.dim = table.embedding_dim if projection is None else projection.out_features
        self.scale = math.sqrt(table.embedding_dim) if scale == "root" else 1.0
        self.table = table
        self.projection = projection
        self.dropout = Dropout(dropout)

    def embed(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        """Return c E[id], or c E[id] W^T, with dropout in training."""
        items = self.table(ids) if self.scale == 1 else self.table(ids) * self.scale
        return self.dropout(items if self.projection is None else self.projection(items))

    def forward(self, source: Padded) -> Padded:
        check_padded("source", source)
        return source._replace(items=self.embed(source.items))

    def form(self) -> TableForm:
        """Return the form of this module in evaluation."""
        return table_form(self.table, self.projection, self.scale)


def check_projection(name: str, projection: Linear | None) -> None:
    """Raise ValueError if a map of embeddings has a bias."""
    if projection is not None and projection.bias is not None:
        raise ValueError(f"`{name}` must have no bias, got one")


def table_form(table: nn.Embedding, projection: Linear | None, scale: float) -> TableForm:
    """Return the form of a table and its projection. Raises: NoFormError."""
    if type(table) is not nn.Embedding:
        raise NoFormError(table, f"is a {type(table).__name__} where an Embedding is expected")
    if table.max_norm is not None:
        raise NoFormError(table, f"renormalizes its entries to max_norm={table.max_norm}")
    if projection is not None and getattr(projection, "bias", None) is not None:
        raise NoFormError(projection, "has a bias, which maps of embeddings do not have")
    return TableForm(table.weight, scale, None if projection is None else projection.weight)
