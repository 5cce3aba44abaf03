"""Forgetting attention (Lin et al. 2025): bias_ij = sum of log sigmoid(w x_l + b), j < l <= i."""

import torch
from torch import Tensor, nn

from regard import Bias, MultiHead, Positions


class Forget(Bias):
    """The last number of key l, of those that the memory holds, is the logarithm of its gate."""

    def materialize(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        until_query = keys[..., -1] @ (positions.key <= positions.query).to(keys.dtype).mT
        until_key = keys[..., -1] @ (positions.key <= positions.key[:, None]).to(keys.dtype).mT
        return until_query[..., :, None] - until_key[..., None, :]


class ForgettingAttention(MultiHead):
    def __init__(self, width, num_heads, **options):
        super().__init__(width, num_heads, **options)
        self.gate = nn.Linear(width, self.key_heads)

    def create_bias(self):
        return Forget()

    def project(self, query, source, values=None):
        queries, keys, own_values = super().project(query, source, values)
        if source is not None:
            keys = torch.cat((keys, nn.functional.logsigmoid(self.gate(source)).mT[..., None]), -1)
        return queries, keys, own_values

    def pairs(self, memory):
        return memory.with_pairs(memory.keys[..., :-1], memory.values)
