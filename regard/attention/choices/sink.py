"""Softmax with a sink, a score that no key has: all weights of a query may be small."""

from typing import final

import torch
from torch import Tensor, nn

from regard.attention.choices.base import Choice, Soft, SoftmaxForm


@final
class SinkSoft(Choice):
    """weight_j = exp(beta a_j) / (exp(beta a_sink) + sum_i exp(beta a_i)). (openai2025)

    The rest of the weight is that of a key whose value is zero, so that a head can read nothing.

    num_heads: number of heads, each with a learned sink, initially 0; None: 0, "softmax off by
               one", exp(a_j) / (1 + sum_i exp(a_i)). (miller2023)
    beta:      inverse temperature, as in Soft, but the same for all queries.
    Parameters: sink (num_heads, 1, 1), if learned.
    """

    def __init__(
        self, num_heads: int | None = None, *, beta: float | Tensor = 1.0, learn: bool = False
    ):
        super().__init__()
        self.soft = Soft(beta, learn=learn)
        self.sink = None if num_heads is None else nn.Parameter(torch.zeros(num_heads, 1, 1))

    def form(self) -> SoftmaxForm:
        return SoftmaxForm(self.soft.beta, 0.0 if self.sink is None else self.sink)

    def extra_repr(self) -> str:
        return "sink=0" if self.sink is None else f"num_heads={len(self.sink)}"
