"""Leading axes of all tensors of a read are aligned from the left, in every kernel.

The expected result is the formula in float64, on tensors expanded to all axes of the read.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Choice, Proportional, Soft, TopK
from regard.attention.kernels.selection import KERNELS
from regard.attention.masks import dense
from regard.attention.memory import LinearState, Memory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    FeatureMap,
    General,
    ScaledDot,
    Score,
    elu_plus_one,
)
from tests.helpers import ADDITIVE_KERNELS, close

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 3, 4, 5, 7, 6, 2
SHAPES = (QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM)

WHOLE = (BATCH, HEADS)
QUERY = [WHOLE, (BATCH, 1), (1, HEADS), (1, 1)]
MEMORY = [*QUERY, (BATCH,), (1,), (), (BATCH, 2), (1, 2)]
READS = [
    *((WHOLE, axes, axes) for axes in MEMORY),
    *((axes, WHOLE, WHOLE) for axes in QUERY),
    *(
        (WHOLE, keys, values)
        for keys, values in ((WHOLE, (BATCH, 2)), ((1, 2), (BATCH, 1)), ((BATCH,), (1, HEADS)))
    ),
    ((BATCH, 1), (1, HEADS), ()),
    ((1, 1), (1, 1), WHOLE),
    ((BATCH,), (BATCH,), (BATCH,)),
    ((BATCH,), (1,), ()),
    ((), (), ()),
    ((2, BATCH, HEADS), (2,), (2, BATCH, 2)),
]
"""Leading axes of queries, keys and values."""
RULES = [None, WHOLE, (BATCH,), (BATCH, 1), (1, HEADS), (1,), ()]
"""Leading axes of masks and biases."""

SCORES: dict[str, Callable[[], Score]] = {
    "scaled": ScaledDot,
    "general": lambda: General(DIM, DIM, hidden=3),
    "additive": lambda: Additive(DIM, DIM, hidden=3),
    "heads": lambda: BareAdditive(DIM, num_heads=HEADS),
    "features": FeatureMap,
}
CELLS = [
    *(("scaled", kernel) for kernel in ("reference", "products", "sdpa", "gather", "auto")),
    *(("general", kernel) for kernel in ("products", "sdpa", "auto")),
    *(
        (score, kernel)
        for score in ("additive", "heads")
        for kernel in (*ADDITIVE_KERNELS, "gather", "auto")
    ),
    *(("features", kernel) for kernel in ("reference", "linear", "auto")),
]


def expand_fully(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Insert axes of size 1 before the last two, then expand to the leading axes of the read."""
    tensor = tensor.reshape(
        *tensor.shape[:-2], *(1,) * (len(leading) + 2 - tensor.dim()), *tensor.shape[-2:]
    )
    if leading and tensor.shape[-3] not in (1, leading[-1]):
        tensor = tensor.repeat_interleave(leading[-1] // tensor.shape[-3], -3)
    return tensor.expand(*leading, *tensor.shape[-2:])


def formula(score: Score, choice: Choice, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the output and the weights from fully expanded tensors."""
    query, keys, values, allowed, bias = tensors
    if isinstance(score, FeatureMap):
        scores = elu_plus_one(query) @ elu_plus_one(keys).mT
        shares = (scores * allowed) / (scores * allowed).sum(-1, keepdim=True).clamp(min=1e-9)
        return shares @ values, shares
    if isinstance(score, ScaledDot):
        scores = query @ keys.mT / DIM**0.5
    elif isinstance(score, General):
        scores = (query @ score.query_weight.T) @ (keys @ score.key_weight.T).mT
    else:
        if isinstance(score, Additive):
            query, keys = query @ score.query_weight.T, keys @ score.key_weight.T
        assert isinstance(score, Additive | BareAdditive)
        v = score.v if score.v.dim() == 1 else score.v[:, None, None]
        scores = (torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3)) * v).sum(-1)
    scores = (scores + bias).masked_fill(~allowed, -torch.inf)
    if isinstance(choice, TopK):
        scores = scores.masked_fill(scores < scores.topk(choice.k).values[..., -1:], -torch.inf)
    shares = scores.masked_fill(~allowed.any(-1, keepdim=True), 0.0).softmax(-1) * allowed.any(
        -1, keepdim=True
    )
    return shares @ values, shares


def leading_of(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    most = max(map(len, shapes))
    return tuple(max((*shape, *(1,) * most)[axis] for shape in shapes) for axis in range(most))


def sample(axes: tuple[int, ...], *shape: int) -> Tensor:
    return torch.randn(*axes, *shape, dtype=torch.float64).requires_grad_()


def make_choice(name: str, kernel: str) -> Choice:
    return Proportional() if name == "features" else TopK(3) if kernel == "gather" else Soft()


@pytest.mark.parametrize(("name", "kernel"), CELLS)
def test_leading_axes_are_aligned_from_the_left(name, kernel):
    score, choice = SCORES[name]().double(), make_choice(name, kernel)
    for number, axes in enumerate(READS):
        leading = leading_of(*axes)
        if name == "heads" and leading[-1:] != (HEADS,):
            continue
        if kernel == "additive" and len(leading) > 2:
            continue
        pairs = zip(axes, SHAPES, strict=True)
        query, keys, values = (sample(own_axes, *shape) for own_axes, shape in pairs)
        fitting = [rule for rule in RULES if rule is None or fits(rule, leading)]
        mask_axes = fitting[number % len(fitting)]
        bias_axes = fitting[(number * 3 + 1) % len(fitting)]
        allowed = torch.rand(*(mask_axes or ()), QUERIES, KEYS) > 0.3
        allowed[..., 1, :] = False
        if kernel == "linear":
            allowed = allowed[..., :1, :]
        bias = None if name == "features" or bias_axes is None else sample(bias_axes, QUERIES, KEYS)
        mask = None if mask_axes is None else dense(allowed)
        options = {"score": score, "choice": choice, "mask": mask, "bias": bias}
        out = attend(query, (keys, values), kernel=kernel, **options)
        allowed_pairs = torch.ones(QUERIES, KEYS, dtype=torch.bool) if mask is None else allowed
        added = torch.zeros(QUERIES, KEYS, dtype=torch.float64) if bias is None else bias
        parts = query, keys, values, allowed_pairs, added
        expected, weights = formula(score, choice, *(expand_fully(x, leading) for x in parts))
        close(out, expected)
        close(attention_weights(query, (keys, values), **options), weights)
        inputs = [query, keys, values, *([] if bias is None else [bias]), *score.parameters()]
        weighting = torch.randn(out.shape, dtype=out.dtype)
        ours, theirs = (
            torch.autograd.grad(x, inputs, weighting, materialize_grads=True)
            for x in (out, expected)
        )
        for actual, reference in zip(ours, theirs, strict=True):
            close(actual, reference)


def fits(rule: tuple[int, ...], leading: tuple[int, ...]) -> bool:
    return len(rule) <= len(leading) and all(
        n in (1, m) for n, m in zip(rule, leading, strict=False)
    )


@pytest.mark.parametrize(("name", "kernel"), CELLS)
def test_expanded_and_transposed_tensors_read_as_contiguous_ones(name, kernel):
    score, choice = SCORES[name]().double(), make_choice(name, kernel)
    query = torch.randn(BATCH, 1, DIM, QUERIES, dtype=torch.float64).mT.expand(
        BATCH, HEADS, QUERIES, DIM
    )
    keys = torch.randn(1, 1, KEYS, DIM, dtype=torch.float64).expand(BATCH, HEADS, KEYS, DIM)
    values = torch.randn(BATCH, KEYS, HEADS, VALUE_DIM, dtype=torch.float64).transpose(1, 2)
    copies = [tensor.contiguous() for tensor in (query, keys, values)]
    out = attend(query, (keys, values), score=score, choice=choice, kernel=kernel)
    close(out, attend(copies[0], (copies[1], copies[2]), score=score, choice=choice, kernel=kernel))


def test_memories_are_aligned_as_pairs_are():
    query, keys, values = torch.randn(2, 3, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 6)
    pair = attend(query, (keys, values))
    close(attend(query, Memory(keys, values)), pair)
    score = ScaledDot()
    close(attend(query, Memory(keys, values).map_keys_with(score), score=score), pair)
    score = FeatureMap()
    state = LinearState.of(Memory(keys, values).map_keys_with(score))
    options = {"score": score, "choice": Proportional()}
    close(attend(query, state, **options), attend(query, (keys, values), **options))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("read", [attend, attention_weights])
def test_query_with_fewer_axes_than_its_memory_is_refused(read):
    query, keys, values = torch.randn(4, 3, 8), torch.randn(4, 4, 6, 8), torch.randn(4, 4, 6, 2)
    message = r"query must have all leading axes of its memory, \(4, 4\), got shape \(4, 3, 8\)"
    for memory in ((keys, values), (keys, values[0]), (keys[0, 0], values), Memory(keys, values)):
        with pytest.raises(ValueError, match=message):
            read(query, memory)
    score = FeatureMap()
    state = LinearState.of(Memory(keys, values).map_keys_with(score))
    with pytest.raises(ValueError, match=r"leading axes of its memory, \(4, 4\), got shape"):
        attend(query, state, score=score, choice=Proportional())


def test_both_ways_of_adding_query_axes_are_correct():
    query, keys, values = torch.randn(4, 3, 8), torch.randn(4, 4, 6, 8), torch.randn(4, 4, 6, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    close(attend(query[None], (keys, values)), expected)
    shared = torch.nn.functional.scaled_dot_product_attention(query.unsqueeze(1), keys, values)
    close(attend(query.unsqueeze(1), (keys, values)), shared)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_axes_that_do_not_fit_are_refused_by_every_kernel(kernel):
    scores = {"additive": Additive(4, 4, hidden=3), "linear": FeatureMap()}
    choices = {"gather": TopK(2), "linear": Proportional()}
    score, choice = scores.get(kernel, ScaledDot()), choices.get(kernel, Soft())
    options = {"score": score, "choice": choice, "kernel": kernel}
    query, keys, values = torch.randn(2, 6, 3, 4), torch.randn(2, 6, 5, 4), torch.randn(2, 6, 5, 3)
    fitting = r"must be those of the read, \(2, 6\), or 1, or a divisor of the heads"
    for name, memory in (
        ("keys", (keys[:, :4], values[:, :4])),
        ("keys", (keys[0], values[0])),
        ("values", (keys, values[:, :5])),
    ):
        with pytest.raises(ValueError, match=f"leading axes of {name} {fitting}"):
            attend(query, memory, **options)
    mask = dense(torch.ones(3, 1, 5, dtype=torch.bool))
    message = r"leading axes of mask Dense must be those of the read, \(2, 6\)"
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        attend(query, (keys, values), mask=mask, **options)


def test_heads_of_a_score_are_the_last_leading_axis():
    score = Additive(4, 4, hidden=3, num_heads=2)
    query, keys, values = torch.randn(2, 2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    shared = attend(query, (keys, values), score=score)
    close(
        shared,
        attend(query, (keys.unsqueeze(1), values.unsqueeze(1)), score=score, kernel="reference"),
    )
    with pytest.raises(ValueError, match=r"mapped keys must have 4 axes, got"):
        attend(query, Memory(keys, values).map_keys_with(score), score=score)
    with pytest.raises(ValueError, match="axis of a read by BareAdditive must be its 2 heads"):
        attend(query[:, :1], (keys, values), score=BareAdditive(4, num_heads=2))
    bare = BareAdditive(4, num_heads=2)  # a read of three axes may be one of heads and no batch
    alone = attend(query[0], (keys, values), score=bare)
    close(alone, attend(query[:1], (keys[None], values[None]), score=bare, kernel="reference")[0])
