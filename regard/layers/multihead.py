"""Multi-head attention: several reads side by side, each with its own small projections.

    head_h(X', X) = attend(W_q^h X', (W_k^h X, W_v^h X))            h = 1 .. l
    out           = W_o [head_1; ...; head_l]

X' are the items that ask (queries), X those that are read. X' = X is self-attention; with a causal mask it is the
decoder's masked self-attention; X another set is cross-attention. All heads' projections are stacked in one matrix.

Source: lectures, C; vaswani2017, section 3.2.2.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.memory import Memory
from regard.attention.scores import Score
from regard.layers.read import Read

__all__ = ["MultiHead"]


class MultiHead(nn.Module):
    """l heads of sizes head_dim (queries, keys) and head_value_dim (values), back to output_dim.

    Sizes are independent: query_dim of X', source_dim of X (default: the same), head_dim (default: query_dim / l,
    rounded up), head_value_dim (default: head_dim), output_dim (default: query_dim).
    Parameters: query (l head_dim, query_dim), key (l head_dim, source_dim), value (l head_value_dim, source_dim),
    output (output_dim, l head_value_dim), each with a bias unless bias=False.
    """

    def __init__(
        self,
        query_dim: int,
        *,
        num_heads: int,
        source_dim: int | None = None,
        head_dim: int | None = None,
        head_value_dim: int | None = None,
        output_dim: int | None = None,
        score: Score | None = None,
        kernel: str = "auto",
        bias: bool = True,
    ):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, but is {num_heads}")
        source_dim = query_dim if source_dim is None else source_dim
        head_dim = -(-query_dim // num_heads) if head_dim is None else head_dim
        head_value_dim = head_dim if head_value_dim is None else head_value_dim
        output_dim = query_dim if output_dim is None else output_dim
        self.num_heads = num_heads
        self.query = nn.Linear(query_dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(source_dim, num_heads * head_dim, bias=bias)
        self.value = nn.Linear(source_dim, num_heads * head_value_dim, bias=bias)
        self.output = nn.Linear(num_heads * head_value_dim, output_dim, bias=bias)
        self.read = Read(score, kernel=kernel)

    def memory(self, source: Float[Tensor, "batch source source_dim"], mask: Mask | None = None) -> Memory:
        """Keys and values of every head for these items: (batch, head, source, head's size)."""
        memory = Memory(self._heads(self.key(source)), self._heads(self.value(source)), mask)
        return memory.map_keys_with(self.read.score)

    def extend(self, memory: Memory, source: Float[Tensor, "batch new source_dim"]) -> Memory:
        """The memory followed by the keys and values of new items (the growing past of a decoder)."""
        new = self.memory(source)
        return memory.extend(new.keys, new.values)

    def forward(
        self, query: Float[Tensor, "batch query query_dim"], memory: Memory, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch query output_dim"]:
        """What every query reads from a memory made by `memory` or `extend`."""
        out = self.read(self._heads(self.query(query)), memory, mask=mask)
        return self.output(out.transpose(1, 2).flatten(2))  # (batch, query, output_dim)

    def _heads(self, items: Tensor) -> Tensor:
        return items.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (batch, head, time, head's size)
