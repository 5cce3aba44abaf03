"""Scores: values by hand, identities between them, and gradients."""

import math

import pytest
import torch
from torch import nn

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Soft
from regard.attention.masks import causal, padding
from regard.attention.memory import Memory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Concat,
    Cosine,
    Dot,
    General,
    InnerProduct,
    Location,
    ScaledDot,
    Score,
    SoftCap,
    TanhSum,
)
from tests.helpers import close

QUERY = torch.tensor([[1.0, 2.0]])
KEYS = torch.tensor([[3.0, 4.0], [-1.0, 0.5]])


def test_dot_is_the_inner_product():
    assert Dot()(QUERY, KEYS).tolist() == [[11.0, 0.0]]


@pytest.mark.usefixtures("no_shape_checks")
def test_inner_products_need_equal_sizes():
    with pytest.raises((ValueError, RuntimeError), match=r"4.*6|6.*4"):
        Dot()(torch.randn(3, 4), torch.randn(5, 6))


def test_scaled_dot_divides_by_the_root_of_the_size():
    close(ScaledDot()(QUERY, KEYS), torch.tensor([[11.0, 0.0]]) / math.sqrt(2))


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


def test_normed_additive_is_a_gain_times_a_direction_and_has_a_bias():
    score, plain = Additive(3, 5, 7, normed=True).double(), Additive(3, 5, 7).double()
    query, keys = torch.randn(2, 3).double(), torch.randn(11, 5).double()
    with torch.no_grad():
        score.gain.fill_(2.0)
        score.bias.normal_()
        plain.v.copy_(2 * score.v / score.v.norm())
    hidden = (
        (query @ score.query_weight.t())[:, None] + (keys @ score.key_weight.t())[None] + score.bias
    )
    close(score(query, keys), torch.tanh(hidden) @ plain.v)
    before = score(query, keys)
    with torch.no_grad():
        score.v.mul_(3.0)
    close(score(query, keys), before)


def test_normed_additive_starts_with_a_vector_of_length_one_over_the_root_of_its_size():
    form = Additive(3, 5, 16, normed=True).form(16)
    close(form.v.norm(), torch.tensor(0.25))


def test_concat_is_additive_with_its_matrix_split():
    concat, additive = Concat(3, 5, 7).double(), Additive(3, 5, 7).double()
    with torch.no_grad():
        additive.query_weight.copy_(concat.weight[:, :3])
        additive.key_weight.copy_(concat.weight[:, 3:])
        additive.v.copy_(concat.v)
    query, keys = torch.randn(2, 3).double(), torch.randn(11, 5).double()
    assert torch.equal(concat(query, keys), additive(query, keys))
    pairs = torch.cat((query[:, None].expand(2, 11, 3), keys.expand(2, 11, 5)), -1)
    close(concat(query, keys), torch.tanh(pairs @ concat.weight.t()) @ concat.v)


def test_bare_additive_is_additive_after_its_maps():
    bare, additive = BareAdditive(7).double(), Additive(3, 5, 7).double()
    bare.v = additive.v
    query, keys = torch.randn(2, 3).double(), torch.randn(11, 5).double()
    close(
        bare(query @ additive.query_weight.t(), keys @ additive.key_weight.t()),
        additive(query, keys),
    )


def test_cosine_is_the_angle_by_hand():
    query, keys = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0], [-6.0, -8.0], [4.0, -3.0]])
    close(Cosine()(query, keys), torch.tensor([[0.96, -1.0, 0.0]]))


def test_cosine_is_independent_of_norms_of_any_magnitude():
    query, keys = torch.randn(3, 5), torch.randn(7, 5)
    close(Cosine()(query * 1e30, keys * 1e-30), Cosine()(query, keys))


def test_cosine_of_a_zero_vector_is_zero_with_zero_gradient():
    query = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    keys = torch.tensor([[0.0, 0.0], [3.0, -1.0]], requires_grad=True)
    scores = Cosine()(query, keys)
    assert scores.tolist()[0] == [0.0, 0.0]
    assert scores[1, 0] == 0
    scores.sum().backward()
    assert query.grad[0].eq(0).all()
    assert keys.grad[0].eq(0).all()
    assert query.grad.isfinite().all()


def test_cosine_with_beta_is_content_addressing_of_neural_turing_machines():
    query = torch.randn(2, 3).double()
    keys = torch.randn(5, 3).double()
    values = torch.randn(5, 7).double()
    similarity = nn.functional.cosine_similarity(query[:, None], keys[None], -1)
    expected = (4.0 * similarity).softmax(-1) @ values
    for kernel in ("reference", "sdpa"):
        close(
            attend(query, (keys, values), score=Cosine(), choice=Soft(4.0), kernel=kernel), expected
        )


def test_location_scores_positions_by_hand():
    score = Location(2, 3)
    with torch.no_grad():
        score.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, -1.0]]))
    assert score(QUERY, KEYS).tolist() == [[1.0, 2.0]]
    assert score(QUERY, torch.zeros(3, 11)).tolist() == [[1.0, 2.0, 3.0]]


def test_location_scores_every_row_and_respects_masks():
    score, lengths = Location(2, 9).double(), torch.tensor([5, 2])
    query, keys, values = (torch.randn(2, n, d).double() for n, d in ((3, 2), (5, 7), (5, 1)))
    out = attend(query, (keys, values), score=score, mask=padding(lengths))
    for row, length in enumerate(lengths.tolist()):
        weights = (query[row] @ score.weight[:length].t()).softmax(-1)
        close(out[row], weights @ values[row, :length])


def test_soft_cap_bounds_scores_by_hand():
    scores = SoftCap(Dot(), 2.0)(QUERY, KEYS)
    close(scores, torch.tensor([[2 * math.tanh(5.5), 0.0]]))
    assert (scores <= 2).all()


def test_large_soft_cap_changes_nothing():
    query, keys = torch.randn(2, 3).double(), torch.randn(5, 3).double()
    for score in (ScaledDot(), General(3, 3).double(), Additive(3, 3, 5).double()):
        close(SoftCap(score, 1e8)(query, keys), score(query, keys))


def test_soft_cap_maps_keys_as_the_inner_score_does():
    score = SoftCap(General(3, 5).double(), 1.5)
    query, keys = torch.randn(2, 3).double(), torch.randn(11, 5).double()
    memory = Memory(keys, keys).map_keys_with(score)
    close(memory.keys, keys @ score.score.key_weight.t())
    close(attention_weights(query, memory, score=score), score(query, keys).softmax(-1))


@pytest.mark.parametrize(
    "score", [Dot(), ScaledDot(), General(3, 5, 2), Cosine(), SoftCap(ScaledDot(), 0.7)]
)
def test_form_of_an_inner_product_equals_compare(score):
    query, keys = torch.randn(2, 2), torch.randn(5, 2)
    scale, cap = score.form(2)
    expected = scale * query @ keys.t()
    close(score.compare(query, keys), expected if cap is None else cap * torch.tanh(expected / cap))


@pytest.mark.parametrize(
    "score", [Additive(3, 5, 2), Additive(3, 5, 2, normed=True), Concat(3, 5, 2), BareAdditive(2)]
)
def test_form_of_an_additive_score_equals_compare(score):
    query, keys, form = torch.randn(3, 2), torch.randn(5, 2), score.form(2)
    assert isinstance(form, TanhSum)
    close(score.compare(query, keys), torch.tanh(query[:, None] + keys[None]) @ form.v)


def test_other_scores_have_no_form():
    assert Location(3, 5).form(5) is None
    assert SoftCap(Additive(3, 3, 2), 1.0).form(2) is None
    assert SoftCap(SoftCap(Dot(), 1.0), 1.0).form(2) is None
    assert SoftCap(Dot(), 3.0).form(2) == InnerProduct(1.0, cap=3.0)


def test_parameters_have_the_documented_names_and_shapes():
    def shapes_of(score: Score) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in score.named_parameters()}

    assert shapes_of(Additive(3, 5, 7)) == {"query_weight": (7, 3), "key_weight": (7, 5), "v": (7,)}
    assert shapes_of(General(3, 5)) == {"query_weight": (3, 3), "key_weight": (3, 5)}
    assert shapes_of(Concat(3, 5, 7)) == {"weight": (7, 8), "v": (7,)}
    assert shapes_of(Location(3, 5)) == {"weight": (5, 3)}
    assert shapes_of(Additive(3, 5, 7, num_heads=6, key_heads=2, normed=True)) == {
        "query_weight": (6, 7, 3),
        "key_weight": (2, 7, 5),
        "v": (6, 7),
        "gain": (6, 1),
        "bias": (6, 7),
    }


def test_cosine_has_the_gradient_of_finite_differences():
    query = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Cosine(), (query, keys))


def single_head(score: Score, single: Score, head: int, num_heads: int) -> Score:
    """Copy one head of a score with heads into a score without."""
    state = {name: p[head * len(p) // num_heads] for name, p in score.state_dict().items()}
    single.load_state_dict(state)
    return single


PER_HEAD = {
    "general": lambda **heads: General(3, 5, 2, **heads),
    "additive": lambda **heads: Additive(3, 5, 7, **heads),
    "normed": lambda **heads: Additive(3, 5, 7, normed=True, **heads),
    "concat": lambda **heads: Concat(3, 5, 7, **heads),
    "location": lambda **heads: Location(3, 11, **heads),
    "capped": lambda **heads: SoftCap(Additive(3, 5, 7, **heads), 0.2),
}
every_per_head = pytest.mark.parametrize("make", PER_HEAD.values(), ids=PER_HEAD)


@every_per_head
@pytest.mark.parametrize("key_heads", [6, 1])
def test_score_of_many_heads_equals_single_scores(make, key_heads):
    score = make(num_heads=6).double()
    query, keys = torch.randn(2, 6, 4, 3).double(), torch.randn(2, key_heads, 11, 5).double()
    values = torch.randn(2, key_heads, 11, 2).double()
    assert score.num_heads == 6
    out = attend(query, (keys, values), score=score, mask=causal())
    for head in range(6):
        single, at = single_head(score, make().double(), head, 6), head if key_heads == 6 else 0
        expected = attend(query[:, head], (keys[:, at], values[:, at]), score=single, mask=causal())
        close(out[:, head], expected)


@pytest.mark.usefixtures("no_shape_checks")
def test_mapped_scores_refuse_other_sizes():
    with pytest.raises(ValueError, match="query must have size 3, got 4"):
        General(3, 5)(torch.zeros(1, 4), torch.zeros(1, 5))
    for kind in (Additive, Concat):
        with pytest.raises(ValueError, match="keys must have size 5, got 4"):
            kind(3, 5, 2)(torch.zeros(1, 3), torch.zeros(1, 4))


@pytest.mark.usefixtures("no_shape_checks")
def test_scores_per_head_refuse_other_numbers_of_heads():
    general, bare = General(3, 3, num_heads=4), BareAdditive(3, num_heads=4)
    with pytest.raises(ValueError, match=r"keys must be \(..., 4 heads or 1, key, 3\)"):
        general(torch.zeros(4, 5, 3), torch.zeros(2, 5, 3))
    for shape in ((3, 5, 3), (5, 3)):
        with pytest.raises(ValueError, match=r"query must be \(..., 4 heads or 1, query, 3\)"):
            general(torch.zeros(shape), torch.zeros(4, 5, 3))
    with pytest.raises(ValueError, match=r"query must be \(..., 4 heads, query, dim\)"):
        bare(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3))


def test_scores_refuse_invalid_numbers_of_heads():
    with pytest.raises(ValueError, match="key_heads must divide num_heads=6, got 4"):
        General(3, 5, num_heads=6, key_heads=4)
    with pytest.raises(ValueError, match="key_heads must divide num_heads=None, got 2"):
        Additive(3, 5, 2, key_heads=2)


def test_location_refuses_more_than_max_keys():
    with pytest.raises(
        ValueError, match="the number of keys must be at most max_keys=4 for Location, got 5"
    ):
        Location(2, 4)(torch.zeros(1, 2), torch.zeros(5, 2))


@pytest.mark.usefixtures("no_shape_checks")
def test_soft_cap_refuses_invalid_caps_and_scores():
    for cap in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"cap must be positive and finite, got {cap}"):
            SoftCap(Dot(), cap)
    with pytest.raises(
        TypeError, match=r"score of SoftCap must be an object of class Score, got Linear"
    ):
        SoftCap(nn.Linear(2, 2), 1.0)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-39, 1e-30, 1.0, 1e30, 3e38])
def test_cosine_has_finite_gradients_for_norms_of_any_magnitude(size):
    query = (torch.tensor([[0.6, -0.8]]) * size).requires_grad_()
    keys = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], requires_grad=True)
    scores = Cosine()(query, keys)
    has_direction = size >= torch.finfo(torch.float32).tiny
    expected = torch.tensor([[0.6, -0.8, -0.2 / math.sqrt(2)]])
    close(scores, expected if has_direction else torch.zeros(1, 3))
    of_query, of_keys = torch.autograd.grad(scores.sum(), [query, keys])
    assert of_query.isfinite().all()
    assert of_keys.isfinite().all()
    if not has_direction:
        assert not of_query.any()
        assert not of_keys.any()
    elif size <= 1:
        alone = torch.tensor([[0.6, -0.8]], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(Cosine()(alone, keys.double()).sum(), alone)
        torch.testing.assert_close(of_query.double() * size, slope, rtol=1e-4, atol=1e-5)
