"""A softmax with one more key, to which a query that finds nothing can give its weight.

    weight_j = exp(a_j) / (exp(sink_h) + sum_i exp(a_i))      sink_h learned, for each head

A choice that defines its `form` is computed by the fused kernels, as `Soft` is; one that defines
`weights` by the reference, which stores them. With sink_h = 0 this is the softmax "off by one".
"""

import torch
from torch import nn

from regard import Choice, MultiHead, SoftmaxForm, testing


class SinkSoftmax(Choice):
    """Softmax with a learned score of the sink for each head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def form(self) -> SoftmaxForm:
        return SoftmaxForm(sink=self.sink)


if __name__ == "__main__":
    testing.check(MultiHead(16, 2, choice=SinkSoftmax(2)))
