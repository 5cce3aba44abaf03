"""Hard attention: values, and the three gradient estimators."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Hard, ReinforceSamples, Soft, hard, reinforce
from regard.attention.masks import dense
from regard.attention.memory import Memory
from regard.attention.scores import Dot
from regard.layers.read import Read
from tests.helpers import close

D = torch.float64


@pytest.fixture
def uniform(monkeypatch):
    """Replace random numbers by those that the test appends, (..., query, number) per draw."""
    given: list[Tensor] = []

    def next_number(scores: Tensor, num_numbers: int, dtype: torch.dtype) -> Tensor:
        return given.pop(0).to(dtype).expand(*scores.shape[:-1], num_numbers)

    monkeypatch.setattr(hard, "_uniform", next_number)
    return given


def test_hard_reads_the_value_of_the_best_key_by_hand():
    query, keys = torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0], [3.0], [-2.0]])
    values = torch.tensor([[10.0, 1.0], [20.0, 2.0], [30.0, 3.0]])
    close(
        attend(query, (keys, values), score=Dot(), choice=Hard()),
        torch.tensor([[20.0, 2.0], [30.0, 3.0]]),
    )


def test_hard_attention_is_a_dictionary_lookup():
    words = torch.tensor([3, 1, 4, 0])
    out = attend(torch.eye(5)[words], (torch.eye(5), torch.arange(5.0)[:, None]), choice=Hard())
    close(out.squeeze(-1), words.float())


@pytest.mark.parametrize("gradient", ["straight-through", "gumbel", "reinforce"])
def test_weights_are_exactly_one_hot_and_the_first_of_equals(gradient):
    scores = torch.randint(0, 2, (7, 300), dtype=torch.float32).requires_grad_()
    weights = Hard(gradient, temperature=3.0).eval()(scores)
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(weights.sum(-1), torch.ones(7))
    assert weights.argmax(-1).tolist() == [row.index(1.0) for row in scores.tolist()]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_straight_through_has_the_gradient_of_softmax(temperature):
    scores = torch.randn(5, 7, dtype=D, requires_grad=True)
    weighting = torch.randn(5, 7, dtype=D)
    weights = Hard(temperature=temperature)(scores)
    actual = torch.autograd.grad((weights * weighting).sum(), scores)
    close(
        actual[0],
        torch.autograd.grad(((scores / temperature).softmax(-1) * weighting).sum(), scores)[0],
    )


def test_gumbel_reads_the_best_noisy_key_with_the_gradient_of_its_softmax(uniform):
    scores = torch.randn(5, 7, dtype=D, requires_grad=True)
    numbers, weighting = torch.rand(5, 7, dtype=D), torch.randn(5, 7, dtype=D)
    uniform.append(numbers)
    noisy = scores - torch.log(-torch.log(numbers))
    weights = Hard("gumbel", temperature=0.7)(scores)
    assert torch.equal(weights.argmax(-1), noisy.argmax(-1))
    assert not torch.equal(weights.argmax(-1), scores.argmax(-1))
    actual = torch.autograd.grad((weights * weighting).sum(), scores)
    close(actual[0], torch.autograd.grad(((noisy / 0.7).softmax(-1) * weighting).sum(), scores)[0])


@pytest.mark.parametrize("gradient", ["gumbel", "reinforce"])
def test_keys_are_sampled_with_softmax_probabilities_and_never_when_masked(gradient):
    num_draws = 20_000
    temperature = 1.0 if gradient == "gumbel" else 2.0
    scores = torch.tensor([0.5, 9.0, -1.0, 2.0, 1.5])
    allowed = torch.tensor([[True, False, True, True, True]])
    choice = Hard(gradient, temperature=temperature)
    frequency = choice(scores.expand(num_draws, 5), allowed).mean(0)
    expected = (scores / temperature).masked_fill(~allowed[0], float("-inf")).softmax(-1)
    assert frequency[1] == 0
    bound = 4 * (expected * (1 - expected) / num_draws).sqrt()
    assert ((frequency - expected).abs() <= bound).all()


@pytest.mark.parametrize("number", [0.0, 1e-30, 0.5, 1 - 2**-24])
def test_no_random_number_selects_a_masked_key(uniform, number):
    scores = torch.randn(11, 13, dtype=torch.float32)
    allowed = torch.rand(11, 13) > 0.6
    allowed[:, 0] = allowed[:, -1] = False
    allowed[:, 5] = True
    for gradient in ("gumbel", "reinforce"):
        uniform.append(torch.tensor(number))
        with torch.no_grad():
            weights = Hard(gradient)(scores, allowed)
        assert torch.equal(weights.sum(-1), torch.ones(11))
        assert weights[~allowed].max() == 0


@pytest.mark.parametrize("gradient", ["gumbel", "reinforce"])
def test_samples_repeat_by_seed_and_stop_in_evaluation(gradient):
    scores, choice = torch.randn(50, 7), Hard(gradient)
    torch.manual_seed(3)
    first = choice(scores)
    other = choice(scores)
    torch.manual_seed(3)
    assert torch.equal(choice(scores), first)
    assert not torch.equal(other, first)
    before = torch.get_rng_state()
    close(choice.eval()(scores), Hard()(scores))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("gradient", ["straight-through", "gumbel"])
def test_values_that_were_read_get_the_gradient(gradient):
    query, keys = torch.randn(5, 3, dtype=D), torch.randn(7, 3, dtype=D)
    values = torch.randn(7, 2, dtype=D, requires_grad=True)
    torch.manual_seed(2)
    out = attend(query, (keys, values), choice=Hard(gradient), kernel="reference")
    read = (out.detach().unsqueeze(1) == values.detach()).all(-1)
    weighting = torch.randn(5, 2, dtype=D)
    (gradient_of_values,) = torch.autograd.grad((out * weighting).sum(), values)
    close(gradient_of_values, read.double().t() @ weighting)


def test_nan_scores_give_nan_weights():
    scores = torch.randn(3, 5)
    scores[1, 2] = float("nan")
    for choice in (Hard(), Hard("gumbel"), Hard("reinforce")):
        weights = choice(scores)
        assert weights[1].isnan().any()
        assert not weights[[0, 2]].isnan().any()


def enumerate_selections(uniform: list[Tensor], scores: Tensor, temperature: float):
    """Enumerate all selections of one key per row: uniform numbers that give it, probability."""
    probabilities = (scores / temperature).softmax(-1)
    ends = probabilities.detach().cumsum(-1)
    middles = ends - probabilities.detach() / 2
    for keys in itertools.product(range(scores.shape[-1]), repeat=scores.shape[0]):
        index = torch.tensor(keys)[:, None]
        uniform.append(middles.gather(-1, index))
        yield keys, probabilities.gather(-1, index).prod()


@pytest.mark.parametrize("baseline", [0.0, 5.0])
@pytest.mark.parametrize(
    "mask", [None, dense(torch.tensor([[True, True, False, True], [False, True, True, True]]))]
)
def test_reinforce_is_unbiased(uniform, mask, baseline):
    """Averaged over all selections, the estimator is the gradient of the mean cost."""
    tensors = [torch.randn(n, d, dtype=D, requires_grad=True) for n, d in ((2, 3), (4, 3), (4, 2))]
    query, keys, values = tensors
    choice = Hard("reinforce", temperature=0.8)
    masked = torch.zeros(2, 4, dtype=D)
    if mask is not None:
        masked = masked.masked_fill(~mask.tensor(2, 4), float("-inf"))
    estimate, expected = [torch.zeros_like(x) for x in tensors], torch.zeros((), dtype=D)
    for selection, probability in enumerate_selections(
        uniform, query @ keys.t() / math.sqrt(3) + masked, 0.8
    ):
        if probability == 0:
            uniform.pop()
            continue
        with reinforce(choice) as samples:
            out = attend(query, (keys, values), choice=choice, mask=mask)
        close(out, values[list(selection)])
        cost = (out.sin() * out.flip(0).cos()).sum()
        loss = cost + samples.surrogate(cost, baseline=baseline)
        assert loss == cost
        grads = torch.autograd.grad(loss, tensors, retain_graph=True)
        estimate = [e + probability.detach() * g for e, g in zip(estimate, grads, strict=True)]
        expected = expected + probability * cost
    for actual, reference in zip(estimate, torch.autograd.grad(expected, tensors), strict=True):
        close(actual, reference)


class TwoReads(nn.Module):
    """Two consecutive reads with heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Read(choice=Hard("reinforce"))
        self.second = Read(choice=Hard("reinforce", temperature=2.0))

    def forward(self, query: Tensor, items: Tensor) -> Tensor:
        memory = Memory(items, items)
        return self.second(self.first(query, memory), memory)


def test_surrogate_sums_all_samples_of_a_row():
    query, items = torch.randn(3, 2, 5, 7, requires_grad=True), torch.randn(3, 2, 11, 7)
    model = TwoReads()
    with reinforce(model) as samples:
        out = model(query, items)
    assert [tuple(x.shape) for x in samples.log_probs] == [(3, 2, 5), (3, 2, 5)]
    assert all((x < 0).all() for x in samples.log_probs)
    cost = out.square().mean((1, 2, 3))
    baseline = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    actual = samples.surrogate(cost, baseline=baseline)
    assert torch.equal(actual, torch.zeros(3))
    (gradient,) = torch.autograd.grad(actual.mean(), query, retain_graph=True)
    log_prob = sum(x.sum((1, 2)) for x in samples.log_probs)
    close(
        gradient,
        torch.autograd.grad(
            ((cost - baseline).detach() * log_prob).mean(), query, retain_graph=True
        )[0],
    )
    (each,) = torch.autograd.grad(
        samples.surrogate(torch.ones(3, 2, 5)).sum(), query, retain_graph=True
    )
    close(each, torch.autograd.grad(log_prob.sum(), query)[0])


def test_fully_masked_rows_add_nothing_to_the_surrogate():
    scores = torch.randn(2, 3, dtype=D, requires_grad=True)
    choice = Hard("reinforce")
    with reinforce(choice) as samples:
        choice(scores, torch.tensor([[False] * 3, [True] * 3]))
    assert samples.log_probs[0][0] == 0
    (gradient,) = torch.autograd.grad(samples.surrogate(torch.ones(2, dtype=D)).sum(), scores)
    assert gradient[0].abs().max() == 0
    assert gradient[1].abs().max() > 0


def test_nothing_is_collected_outside_the_context():
    scores, choice = torch.randn(3, 5, requires_grad=True), Hard("reinforce")
    with reinforce(choice) as outer:
        choice(scores)
        with reinforce(nn.Sequential(choice)) as inner:
            choice(scores)
        with torch.no_grad():
            choice(scores)
    assert len(outer.log_probs) == len(inner.log_probs) == 1
    with pytest.raises(ValueError, match=r"must run inside `with reinforce\(model\)`"):
        choice(scores)
    with pytest.raises(ValueError, match="must run inside"):
        attend(scores, (torch.randn(7, 5), torch.randn(7, 2)), choice=choice)
    choice(scores.detach())
    choice.eval()(scores)
    assert len(outer.log_probs) == 1


def test_invalid_arguments_are_refused():
    with pytest.raises(
        ValueError,
        match="gradient must be one of none, straight-through, gumbel, reinforce, got 'ste'",
    ):
        Hard("ste")
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=f"temperature must be positive and finite, got {temperature}"
        ):
            Hard(temperature=temperature)
    with pytest.raises(ValueError, match=r"temperature must be 1 with gradient='none', got 2\.0"):
        Hard("none", temperature=2.0)
    with (
        pytest.raises(ValueError, match=r"must contain a Hard\(gradient='reinforce'\), got none"),
        reinforce(nn.Sequential(Hard(), Soft())),
    ):
        pass
    with pytest.raises(ValueError, match="nothing was sampled"):
        ReinforceSamples().surrogate(torch.zeros(3))
    choice = Hard("reinforce")
    with reinforce(choice) as samples:
        choice(torch.randn(3, 5))
    with pytest.raises(
        ValueError,
        match=r"cost must have the first axes of every read, got \(5,\) for a read \(3,\)",
    ):
        samples.surrogate(torch.zeros(5))
