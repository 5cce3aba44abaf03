"""Small GPT in plain PyTorch: one product for q, k and v, fused attention, a tied table.

    h = dropout(E[u] + P);  h += dropout(attention(norm(h)));  h += dropout(W_2 gelu(W_1 norm(h)));
    logits = E norm(h)

Weights are normal with standard deviation 0.02, biases zero; attention weights have their own
dropout rate.
"""

from typing import NamedTuple

from torch import Tensor, nn

__all__ = ["Sizes", "SmallGPT"]


class Sizes(NamedTuple):
    """Sizes of a language model."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    vocab: int = 65


class _Block(nn.Module):
    def __init__(self, sizes: Sizes, dropout: float, attention_dropout: float):
        super().__init__()
        width = sizes.width
        self.heads, self.attention_dropout = sizes.heads, attention_dropout
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all_three, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        three = self.all_three(self.first_norm(hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = three.permute(2, 0, 3, 1, 4)
        rate = self.attention_dropout if self.training else 0.0
        read = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=rate, is_causal=True
        )
        hidden = hidden + self.dropout(self.mix(read.transpose(1, 2).flatten(2)))
        return hidden + self.dropout(
            self.contract(nn.functional.gelu(self.expand(self.second_norm(hidden))))
        )


class SmallGPT(nn.Module):
    """Tokens (batch, time) to scores of the next."""

    def __init__(self, sizes: Sizes, *, dropout: float, attention_dropout: float):
        super().__init__()
        self.table = nn.Embedding(sizes.vocab, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(
            _Block(sizes, dropout, attention_dropout) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.dropout(self.table(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.linear(self.norm(hidden), self.table.weight)
