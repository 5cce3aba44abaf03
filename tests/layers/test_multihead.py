"""Multi-head attention is its single heads, side by side, projected back."""

import pytest
import torch
from torch import nn

from regard.attention.attend import attend
from regard.attention.masks import causal, padding
from regard.attention.scores import Additive
from regard.layers.multihead import MultiHead
from tests.helpers import close


def odd_sizes(**changes) -> MultiHead:
    sizes = {"num_heads": 3, "source_dim": 7, "head_dim": 2, "head_value_dim": 4, "output_dim": 13} | changes
    return MultiHead(5, **sizes).double()


def test_multihead_is_single_heads_concatenated_and_projected():
    many = odd_sizes()
    asks, source = torch.randn(2, 3, 5).double(), torch.randn(2, 11, 7).double()
    heads = []
    for h in range(3):
        keys_rows, values_rows = slice(2 * h, 2 * h + 2), slice(4 * h, 4 * h + 4)
        query = asks @ many.query.weight[keys_rows].t() + many.query.bias[keys_rows]
        keys = source @ many.key.weight[keys_rows].t() + many.key.bias[keys_rows]
        values = source @ many.value.weight[values_rows].t() + many.value.bias[values_rows]
        heads.append(attend(query, (keys, values), kernel="reference"))
    expected = torch.cat(heads, -1) @ many.output.weight.t() + many.output.bias
    close(many(asks, many.memory(source)), expected)


def test_multihead_equals_torchs():
    ours, theirs = MultiHead(15, num_heads=3).double(), nn.MultiheadAttention(15, 3, batch_first=True).double()
    with torch.no_grad():
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    items, lengths = torch.randn(2, 7, 15).double(), torch.tensor([7, 4])
    absent = torch.arange(7) >= lengths[:, None]
    future = ~torch.ones(7, 7, dtype=torch.bool).tril()
    expected = theirs(items, items, items, key_padding_mask=absent, attn_mask=future, need_weights=False)[0]
    close(ours(items, ours.memory(items, padding(lengths)), mask=causal()), expected)


def test_heads_of_additive_scores_work_too():
    heads = odd_sizes(score=Additive(2, 2, hidden=3).double())
    asks, source = torch.randn(2, 3, 5).double(), torch.randn(2, 11, 7).double()
    assert heads(asks, heads.memory(source)).shape == (2, 3, 13)


def test_width_need_not_be_a_multiple_of_heads():
    assert MultiHead(5, num_heads=3).query.weight.shape == (6, 5)


def test_growing_memory_equals_all_at_once():
    heads = odd_sizes(source_dim=5)
    items = torch.randn(2, 6, 5).double()
    together = heads(items, heads.memory(items), mask=causal())
    memory = heads.memory(items[:, :1])
    for i in range(1, 6):
        memory = heads.extend(memory, items[:, i : i + 1])
        close(heads(items[:, i : i + 1], memory, mask=causal())[:, 0], together[:, i])


def test_multihead_refuses_no_heads():
    with pytest.raises(ValueError, match="num_heads must be at least 1, but is 0"):
        MultiHead(5, num_heads=0)
