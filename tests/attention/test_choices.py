"""Contract of all choices, and their limits."""

from functools import partial

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.choices import Choice, Hard, Sigmoid, SinkSoft, Soft, Sparse, TopK
from regard.attention.choices.hard import GRADIENTS
from regard.attention.choices.top_k import best_keys
from tests.helpers import close

BATCH, QUERIES, KEYS = 3, 5, 7

CHOICES = {
    "soft": Soft(),
    "soft-beta": Soft(2.5),
    "straight-through": Hard(),
    "gumbel": Hard("gumbel", temperature=0.7),
    "reinforce": Hard("reinforce", temperature=1.5),
    "reinforce-eval": Hard("reinforce").eval(),
    "sparse-1": Sparse(1),
    "sparse-1.3": Sparse(1.3),
    "sparse-1.5": Sparse(1.5),
    "sparse-2": Sparse(2),
    "sparse-3": Sparse(3.0),
    "top-1": TopK(1),
    "top-3": TopK(3),
    "top-all": TopK(99, beta=0.5),
}
PARTIAL = {"sink": SinkSoft(BATCH), "sink-zero": SinkSoft(beta=2.0), "sigmoid": Sigmoid(beta=0.7)}
"""Choices whose weights need not sum to one."""
CHOICES |= PARTIAL
whole = pytest.mark.parametrize(
    "choice", [pytest.param(c, id=name) for name, c in CHOICES.items() if name not in PARTIAL]
)
every = pytest.mark.parametrize("choice", [pytest.param(c, id=name) for name, c in CHOICES.items()])
fixed = pytest.mark.parametrize(
    "choice", [pytest.param(c, id=name) for name, c in CHOICES.items() if not c.is_random]
)


def make_scores(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(BATCH, QUERIES, KEYS, dtype=dtype)


def make_allowed() -> torch.Tensor:
    """Return a mask in which row 1 is fully masked and row 2 has one key."""
    allowed = torch.rand(BATCH, QUERIES, KEYS) > 0.4
    allowed[..., 4] = True
    allowed[:, 1] = False
    allowed[:, 2] = torch.arange(KEYS) == 5
    return allowed


def weights_and_gradient(choice: Choice, scores: torch.Tensor, allowed: torch.Tensor | None):
    """Return the weights, and the gradient of a weighted sum of them; zeros where there is none."""
    scores = scores.detach().requires_grad_(
        not (choice.is_random and getattr(choice, "gradient", "") == "reinforce")
    )
    weights = choice(scores, allowed)
    if not weights.requires_grad:
        return weights, torch.zeros_like(scores)
    weighting = torch.linspace(-1, 1, KEYS, dtype=scores.dtype)[: scores.shape[-1]].square()
    return weights, torch.autograd.grad((weights * weighting).sum(), scores)[0]


@whole
@pytest.mark.parametrize("masked", [False, True])
def test_weights_sum_to_one_over_allowed_keys(choice, masked):
    allowed = make_allowed() if masked else None
    weights = choice(make_scores(), allowed)
    assert (weights >= 0).all()
    open_rows = torch.ones(BATCH, QUERIES, dtype=torch.bool) if allowed is None else allowed.any(-1)
    close(weights.sum(-1), open_rows.double())
    if allowed is not None:
        assert weights[~allowed].abs().max() == 0


@every
def test_fully_masked_rows_have_zero_weights_and_no_gradient(choice):
    weights, gradient = weights_and_gradient(choice, make_scores(), make_allowed())
    assert weights[:, 1].abs().max() == 0
    assert not gradient.isnan().any()
    assert gradient[:, 1].abs().max() == 0
    weights, gradient = weights_and_gradient(
        choice, make_scores(), torch.zeros(1, 1, dtype=torch.bool)
    )
    assert weights.abs().max() == gradient.abs().max() == 0


@every
def test_mask_broadcasts(choice):
    row = torch.tensor([[True, False, True, True, False, True, True]])
    torch.manual_seed(5)
    narrow = choice(scores := make_scores(), row)
    torch.manual_seed(5)
    make_scores()
    close(narrow, choice(scores, row.expand(BATCH, QUERIES, KEYS)))


@fixed
def test_masking_a_key_equals_removing_it(choice):
    unmasked = [0, 1, 2, 4, 6]
    scores, allowed = make_scores(), torch.tensor([j in unmasked for j in range(KEYS)])
    weighting = torch.randn(KEYS, dtype=torch.float64)
    hidden = scores.clone().requires_grad_()
    removed = scores[..., unmasked].clone().requires_grad_()
    masked_weights, removed_weights = choice(hidden, allowed[None]), choice(removed, None)
    close(masked_weights[..., unmasked], removed_weights)
    if removed_weights.requires_grad:
        (masked_weights * weighting).sum().backward()
        (removed_weights * weighting[unmasked]).sum().backward()
        close(hidden.grad[..., unmasked], removed.grad)
        assert hidden.grad[..., [3, 5]].abs().max() == 0


@pytest.mark.parametrize("masked", [False, True])
def test_sinks_and_sigmoids_follow_their_formulas(masked):
    scores, sink = make_scores(), torch.tensor([0.3, -2.0, 1.5]).view(BATCH, 1, 1).double()
    allowed = make_allowed() if masked else torch.ones_like(scores, dtype=torch.bool)
    powers = (2 * scores).exp() * allowed
    choice = SinkSoft(BATCH, beta=2.0).double()
    choice.sink.data = sink
    for part, last in ((choice, (2 * sink).exp()), (SinkSoft(beta=2.0), 1.0)):
        expected = powers / (powers.sum(-1, keepdim=True) + last)
        close(part(scores, allowed if masked else None), expected)
    count = allowed.sum(-1, keepdim=True)
    expected = allowed / (1 + count * (-2 * scores).exp())
    close(Sigmoid(beta=2.0)(scores, allowed if masked else None), expected)
    with pytest.raises(ValueError, match="sink must broadcast to the rows"):
        choice.check((2, 5), QUERIES)


@fixed
def test_weights_are_invariant_to_a_constant_added_to_the_scores(choice):
    if choice in PARTIAL.values():
        assert (choice(make_scores() + 9.25, None) > choice(make_scores(), None)).any()
        return
    scores, allowed = make_scores(), make_allowed()
    close(choice(scores + 3.25, allowed), choice(scores, allowed))


@fixed
def test_weights_are_equivariant_to_permutations_and_monotonic(choice):
    scores, order = make_scores(), torch.randperm(KEYS)
    weights = choice(scores, None)
    close(choice(scores[..., order], None), weights[..., order])
    ranked = weights.gather(-1, scores.argsort(-1))
    assert (ranked.diff(dim=-1) >= -1e-12).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_have_the_dtype_of_the_scores(choice, dtype):
    weights, gradient = weights_and_gradient(choice, make_scores(dtype), make_allowed())
    assert weights.dtype == gradient.dtype == dtype
    if choice not in PARTIAL.values():
        assert (weights.float().sum(-1)[:, [0, 2, 3, 4]] - 1).abs().max() <= 2e-2
    assert not gradient.isnan().any()


@fixed
def test_half_precision_is_computed_in_float32(choice):
    scores = make_scores(torch.bfloat16)
    exact = choice(scores.float(), None)
    actual = choice(scores, None)
    assert (actual.float() - exact).abs().max() <= 2**-8


@every
def test_empty_scores_have_empty_weights(choice):
    assert choice(torch.zeros(BATCH, 3, 0), None).shape == (BATCH, 3, 0)
    assert choice(torch.zeros(BATCH, 0, 3), None).shape == (BATCH, 0, 3)


def test_is_random_is_true_for_random_choices_only():
    assert {name for name, choice in CHOICES.items() if choice.is_random} == {"gumbel", "reinforce"}
    assert not any(Hard(gradient).eval().is_random for gradient in GRADIENTS)


@pytest.mark.parametrize(
    "limit", [Soft(1e5), Sparse(1.0, beta=1e5), Sparse(2.0, beta=1e5), Sparse(200.0), TopK(1)]
)
def test_every_choice_tends_to_hard(limit):
    scores, allowed = make_scores(), make_allowed()
    close(limit(scores, allowed), Hard()(scores, allowed))


def test_top_k_of_all_keys_and_sparse_of_alpha_one_are_soft():
    scores, allowed = make_scores(), make_allowed()
    for beta in (1.0, 1.75):
        soft = Soft(beta)(scores, allowed)
        close(TopK(KEYS, beta=beta)(scores, allowed), soft)
        close(Sparse(1, beta=beta)(scores, allowed), soft)


MAKERS = {
    "soft": Soft,
    "sparse": partial(Sparse, 1.5),
    "sparse-1": partial(Sparse, 1),
    "top": partial(TopK, 3),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_beta_multiplies_scores(make):
    scores, allowed = make_scores(), make_allowed()
    close(make(beta=2.5)(scores, allowed), make()(scores * 2.5, allowed))


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_beta_may_differ_between_queries_in_tiles_too(make, learn):
    scores, allowed = make_scores(), make_allowed()
    choice = make(beta=torch.rand(QUERIES, 1) + 0.5, learn=learn)
    (beta,) = (module.beta for module in choice.modules() if isinstance(module, Soft))
    untiled = choice(scores, allowed)
    close(untiled, make()(scores * beta, allowed))
    tile = choice.tile(2, 4)(scores[:, 2:4], allowed[:, 2:4])
    close(tile, untiled[:, 2:4])
    if learn:
        tile[..., 5].sum().backward()
        (log_beta,) = choice.parameters()
        assert log_beta.grad[3].abs() > 0
        assert log_beta.grad[[0, 1, 4]].abs().max() == 0


@pytest.mark.parametrize("num_keys", [1, 5, 64, 255, 256, 300, 1025])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("kinds", [2, 40])
def test_best_keys_are_the_first_of_equal_scores(num_keys, k, kinds):
    scores = torch.randint(0, kinds, (2, 13, num_keys)).float()
    scores[:, 3] = float("-inf")
    scores[:, 5:] = torch.where(torch.rand(num_keys) < 0.9, float("-inf"), scores[:, 5:])
    actual = best_keys(scores, k)
    assert actual.shape == (2, 13, min(k, num_keys))
    ranked = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    assert torch.equal(actual.sort(-1).values, ranked.sort(-1).values)


def test_best_keys_rank_nan_first():
    scores = torch.tensor([[1.0, torch.nan, 3.0, 2.0, torch.nan]])
    assert set(best_keys(scores, 3)[0].tolist()) >= {1, 4}
    invalid = torch.full((2, 600), 0.5)
    invalid[0, 130], invalid[1, 7:] = torch.nan, torch.nan
    for k in (1, 2, 100):
        index = best_keys(invalid, k)
        assert index.max() < 600
        assert invalid.gather(-1, index).isnan().any(-1).all()


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "products"])
def test_sinks_are_not_rounded_to_half_precision(kernel):
    choice, bias = SinkSoft(1), torch.tensor([[0.3]], dtype=torch.bfloat16)
    torch.nn.init.constant_(choice.sink, 4.015)  # 4.0 in bfloat16: another weight by 1.5 %
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    out = attend(0 * one, (one, one), choice=choice, bias=bias, kernel=kernel)
    expected = torch.sigmoid(bias.float() - 4.015)
    assert out.item() == pytest.approx(expected.item(), rel=0.005)
