"""Contract of all combinations of scores, masks and kernels."""

import itertools

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Soft
from regard.attention.masks import Mask, causal, dense, padding
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Dot, General, ScaledDot, Score
from tests.helpers import ADDITIVE_KERNELS, close

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 3, 2, 5, 7, 11, 13
LENGTHS = torch.tensor([7, 2, 4])

SCORES = {
    "dot": Dot(),
    "scaled": ScaledDot(),
    "general": General(DIM, DIM, hidden=3),
    "additive": Additive(DIM, DIM, hidden=17),
}
_HOLES = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.5
_HOLES[:, 0] = True
MASKS = {
    "none": None,
    "causal": causal(),
    "padding": padding(LENGTHS),
    "dense": dense(_HOLES),
    "and": causal() & padding(LENGTHS),
    "or": dense(_HOLES) | padding(LENGTHS),
}
INNER = ("reference", "products", "sdpa")
KERNELS = {"dot": INNER, "scaled": INNER, "general": INNER, "additive": ADDITIVE_KERNELS}
"""Kernels for these reads without a compiler; test_grid tries every kernel on every read."""
GRID = [
    pytest.param(score, mask, kernel, id=f"{score}-{mask}-{kernel}")
    for score, mask in itertools.product(SCORES, MASKS)
    for kernel in KERNELS[score]
]
grid = pytest.mark.parametrize(("score", "mask", "kernel"), GRID)


def make_tensors(
    score: str, mask: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Score, Mask | None]:
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=dtype, requires_grad=True)
    keys = torch.randn(BATCH, HEADS, KEYS, DIM, dtype=dtype, requires_grad=True)
    values = torch.randn(BATCH, HEADS, KEYS, VALUE_DIM, dtype=dtype, requires_grad=True)
    return query, keys, values, SCORES[score].to(dtype), MASKS[mask]


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * weighting).sum(), inputs)


@grid
def test_weights_sum_to_one_and_out_is_the_weighted_sum(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    weights = attention_weights(query, (keys, values), score=fn, mask=attention_mask, kernel=kernel)
    assert (weights >= 0).all()
    close(weights.sum(-1), torch.ones(BATCH, HEADS, QUERIES, dtype=torch.float64))
    close(
        attend(query, (keys, values), score=fn, mask=attention_mask, kernel=kernel),
        weights @ values,
    )


@grid
def test_masking_a_key_equals_removing_it(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    visible = [0, 1, 3, 4, 6]
    without = dense(torch.tensor([[j in visible for j in range(KEYS)]]))
    mask = _intersect(attention_mask, without)
    hidden = attend(query, (keys, values), score=fn, mask=mask, kernel=kernel)
    memory, narrow = (keys[..., visible, :], values[..., visible, :]), None
    if attention_mask is not None:
        narrow = dense(attention_mask.tensor(QUERIES, KEYS)[..., visible])
    removed = attend(query, memory, score=fn, mask=narrow, kernel=kernel)
    close(hidden, removed)
    for actual, expected in zip(
        gradients(hidden, keys, values), gradients(removed, keys, values), strict=True
    ):
        close(actual, expected)
        assert actual[..., [2, 5], :].abs().max() == 0


@grid
def test_fully_masked_rows_give_zeros_and_no_gradient(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    allowed[[1, 3]] = False
    masked = _intersect(attention_mask, dense(allowed))
    out = attend(query, (keys, values), score=fn, mask=masked, kernel=kernel)
    assert out[:, :, [1, 3]].abs().max() == 0
    weights = attention_weights(query, (keys, values), score=fn, mask=masked)
    assert weights[:, :, [1, 3]].abs().max() == 0
    grads = gradients(out, query, keys, values)
    assert not any(g.isnan().any() for g in grads)
    assert grads[0][:, :, [1, 3]].abs().max() == 0
    closed = dense(torch.zeros(1, 1, dtype=torch.bool))
    nothing = attend(query, (keys, values), score=fn, mask=closed, kernel=kernel)
    assert all(g.abs().max() == 0 for g in gradients(nothing, query, keys, values))


@grid
def test_bias_of_minus_infinity_is_a_mask(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    bias = torch.zeros(QUERIES, KEYS, dtype=torch.float64)
    bias[:, 2] = float("-inf")
    bias[4] = float("-inf")
    masked = _intersect(attention_mask, dense(bias == 0))
    for initial in (1.0, 0.0, 1.7):
        beta = torch.tensor(initial, dtype=torch.float64, requires_grad=True)
        options = {"score": fn, "kernel": kernel, "choice": Soft(beta)}
        with_bias = attend(query, (keys, values), mask=attention_mask, bias=bias, **options)
        with_mask = attend(query, (keys, values), mask=masked, **options)
        close(with_bias, with_mask)
        for actual, expected in zip(
            gradients(with_bias, query, keys, beta),
            gradients(with_mask, query, keys, beta),
            strict=True,
        ):
            close(actual, expected)


@pytest.mark.parametrize(
    ("score", "mask", "kernel"), [p for p in GRID if p.values[1] in ("none", "padding")]
)
def test_read_is_invariant_to_memory_order_and_equivariant_to_query_order(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    shuffled, order = torch.randperm(KEYS), torch.randperm(QUERIES)
    permuted = None
    if attention_mask is not None:
        permuted = dense(attention_mask.tensor(QUERIES, KEYS)[..., shuffled])
    out = attend(query, (keys, values), score=fn, mask=attention_mask, kernel=kernel)
    memory = (keys[..., shuffled, :], values[..., shuffled, :])
    close(
        attend(query[..., order, :], memory, score=fn, mask=permuted, kernel=kernel),
        out[..., order, :],
    )


@pytest.mark.parametrize(("score", "mask", "kernel"), [p for p in GRID if p.values[1] == "padding"])
def test_batched_equals_one_by_one(score, mask, kernel):
    query, keys, values, fn, attention_mask = make_tensors(score, mask)
    together = attend(query, (keys, values), score=fn, mask=attention_mask, kernel=kernel)
    for row, length in enumerate(LENGTHS.tolist()):
        memory = (keys[row, :, :length], values[row, :, :length])
        close(together[row], attend(query[row], memory, score=fn, kernel=kernel))


READS = [(score, kernel) for score in ("scaled", "additive") for kernel in KERNELS[score]]


@pytest.mark.parametrize(("score", "kernel"), [*READS, ("scaled", "auto"), ("additive", "auto")])
def test_causal_queries_one_at_a_time_equal_all_at_once(score, kernel):
    query, keys, values, fn, _ = make_tensors(score, "none")
    together = attend(query, (keys, values), score=fn, mask=causal(), kernel=kernel)
    for i in range(QUERIES):
        num_past = KEYS - QUERIES + i + 1
        past = Memory(keys, values).crop(num_past)
        out = attend(query[:, :, i : i + 1], past, score=fn, mask=causal(), kernel=kernel)
        close(out, together[:, :, i : i + 1])


def _intersect(mask: Mask | None, other: Mask) -> Mask:
    return other if mask is None else mask & other
