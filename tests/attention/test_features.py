"""Feature maps: values, non-negativity, and the error of random features against the softmax."""

import math

import pytest
import torch
from torch import nn

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Proportional
from regard.attention.masks import causal
from regard.attention.scores import FeatureMap, RandomFeatures, elu_plus_one, softmax
from tests.helpers import close


def test_elu_plus_one_equals_its_formula_and_stays_positive():
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    out = elu_plus_one(x)
    close(out, torch.tensor([math.exp(-1), 1.0, 3.0], dtype=torch.float64))
    close(
        torch.autograd.grad(out.sum(), x)[0],
        torch.tensor([math.exp(-1), 1.0, 1.0], dtype=torch.float64),
    )
    close(elu_plus_one(x), nn.functional.elu(x) + 1)
    assert (elu_plus_one(torch.tensor([-80.0, -20.0])) > 0).all()


@pytest.mark.parametrize("phi", [elu_plus_one, softmax, torch.relu])
def test_score_is_the_product_of_features(phi):
    query, keys = torch.randn(3, 5, 7).double(), torch.randn(3, 11, 7).double()
    scores = FeatureMap(phi)(query, keys)
    assert (scores >= 0).all()
    close(scores[2, 4, 10], phi(query[2, 4]) @ phi(keys[2, 10]))


def test_parameters_of_a_feature_module_get_gradients():
    score = FeatureMap(nn.Sequential(nn.Linear(7, 13), nn.Softplus()))
    out = attend(
        torch.randn(5, 7),
        (torch.randn(11, 7), torch.randn(11, 2)),
        score=score,
        choice=Proportional(),
    )
    out.square().sum().backward()
    assert len(list(score.parameters())) == 2
    assert all(
        weight.grad is not None and weight.grad.abs().max() > 0 for weight in score.parameters()
    )


@pytest.mark.usefixtures("no_shape_checks")
def test_features_refuse_negative_numbers_and_unequal_sizes():
    query, keys = torch.randn(5, 7), torch.randn(11, 7)
    with pytest.raises(ValueError, match="features must not be negative, got -"):
        FeatureMap(torch.tanh)(query, keys)
    for kernel in ("reference", "linear"):
        short = keys[:, :5], torch.randn(11, 2)
        with pytest.raises(ValueError, match="must have equal sizes, got 7 and 5"):
            attend(query, short, score=FeatureMap(), choice=Proportional(), kernel=kernel)
    with pytest.raises(ValueError, match="keys must have size 7, got 5"):
        RandomFeatures(7, 3)(query, keys[:, :5])
    with pytest.raises(TypeError, match="must not be float16"):
        RandomFeatures(7, 3)(query.half(), keys.half())
    with pytest.raises(ValueError, match="num_features must be at least 1, got 0"):
        RandomFeatures(7, 0)
    with pytest.raises(ValueError, match="seed must be at most 4294967295, got 4294967296"):
        RandomFeatures(7, 3, seed=2**32)


@pytest.mark.parametrize("dim", [64, 160, 320, 1024])
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_random_features_of_any_size_do_not_underflow(dim, scale):
    query, keys = (scale * torch.randn(1, n, dim, dtype=torch.float64) for n in (8, 64))
    values, options = torch.randn(1, 64, 4, dtype=torch.float64), {"choice": Proportional()}
    exact = attend(query, (keys, values), score=RandomFeatures(dim, 2 * dim).double(), **options)
    pair, score = (keys.float(), values.float()), RandomFeatures(dim, 2 * dim)
    out = attend(query.float(), pair, score=score, **options)
    assert (out - exact).abs().max() < 1e-4
    with pytest.raises(ValueError, match="keys of RandomFeatures must be smaller"):
        attend(query.float(), (20 * keys.float() / scale, pair[1]), score=score, **options)


def test_random_features_estimate_the_exponential_of_scaled_products():
    dim = 3
    query, keys = torch.randn(5, dim).double() / 2, torch.randn(7, dim).double() / 2
    scores = torch.stack(
        [RandomFeatures(dim, 20_000, seed=seed).double()(query, keys) for seed in range(5)]
    ).mean(0)
    # Determined up to a factor per query, which the first key fixes.
    exact = (query @ keys.T / math.sqrt(dim)).exp()
    ratio = (scores / scores[:, :1]) / (exact / exact[:, :1])
    torch.testing.assert_close(ratio, torch.ones(5, 7).double(), rtol=0, atol=0.02)


def test_error_decreases_with_the_number_of_random_features():
    query, keys = torch.randn(17, 11).double() / 2, torch.randn(13, 11).double() / 2
    exact = attention_weights(query, (keys, keys), mask=causal())

    def error(count: int) -> float:
        scores = [RandomFeatures(11, count, seed=seed).double() for seed in range(7)]
        estimates = [
            attention_weights(
                query, (keys, keys), score=score, choice=Proportional(), mask=causal()
            )
            for score in scores
        ]
        return float(torch.stack([(weights - exact).abs().mean() for weights in estimates]).mean())

    few, some, many = error(16), error(256), error(4096)
    assert some < few / 2.5  # a sixteenth of the variance is a fourth of the error
    assert many < some / 2.5
    assert many < 0.01


def test_orthogonal_directions_have_a_smaller_error_than_independent_ones():
    query, keys = torch.randn(17, 11).double() / 2, torch.randn(13, 11).double() / 2
    exact = attention_weights(query, (keys, keys))

    def error(*, orthogonal: bool) -> float:
        total = 0.0
        for seed in range(60):
            score = RandomFeatures(11, 11, seed=seed).double()
            if not orthogonal:
                score.directions.normal_(generator=torch.Generator().manual_seed(seed))
            total += float(
                (attention_weights(query, (keys, keys), score=score, choice=Proportional()) - exact)
                .square()
                .mean()
            )
        return total

    assert error(orthogonal=True) < 0.95 * error(orthogonal=False)


def test_directions_are_orthogonal_in_blocks_with_norms_of_normal_vectors():
    directions = RandomFeatures(7, 1999).directions.double()
    block = directions[7:14]
    close((block @ block.T).fill_diagonal_(0).float(), torch.zeros(7, 7))
    assert directions.shape == (1999, 7)
    assert abs(float(directions.square().sum(-1).mean()) - 7) < 0.4
    assert abs(float(directions.square().sum(-1).var()) - 14) < 2.5
    assert (
        directions.mean(0).abs() < 0.1
    ).all()  # no sign is preferred: a triangular factor has positive ones


def test_directions_are_a_function_of_the_seed_and_saved():
    first, same, other = (RandomFeatures(7, 11, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.directions, same.directions)
    assert not torch.equal(first.directions, other.directions)
    assert list(first.parameters()) == []
    other.load_state_dict(first.state_dict())
    assert torch.equal(first.directions, other.directions)


@pytest.mark.parametrize("dim", [3, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_features_stay_in_range(dim, dtype):
    score = RandomFeatures(dim, 64)
    nearest = score.directions[:1] * dim**0.25  # of all keys the one with the largest feature
    for x in (torch.randn(11, dim), torch.zeros(11, dim), nearest, 1e4 * torch.randn(11, dim)):
        features = score.map_query(x.to(dtype))
        assert features.dtype == dtype
        close(features.amax(-1).float(), torch.ones(len(x)))
    for x in (torch.randn(11, dim), torch.zeros(11, dim), nearest[: dim < 100]):
        features = score.map_keys(x.to(dtype))
        assert features.dtype == dtype
        assert features.isfinite().all()
        assert (features.amax(-1) > 0).all()
    for x in (1e4 * torch.randn(11, dim), nearest[: dim > 100]):
        if len(x):
            with pytest.raises(ValueError, match="keys of RandomFeatures must be smaller"):
                score.map_keys(x.to(dtype))
    bound = score.directions.square().sum(-1).amax() / 2
    shift = (60 - bound).clamp(min=0)
    close(score.map_keys(torch.zeros(1, dim)).log().amax(), shift)
