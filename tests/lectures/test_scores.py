"""Claims of the lectures on scores and choices: why they are scaled, and why attention is soft."""

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Hard, Soft
from regard.attention.scores import Dot, ScaledDot, Score
from tests.helpers import close

SIZES = (4, 64, 1024)


def scores_of(score: Score, size: int) -> Tensor:
    """Return the scores of 300 independent queries and 16 keys each, of mean 0 and variance 1."""
    query, keys = (
        torch.randn(300, 1, size, dtype=torch.float64),
        torch.randn(300, 16, size, dtype=torch.float64),
    )
    return score(query, keys).squeeze(1)


def jacobian_norm(score: Score, size: int) -> float:
    """Return the mean norm of the derivatives of 16 weights with respect to their scores."""
    scores = scores_of(score, size)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda a: Soft()(a[None])[0]))(scores)
    weights = Soft()(scores)
    close(jacobians, torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2))
    return jacobians.norm(dim=(-2, -1)).mean().item()


def test_variance_of_inner_products_is_the_size_and_scaled_it_is_one():
    for size in SIZES:
        assert scores_of(Dot(), size).var().item() == pytest.approx(size, rel=0.1)
        assert scores_of(ScaledDot(), size).var().item() == pytest.approx(1, rel=0.1)


def test_gradient_of_the_softmax_vanishes_with_the_size_unless_scaled():
    unscaled, scaled = (
        [jacobian_norm(score, size) for size in SIZES] for score in (Dot(), ScaledDot())
    )
    assert unscaled[0] > unscaled[1] > unscaled[2] > 0
    assert unscaled[0] > 4 * unscaled[2]
    assert scaled == pytest.approx([scaled[0]] * 3, rel=0.1)


def test_argmax_is_piecewise_constant_and_softmax_is_not():
    keys, values = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    query = torch.randn(1, 5, dtype=torch.float64)

    def derivative(choice) -> Tensor:
        steps = 1e-6 * torch.eye(5, dtype=torch.float64)
        sides = [
            torch.stack([attend(query + s, (keys, values), choice=choice)[0] for s in (h, -h)])
            for h in steps
        ]
        return torch.stack([(above - below) / 2e-6 for above, below in sides])

    assert not derivative(Hard().eval()).any()
    assert derivative(Soft()).abs().min() > 1e-4
    # without an estimator, no gradient reaches the query
    query.requires_grad_()
    out = attend(query, (keys, values.requires_grad_()), choice=Hard("reinforce").eval())
    grad, of_values = torch.autograd.grad(out.sum(), (query, values), allow_unused=True)
    assert grad is None or not grad.any()
    close(
        of_values.sum(-1),
        3 * attention_weights(query, (keys, values), choice=Hard().eval())[0].detach(),
    )
