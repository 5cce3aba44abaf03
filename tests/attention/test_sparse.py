"""Sparse choices: entmax against its definition, and top-k."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.choices import Soft, Sparse, TopK, entmax
from tests.helpers import close

D = torch.float64
ALPHAS = [1.1, 1.5, 1.7, 2.0, 2.5, 4.0]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)
rows = st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=9)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=D)


def test_sparsemax_by_hand():
    close(entmax(tensor(1.0, 0.8, 0.1), alpha=2), tensor(0.6, 0.4, 0.0))
    close(entmax(tensor(0.5, 0.25, 0.0), alpha=2), tensor(7 / 12, 4 / 12, 1 / 12))
    close(entmax(tensor(3.0, 1.5, -8.0), alpha=2), tensor(1.0, 0.0, 0.0))


def test_entmax15_by_hand():
    # Two keys that differ by d: shares s^2 and (s - d / 2)^2, which sum to one.
    d = 0.4
    s = (d / 2 + math.sqrt(2 - d * d / 4)) / 2
    close(entmax(tensor(d, 0.0), alpha=1.5), tensor(s * s, (s - d / 2) ** 2))
    close(
        entmax(tensor(2.0, 0.0), alpha=1.5), tensor(1.0, 0.0)
    )  # from a difference of 2 on, one key takes all


def test_alpha_three_by_hand():
    # Shares are (2 a_j - tau)^(1/2): 0.6 and 0.4 have squares that differ by 0.2, so scores by 0.1.
    close(entmax(tensor(5.1, 5.0), alpha=3), tensor(0.6, 0.4))
    close(entmax(tensor(5.0, 5.0, 4.0), alpha=3.0), tensor(0.5, 0.5, 0.0))


@every_alpha
@settings(max_examples=30)
@given(scores=rows)
def test_weights_satisfy_the_optimality_conditions(alpha, scores):
    """Karush-Kuhn-Tucker conditions: a_j - p_j^(alpha - 1) / (alpha - 1) is one number where p_j >
    0, and no less than a_j elsewhere; shares are >= 0 and sum to one."""
    a = tensor(*scores)
    p = entmax(a, alpha=alpha)
    assert (p >= 0).all()
    assert abs(p.sum() - 1) <= 1e-12
    slack = a - p.pow(alpha - 1) / (alpha - 1)
    level = slack[p > 0]
    assert level.max() - level.min() <= 1e-11
    assert (slack <= level.max() + 1e-11).all()


@settings(max_examples=30)
@given(scores=rows, alpha=st.one_of(st.just(1.0), st.floats(1 + 1e-3, 5.0)))
def test_weights_have_the_largest_objective(scores, alpha):
    # Between 1 and 1.001 the entropy by this formula has no digits left.
    a, others = tensor(*scores), torch.rand(20, len(scores), dtype=D).pow(3) + 1e-9

    def objective(p: Tensor) -> Tensor:
        if alpha == 1:
            return (p * a).sum(-1) - torch.xlogy(p, p).sum(-1)
        return (p * a).sum(-1) + (p - p.pow(alpha)).sum(-1) / (alpha * (alpha - 1))

    assert (
        objective(others / others.sum(-1, keepdim=True))
        <= objective(Sparse(alpha)(a[None])[0]) + 1e-10
    ).all()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_sorting_equals_bisection(alpha):
    scores = torch.randn(50, 17, dtype=D) * torch.logspace(-2, 2, 50, dtype=D)[:, None]
    near = math.nextafter(alpha, 3)
    close(entmax(scores, alpha=alpha), entmax(scores, alpha=near))


@pytest.mark.parametrize("alpha", [1.5, 1.7, 2.0, 3.0])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_scores_of_any_magnitude_are_correct(alpha, size, dtype):
    scores = torch.randn(13, 300, dtype=dtype) * size
    scores[0] = size
    shares = entmax(scores, alpha=alpha)
    close(shares.sum(-1), torch.ones(13, dtype=dtype))
    close(shares[0], torch.full((300,), 1 / 300, dtype=dtype))
    if dtype == torch.float32:
        assert (shares - entmax(scores.double(), alpha=alpha)).abs().max() <= 2e-3


def test_larger_alpha_selects_fewer_keys_and_alpha_one_is_softmax():
    scores = torch.randn(31, 40, dtype=D)
    support_sizes = [
        (entmax(scores, alpha=alpha) > 0).sum(-1) for alpha in (1.05, 1.2, 1.5, 2.0, 3.0, 6.0)
    ]
    assert all(
        (larger >= smaller).all() and (larger > smaller).any()
        for larger, smaller in itertools.pairwise(support_sizes)
    )
    assert (entmax(scores, alpha=1 + 1e-5) - scores.softmax(-1)).abs().max() < 1e-4
    close(Sparse(1)(scores), scores.softmax(-1))


@every_alpha
def test_gradients_are_correct(alpha):
    scores = (0.5 * torch.randn(3, 5, dtype=D)).requires_grad_()
    allowed = torch.tensor([[True, True, False, True, True], [False] * 5, [True] * 5])
    choice = Sparse(alpha)
    assert torch.autograd.gradcheck(lambda a: choice(a, allowed), scores, eps=1e-7)
    assert torch.autograd.gradgradcheck(choice, scores[:1], eps=1e-7)


def test_gradient_at_the_edge_of_the_support_is_finite():
    """For alpha > 2 the slope of a weight near zero is nearly infinite: others are unaffected."""
    scores = torch.tensor(
        [[0.0, -0.1, -0.5 + 1e-7], [0.0, -1.0, -40.0], [1.0, 1.0, 1.0]], requires_grad=True
    )
    for alpha in (2.5, 3.0, 30.0):
        shares = Sparse(alpha)(scores)
        (gradient,) = torch.autograd.grad((shares * torch.tensor([1.0, 2.0, 5.0])).sum(), scores)
        assert gradient.isfinite().all()
        assert gradient.sum(-1).abs().max() <= 1e-3 * gradient.abs().max()


def test_entmax_gives_masked_keys_zero():
    scores = torch.randn(5, 7, dtype=D)
    scores[:, [1, 4]] = -math.inf
    for alpha in ALPHAS:
        shares = entmax(scores, alpha=alpha)
        assert shares[:, [1, 4]].abs().max() == 0
        close(shares[:, [0, 2, 3, 5, 6]], entmax(scores[:, [0, 2, 3, 5, 6]], alpha=alpha))
    single = torch.full((2, 7), -math.inf, dtype=D)
    single[:, 3] = torch.tensor([0.3, -5.0], dtype=D)
    for alpha in ALPHAS:
        assert torch.equal(entmax(single, alpha=alpha), torch.eye(7, dtype=D)[[3, 3]])


def test_top_k_by_hand():
    share = math.e / (1 + math.e)
    close(TopK(2)(tensor(1.0, 3.0, 0.0, 2.0)[None]), tensor(0.0, share, 0.0, 1 - share)[None])
    close(TopK(2)(tensor(1.0, 1.0, 0.0, 1.0)[None]), tensor(0.5, 0.5, 0.0, 0.0)[None])
    hidden = torch.tensor([[True, False, True, False]])
    close(
        TopK(3)(tensor(1.0, 3.0, 0.0, 2.0)[None], hidden), tensor(share, 0.0, 1 - share, 0.0)[None]
    )


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_selects_exactly_k_of_equal_scores(k):
    scores = torch.randint(0, 3, (11, 300), dtype=torch.bfloat16)
    weights = TopK(k)(scores)
    assert torch.equal((weights > 0).sum(-1), torch.full((11,), k))
    allowed = torch.rand(11, 300) < 0.01
    allowed[:, 7] = True
    assert torch.equal((TopK(k)(scores, allowed) > 0).sum(-1), allowed.sum(-1).clamp(max=k))


def test_top_k_equals_soft_on_the_selected_keys_with_its_gradient():
    scores, weighting = torch.randn(5, 17, dtype=D, requires_grad=True), torch.randn(17, dtype=D)
    selected = scores >= scores.sort(-1).values[:, -3:-2]
    weights, expected = TopK(3, beta=1.7)(scores), Soft(1.7)(scores, selected)
    close(weights, expected)
    (actual,) = torch.autograd.grad((weights * weighting).sum(), scores)
    close(actual, torch.autograd.grad((expected * weighting).sum(), scores)[0])
    assert actual[~selected].abs().max() == 0
    assert torch.autograd.gradcheck(TopK(3), (scores,))


@pytest.mark.usefixtures("no_shape_checks")
def test_invalid_arguments_are_refused():
    for alpha in (0.99, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"alpha must be at least 1 and finite, got {alpha}"):
            Sparse(alpha)
    with pytest.raises(ValueError, match="alpha must be at least 1"):
        entmax(torch.zeros(3), alpha=0.5)
    for k in (0, -2):
        with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
            TopK(k)
    for make in (Sparse, lambda beta: TopK(2, beta=beta)):
        with pytest.raises(
            ValueError, match=r"beta must be at least 0 and finite, or a tensor, got -1\.0"
        ):
            make(beta=-1.0)
