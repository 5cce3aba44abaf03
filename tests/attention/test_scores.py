"""Scores: hand-worked values, identities between them, and gradients."""

import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from regard.attention.scores import Additive, Dot, General, ScaledDot
from tests.helpers import close

QUERY = torch.tensor([[1.0, 2.0]])
KEYS = torch.tensor([[3.0, 4.0], [-1.0, 0.5]])


def test_dot_is_the_inner_product():
    assert Dot()(QUERY, KEYS).tolist() == [[11.0, 0.0]]


def test_scaled_dot_divides_by_the_root_of_the_size():
    close(ScaledDot()(QUERY, KEYS), torch.tensor([[11.0, 0.0]]) / math.sqrt(2))


def test_scaled_dot_keeps_unit_variance_where_dot_grows_with_the_size():
    query, keys = torch.randn(300, 256), torch.randn(300, 256)
    assert 0.9 < ScaledDot()(query, keys).var() < 1.1
    assert 0.9 * 256 < Dot()(query, keys).var() < 1.1 * 256


def test_general_maps_both_then_takes_the_inner_product():
    score = General(2, 3, hidden=2)
    with torch.no_grad():
        score.query_weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        score.key_weight.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    keys = torch.tensor([[1.0, 2.0, 3.0]])
    assert score(QUERY, keys).item() == 1 * 4 + 4 * 2


def test_general_is_luongs_single_matrix():
    score = General(3, 5, hidden=2)
    query, keys = torch.randn(7, 3), torch.randn(11, 5)
    matrix = score.query_weight.t() @ score.key_weight
    close(score(query, keys), query @ matrix @ keys.t())


def test_additive_is_v_dot_tanh_by_hand():
    score = Additive(1, 1, hidden=2)
    with torch.no_grad():
        score.query_weight.copy_(torch.tensor([[1.0], [0.0]]))
        score.key_weight.copy_(torch.tensor([[1.0], [2.0]]))
        score.v.copy_(torch.tensor([1.0, -3.0]))
    expected = math.tanh(0.5 + 0.25) - 3 * math.tanh(2 * 0.25)
    close(score(torch.tensor([[0.5]]), torch.tensor([[0.25]])), torch.tensor([[expected]]))


def test_additive_is_a_one_hidden_layer_network_on_key_and_query():
    score = Additive(3, 5, hidden=7).double()
    layer = nn.Linear(8, 7, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.cat((score.key_weight, score.query_weight), 1))
    query, keys = torch.randn(2, 3).double(), torch.randn(11, 5).double()
    pairs = torch.cat((keys.expand(2, 11, 5), query[:, None].expand(2, 11, 3)), -1)
    close(score(query, keys), torch.tanh(layer(pairs)) @ score.v)


def test_parameters_have_the_documented_names_and_shapes():
    shapes = {name: tuple(p.shape) for name, p in Additive(3, 5, 7).named_parameters()}
    assert shapes == {"query_weight": (7, 3), "key_weight": (7, 5), "v": (7,)}
    shapes = {name: tuple(p.shape) for name, p in General(3, 5).named_parameters()}
    assert shapes == {"query_weight": (3, 3), "key_weight": (3, 5)}


@pytest.mark.parametrize("score", [Dot(), ScaledDot(), General(3, 3), Additive(3, 3, 5)])
def test_score_has_the_gradient_it_claims(score):
    query = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(score.double(), (query, keys))


@pytest.mark.usefixtures("unchecked")
def test_inner_products_refuse_unequal_sizes_and_name_who_takes_them():
    with pytest.raises(ValueError, match=r"ScaledDot.*query has 2 and keys have 3.*General and Additive"):
        ScaledDot()(torch.zeros(1, 2), torch.zeros(1, 3))


@pytest.mark.usefixtures("unchecked")
def test_mapped_scores_refuse_other_sizes():
    with pytest.raises(ValueError, match="query must have size 3, but has 4"):
        General(3, 5)(torch.zeros(1, 4), torch.zeros(1, 5))
    with pytest.raises(ValueError, match="keys must have size 5, but has 4"):
        Additive(3, 5, 2)(torch.zeros(1, 3), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="hidden of Additive must be at least 1, but is 0"):
        Additive(3, 5, 0)
