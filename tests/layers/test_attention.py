"""Attention layer of one head: C = Attn(X, X') and Attn(X, X) by formula, alone and stacked."""

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.masks import causal, padding
from regard.look.hooks import record_weights
from tests.helpers import close


def attn(layer: nn.Module, x: Tensor, x_prime: Tensor) -> Tensor:
    """Return C = Attn(X, X') column by column, from the three matrices alone."""
    w_q, w_k, w_v = layer.query.weight, layer.key.weight, layer.value.weight
    columns = []
    for x_j in x_prime:
        scores = torch.stack([(w_k @ x_i) @ (w_q @ x_j) for x_i in x])
        alpha = scores.exp() / scores.exp().sum()
        columns.append(sum(a * (w_v @ x_i) for a, x_i in zip(alpha, x, strict=True)))
    return torch.stack(columns)


def test_cross_attention_is_the_formula_with_three_matrices():
    layer = regard.Attention(5, 7, head_dim=4, head_value_dim=3).double()
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {"query.weight": (4, 5), "key.weight": (4, 7), "value.weight": (3, 7)}
    x_prime, x = torch.randn(2, 3, 5).double(), torch.randn(2, 11, 7).double()
    close(
        layer(x_prime, x),
        torch.stack([attn(layer, *pair) for pair in zip(x, x_prime, strict=True)]),
    )


def test_self_attention_is_the_formula():
    layer, x = regard.Attention(5).double(), torch.randn(1, 6, 5).double()
    close(layer(x)[0], attn(layer, x[0], x[0]))


def test_self_attention_and_dense_layers_stack():
    first = regard.Attention(5, head_dim=4, head_value_dim=3)
    second = regard.Attention(7, head_value_dim=2)
    dense = nn.Linear(3, 7).double(), nn.Linear(2, 6).double()
    x = torch.randn(1, 6, 5).double()
    out = torch.relu(dense[1](second.double()(torch.relu(dense[0](first.double()(x))))))
    states = x[0]
    for layer, part in ((first, dense[0]), (second, dense[1])):
        columns = attn(layer, states, states)
        states = torch.stack([torch.relu(part.weight @ c + part.bias) for c in columns])
    close(out[0], states)


def test_queries_keys_and_values_have_sizes_of_their_own():
    score = regard.Additive(4, 2, hidden=13)
    layer = regard.Attention(
        5, 7, value_dim=11, head_dim=4, head_key_dim=2, head_value_dim=3, score=score
    ).double()
    queries, keys, values = (
        torch.randn(1, n, size).double() for n, size in ((3, 5), (6, 7), (6, 11))
    )
    q = queries[0] @ layer.query.weight.t()
    k = keys[0] @ layer.key.weight.t()
    v = values[0] @ layer.value.weight.t()
    hidden = (q @ score.query_weight.t())[:, None] + (k @ score.key_weight.t())[None]
    close(
        layer(queries, layer.memory(keys, values=values))[0],
        (torch.tanh(hidden) @ score.v).softmax(-1) @ v,
    )
    with pytest.raises(
        ValueError, match="head_key_dim must be head_dim=4 with the score Dot, got 2"
    ):
        regard.Attention(5, head_dim=4, head_key_dim=2)


@pytest.mark.parametrize("kernel", ["auto", "reference", "sdpa"])
def test_masks_and_kernels_are_those_of_a_read(kernel):
    layer = regard.Attention(5, head_dim=4, kernel=kernel).double()
    x = torch.randn(2, 6, 5).double()
    out, lengths = layer(x, mask=causal(), memory_mask=padding([6, 3])), (6, 3)
    for row, length in enumerate(lengths):
        for i in range(6):
            close(out[row, i], attn(layer, x[row, : min(i + 1, length)], x[row, i : i + 1])[0])


def test_weights_are_recorded():
    layer, x = regard.Attention(5), torch.randn(1, 6, 5)
    with record_weights(layer) as maps:
        out = layer(x)
    (weights,) = maps["read"]
    close(weights[0, 0] @ (x[0] @ layer.value.weight.t()), out[0])
