"""Token reader: an embedding of token ids.

    x_i = sqrt(d) E[id_i]        E (vocab, d), entries of variance 1/d, so that x has variance 1

Source: vaswani2017, section 3.4.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.forms import NoFormError, TableForm
from regard.models.readers.reader import Reader


def embedding_table(vocab: int, dim: int) -> nn.Embedding:
    """Return an embedding table (vocab, dim), normal with variance 1 / dim."""
    table = nn.Embedding(vocab, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table


class TokenReader(Reader):
    """Embedding of token ids as items (batch, time, dim); the table may be shared with a writer."""

    def __init__(self, table: nn.Embedding, *, dropout: float = 0.0):
        super().__init__()
        self.dim = table.embedding_dim
        self.table = table
        self.dropout = Dropout(dropout)

    def embed(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        """Return sqrt(d) E[id], with dropout in training."""
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim))

    def forward(self, source: Padded) -> Padded:
        """Return items (batch, time, dim) for ids (batch, time), lengths unchanged."""
        return Padded(self.embed(source.items), source.lengths)

    def form(self) -> TableForm:
        """Return the form of this module in evaluation (regard.layers.forms).

        Raises: NoFormError if the table has max_norm, which changes entries when they are looked up.
        """
        if type(self.table) is not nn.Embedding:
            raise NoFormError(self.table, f"is a {type(self.table).__name__} where an Embedding is expected")
        if self.table.max_norm is not None:
            raise NoFormError(
                self.table, f"renormalizes its entries to max_norm={self.table.max_norm} when they are looked up"
            )
        return TableForm(self.table.weight, math.sqrt(self.table.embedding_dim))
