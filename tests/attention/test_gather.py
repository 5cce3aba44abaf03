"""The gather kernel: values, gradients and random numbers of the formula, in bounded memory."""

import itertools

import pytest
import torch
from torch import Tensor

from regard.attention.biases import ShawBias
from regard.attention.choices import Choice, Hard, Soft, Sparse, TopK, reinforce
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.kernels import gather, reference
from regard.attention.masks import causal, dense, padding
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Dot, General, ScaledDot, Score
from regard.attention.scores.base import compare_all
from tests.helpers import close

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 6, 5, 13, 3, 7
D = torch.float64

SCORES = {
    "scaled": ScaledDot(),
    "additive": Additive(DIM, DIM, 11),
    "heads": Additive(DIM, DIM, 5, num_heads=HEADS),
}
CHOICES = {
    "straight-through": Hard(temperature=0.5),
    "gumbel": Hard("gumbel", temperature=2.0),
    "top-1": TopK(1),
    "top-3": TopK(3, beta=torch.rand(QUERIES, 1, generator=torch.Generator().manual_seed(1)) + 0.5),
    "top-all": TopK(20),
}
MASKS = {
    "none": None,
    "causal": causal(),
    "closed": dense(torch.tensor([[True], [False], [True], [True], [False]])) & padding([4, 0]),
}
SHAPES = {
    "heads": ((BATCH, HEADS), (BATCH, HEADS), (BATCH, HEADS)),
    "grouped": ((BATCH, HEADS), (BATCH, 2), (BATCH, 2)),
    "shared": ((BATCH, HEADS), (1, 1), (BATCH, 1)),
    "wide-values": ((1, HEADS), (1, HEADS), (BATCH, HEADS)),
}
tiled = pytest.mark.parametrize("tile", [1 << 20, 2 * BATCH * HEADS * KEYS, 1])


def make_inputs(
    choice: Choice, *, score: str = "scaled", mask: str = "none", shape: str = "heads", bias=None
) -> AttentionInputs:
    sizes = (QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM)
    query, keys, values = (
        torch.randn(*leading, *size, dtype=D, requires_grad=True)
        for leading, size in zip(SHAPES[shape], sizes, strict=True)
    )
    options = {"score": SCORES[score].double(), "choice": choice, "mask": MASKS[mask], "bias": bias}
    return prepare_inputs(query, (keys, values), **options)


def run_both(read: AttentionInputs, *more: Tensor) -> list[list[Tensor]]:
    """Return output and gradients of the formula and of the kernel, with the same seed."""
    leaves = [read.query, read.keys, read.values, *read.score.parameters(), *more]
    results = []
    for kernel in (reference, gather):
        torch.manual_seed(11)
        out = kernel.read(read)
        weighting = torch.linspace(-1, 1, out.numel(), dtype=D).view(out.shape)
        options = {"retain_graph": True, "materialize_grads": True}
        grads = torch.autograd.grad(out, leaves, weighting, **options)
        results.append([out, *grads])
    return results


def check_equal(read: AttentionInputs, *more: Tensor) -> None:
    for expected, actual in zip(*run_both(read, *more), strict=True):
        close(actual, expected)


@tiled
@pytest.mark.parametrize(("choice", "score"), list(itertools.product(CHOICES, SCORES)))
def test_gather_equals_the_formula(monkeypatch, choice, score, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    for mask in MASKS:
        check_equal(make_inputs(CHOICES[choice], score=score, mask=mask))


@tiled
@pytest.mark.parametrize("shape", SHAPES)
def test_gather_supports_grouped_heads_and_broadcasting(monkeypatch, shape, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    for choice, score in itertools.product(CHOICES, SCORES):
        # Heads with parameters of their own map the keys for every head of queries.
        if score != "heads" or shape in ("heads", "wide-values"):
            mask = "causal" if shape == "grouped" else "none"
            check_equal(make_inputs(CHOICES[choice], score=score, mask=mask, shape=shape))


@tiled
def test_gather_adds_biases(monkeypatch, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    bias = torch.randn(HEADS, QUERIES, KEYS, dtype=D)[None]
    bias[..., 2] = float("-inf")
    bias[:, :, 3] = float("-inf")
    bias.requires_grad_()
    shaw = ShawBias(DIM, max_distance=3).double()
    for choice in CHOICES.values():
        check_equal(make_inputs(choice, mask="causal", bias=bias), bias)
        check_equal(make_inputs(choice, bias=shaw), *shaw.parameters())


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("leading", [(), (BATCH,)])
def test_gather_supports_any_leading_axes(choice, leading):
    query, keys, values = (
        torch.randn(*leading, n, d, dtype=D) for n, d in ((QUERIES, 3), (KEYS, 3), (KEYS, 7))
    )
    read = prepare_inputs(query, (keys, values), score=Dot(), choice=choice, mask=None, bias=None)
    torch.manual_seed(2)
    expected = reference.read(read)
    torch.manual_seed(2)
    close(gather.read(read), expected)
    empty = read._replace(keys=keys[..., :0, :], values=values[..., :0, :])
    close(gather.read(empty), torch.zeros(*leading, QUERIES, 7))


@tiled
def test_reinforce_records_every_tile_once(monkeypatch, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    choice = Hard("reinforce", temperature=0.7)
    read = make_inputs(choice, mask="closed")
    results = []
    for kernel in (reference, gather):
        torch.manual_seed(4)
        with reinforce(choice) as sampled:
            out = kernel.read(read)
        (log_prob,) = sampled.log_probs
        cost = out.square().sum((1, 2, 3))
        loss = (cost + sampled.surrogate(cost, baseline=1.5)).sum()
        grads = torch.autograd.grad(loss, (read.query, read.keys, read.values))
        results.append([out, log_prob, *grads])
        assert len(sampled.log_probs) == 1
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


@pytest.mark.parametrize("choice", [Hard(), TopK(3)])
def test_a_single_selected_value_is_read_bit_for_bit(choice):
    values = torch.randn(KEYS, VALUE_DIM)
    values[5] = float("inf")  # of a key that nobody reads
    keys = torch.randn(KEYS, DIM)
    scores = torch.zeros(QUERIES, KEYS).masked_fill(torch.arange(KEYS) == 5, float("-inf"))
    query, options = torch.randn(QUERIES, DIM), {"score": Dot(), "choice": choice}
    read = prepare_inputs(query, (keys, values), mask=None, bias=scores, **options)
    out = gather.read(read)
    assert out.isfinite().all()
    if isinstance(choice, Hard):
        assert torch.equal(out, values[(read.query @ keys.t() + scores).argmax(-1)])


@pytest.mark.parametrize("choice", [Hard(), TopK(2), Hard("gumbel")], ids=["hard", "top", "gumbel"])
def test_a_long_read_saves_little_for_backward(monkeypatch, choice):
    """Autograd saves only the inputs of a read of many tiles, no tensor of the scores' size."""
    monkeypatch.setattr(gather, "TILE", 1 << 12)
    query, keys, values = (torch.randn(n, 16, requires_grad=True) for n in (512, 1024, 1024))
    read = prepare_inputs(query, (keys, values), score=Dot(), choice=choice, mask=None, bias=None)
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        gather.read(read)
    assert sum(saved.values()) <= 512 * 1024 * 4 / 8


def test_tiles_are_as_large_as_allowed(monkeypatch):
    """Scores, hidden layers of additive scores and gathered values all count."""
    sizes: list[int] = []

    def record_size(score: Score, query: Tensor, keys: Tensor):
        wide = query.shape[-1] if isinstance(score, Additive) else 1
        sizes.append(query.shape[-2] * keys.shape[-2] * wide)
        return compare_all(score, query, keys)

    monkeypatch.setattr(reference, "compare_all", record_size)
    monkeypatch.setattr(gather, "TILE", 1000)
    for choice, score in itertools.product((Hard(), TopK(4)), (Dot(), Additive(5, 5, 17))):
        sizes.clear()
        query, keys, values = (torch.randn(n, d) for n, d in ((101, 5), (23, 5), (23, 11)))
        read = prepare_inputs(
            query, (keys, values), score=score, choice=choice, mask=None, bias=None
        )
        gather.read(read)
        assert 400 < max(sizes) <= 1000
        assert len(sizes) > 1


def test_choices_that_weight_every_key_are_unsupported():
    for choice in (Soft(), Sparse(2)):
        read = make_inputs(choice)
        reason = f"choice {type(choice).__name__} may weight every key"
        assert gather.unsupported_reason(read) == reason
    for choice in CHOICES.values():
        assert gather.unsupported_reason(make_inputs(choice)) is None


@pytest.mark.parametrize("choice", [Hard(), Hard("gumbel"), TopK(3)], ids=["hard", "gumbel", "top"])
@pytest.mark.parametrize("shape", ["heads", "wide-values", "grouped"])
def test_second_derivatives_are_those_of_the_formula(choice, shape):
    read = make_inputs(choice, shape=shape)
    leaves, results = (read.query, read.keys, read.values), []
    for kernel in (reference, gather):
        torch.manual_seed(3)
        first = torch.autograd.grad(kernel.read(read).sin().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


def test_gather_reads_a_mapped_memory():
    score = General(DIM, DIM)
    memory = Memory(torch.randn(KEYS, DIM), torch.randn(KEYS, VALUE_DIM)).map_keys_with(score)
    read = prepare_inputs(
        torch.randn(QUERIES, DIM), memory, score=score, choice=TopK(2), mask=None, bias=None
    )
    close(gather.read(read), reference.read(read))
