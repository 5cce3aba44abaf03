"""attend and attention_weights: values by hand, memories, and refused inputs."""

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode

from regard.attention.attend import attend, attention_weights
from regard.attention.biases import DistanceBias
from regard.attention.choices import Choice, SinkSoft, Soft
from regard.attention.kernels import flex, selection
from regard.attention.kernels.selection import KERNELS
from regard.attention.masks import causal, dense, padding
from regard.attention.memory import Memory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Concat,
    Cosine,
    Dot,
    General,
    ScaledDot,
    Score,
    SoftCap,
)
from regard.ops.additive import unsupported_reason
from tests.helpers import close


def test_attend_reads_by_hand():
    query = torch.tensor([[1.0]])
    keys, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    share = math.e / (1 + math.e)
    close(attention_weights(query, (keys, values), score=Dot()), torch.tensor([[1 - share, share]]))
    close(
        attend(query, (keys, values), score=Dot()), torch.tensor([[10 * (1 - share), 10 * share]])
    )


@pytest.mark.parametrize("kind", [Additive, Concat, General])
def test_queries_keys_and_values_of_three_sizes_are_read_by_the_formula(kind):
    score = kind(3, 5, 7).double()
    query, keys, values = (torch.randn(n, size).double() for n, size in ((2, 3), (6, 5), (6, 4)))
    weight = (
        score.weight
        if isinstance(score, Concat)
        else torch.cat((score.query_weight, score.key_weight), 1)
    )
    rows = []
    for q in query:
        if isinstance(score, General):
            scores = torch.stack([(weight[:, :3] @ q) @ (weight[:, 3:] @ k) for k in keys])
        else:
            scores = torch.stack([score.v @ torch.tanh(weight @ torch.cat((q, k))) for k in keys])
        shares = scores.exp() / scores.exp().sum()
        rows.append(sum(share * v for share, v in zip(shares, values, strict=True)))
    close(attend(query, (keys, values), score=score), torch.stack(rows))


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_beta_multiplies_scores(kernel):
    query, keys, values = torch.randn(5, 7), torch.randn(11, 7), torch.randn(11, 3)
    sharp = attend(query, (keys, values), score=Dot(), choice=Soft(beta=2.5), kernel=kernel)
    close(sharp, attend(query * 2.5, (keys, values), score=Dot(), kernel=kernel))


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_large_beta_tends_to_the_best_key(kernel):
    query, keys, values = torch.randn(5, 7), torch.randn(11, 7), torch.randn(11, 3)
    best = (query @ keys.t()).argmax(-1)
    close(attend(query, (keys, values), choice=Soft(beta=1e4), kernel=kernel), values[best])


def test_memory_mask_and_read_mask_are_combined():
    query, keys, values = torch.randn(2, 3, 5), torch.randn(2, 3, 5), torch.randn(2, 3, 7)
    memory = Memory(keys, values, padding([2, 3]))
    weights = attention_weights(query, memory, mask=causal())
    expected = (causal() & padding([2, 3])).tensor(3, 3, device=query.device)
    assert torch.equal(weights > 0, expected)


def test_select_reorders_rows_and_their_mask():
    keys, values = torch.randn(3, 5, 7), torch.randn(3, 5, 2)
    query = torch.randn(3, 4, 7)
    index = torch.tensor([2, 0, 2])
    memory = Memory(keys, values, padding([1, 3, 5]))
    close(attend(query[index], memory.select(index)), attend(query, memory)[index])


def test_kernel_by_name_is_never_swapped():
    query, memory = torch.randn(3, 5), (torch.randn(4, 5), torch.randn(4, 2))
    with pytest.raises(
        ValueError,
        match=r"'sdpa' does not support this read: score Additive is not an inner product. Use "
        r"reference, additive",
    ):
        attend(query, memory, score=Additive(5, 5, 3), kernel="sdpa")
    with pytest.raises(
        ValueError, match=r"kernel must be auto or one of additive, .*sdpa, got 'flash'"
    ):
        attend(query, memory, kernel="flash")
    with pytest.raises(ValueError, match="'sdpa' does not support this read"):
        attention_weights(query, memory, score=Additive(5, 5, 3), kernel="sdpa")


@pytest.mark.parametrize("beta", [-1.0, float("inf"), float("nan")])
def test_soft_refuses_a_beta_that_is_negative_or_not_finite(beta):
    with pytest.raises(ValueError, match="beta must be at least 0 and finite, or a tensor"):
        Soft(beta=beta)
    with pytest.raises(ValueError, match="must start above 0"):
        Soft(0.0, learn=True)


class NoFuture(DistanceBias):
    """Causal mask as a bias of the distance."""

    def at(self, distance: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(distance.shape, dtype=dtype).masked_fill(distance > 0, -math.inf)


HIDDEN_FUTURE = {
    "mask": {"mask": causal()},
    "bias": {"bias": torch.full((5, 5), -math.inf).triu(1)},
    "distance": {"bias": NoFuture()},
}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "products", "flex", "additive"])
@pytest.mark.parametrize("beta", [0.0, torch.zeros(2, 1, 1)], ids=["number", "tensor"])
@pytest.mark.parametrize("hidden", HIDDEN_FUTURE)
def test_beta_of_zero_weighs_all_allowed_keys_alike(kernel, beta, hidden, monkeypatch):
    # Traced, but not translated to C++, which takes 10 seconds: see contracts/untyped_flex.py.
    traced = torch.compile(flex.flex_attention, backend="eager", dynamic=False)
    monkeypatch.setattr(flex, "_compile_flex_attention", lambda: traced)
    queries, keys, values = (torch.randn(3, 2, 5, 8) for _ in range(3))
    memory = Memory(keys, values, padding([5, 3, 1]))
    options = HIDDEN_FUTURE[hidden] | {"kernel": kernel, "choice": Soft(beta)}
    score = Additive(8, 8, 3).requires_grad_(False) if kernel == "additive" else ScaledDot()
    try:
        found = attend(queries, memory, score=score, **options)
    except ValueError as error:
        assert "does not support this read" in str(error)  # noqa: PT017
        return
    allowed = torch.arange(5)[None, :] <= torch.arange(5)[:, None]
    allowed = allowed[None] & (torch.arange(5) < torch.tensor([5, 3, 1])[:, None])[:, None]
    weights = allowed / allowed.sum(-1, keepdim=True)
    torch.testing.assert_close(found, weights[:, None] @ values)


@pytest.mark.parametrize(
    ("sizes", "dtype", "has_products", "kernel"),
    [
        ((1, 16), torch.float32, True, "sdpa"),
        ((2, 128), torch.float32, True, "products"),
        ((2, 129), torch.float32, True, "sdpa"),
        ((1, 1024), torch.bfloat16, True, "products"),
        ((2, 4096), torch.bfloat16, True, "products"),
        ((2, 4097), torch.bfloat16, True, "sdpa"),
        ((1, 16), torch.bfloat16, False, "sdpa"),
        ((2, 128), torch.float16, False, "products"),
        ((2, 129), torch.bfloat16, False, "sdpa"),
    ],
)
def test_auto_follows_the_table(monkeypatch, sizes, dtype, has_products, kernel):
    monkeypatch.setattr(selection, "has_half_products", lambda dtype: has_products)
    (queries, keys), used = sizes, []
    for name, module in KERNELS.items():
        monkeypatch.setattr(
            module, "read", lambda _, name=name: used.append(name) or torch.zeros(queries, 2)
        )
    attend(
        torch.randn(queries, 5, dtype=dtype),
        (torch.randn(keys, 5, dtype=dtype), torch.randn(keys, 2, dtype=dtype)),
    )
    assert used == [kernel]


@pytest.mark.skipif(unsupported_reason("cuda") is not None, reason="triton is not installed")
@pytest.mark.parametrize(("num_keys", "kernel"), [(2**13 - 1, "reference"), (2**13, "additive")])
def test_auto_computes_few_additive_scores_by_the_formula_on_a_gpu(monkeypatch, num_keys, kernel):
    used = []
    for name, module in KERNELS.items():
        monkeypatch.setattr(
            module, "read", lambda _, name=name: used.append(name) or torch.zeros(64, 2)
        )
    score = BareAdditive(64)
    with FakeTensorMode(), torch.device("cuda"):
        score.v = torch.nn.Parameter(torch.empty(64))
        query, keys, values = (
            torch.empty(length, size) for length, size in ((64, 64), (num_keys, 64), (num_keys, 2))
        )
        attend(query, (keys, values), score=score)
    assert used == [kernel]


READS = [
    ("reference", ScaledDot),
    ("products", ScaledDot),
    ("sdpa", ScaledDot),
    ("additive", lambda: Additive(5, 5, 3)),
    ("auto", Cosine),
    ("auto", lambda: Concat(5, 5, 3)),
    ("auto", lambda: SoftCap(ScaledDot(), 2.0)),
]
each_kernel = pytest.mark.parametrize(("kernel", "score"), READS)


@each_kernel
@pytest.mark.parametrize(
    ("query", "keys", "value_dim"),
    [
        ((3, 0, 5), (3, 4), 2),
        ((3, 4, 5), (3, 0), 2),
        ((0, 4, 5), (0, 3), 2),
        ((2, 0, 4, 5), (2, 0, 3), 2),
        ((3, 5), (4,), 0),
    ],
)
def test_empty_reads_give_zeros_or_empty_outputs(kernel, score, query, keys, value_dim):
    tensors = torch.randn(query), torch.randn(*keys, 5), torch.randn(*keys, value_dim)
    for tensor in tensors:
        tensor.requires_grad_()
    options = {"score": score(), "mask": causal(), "kernel": kernel}
    out = attend(tensors[0], tensors[1:], **options)
    assert out.shape == (*query[:-1], value_dim)
    assert not out.any()
    gradients = torch.autograd.grad(out.sum(), tensors)
    assert not any(gradient.any() for gradient in gradients)
    assert attention_weights(tensors[0], tensors[1:], **options).shape == (*query[:-1], keys[-1])


@each_kernel
def test_empty_reads_have_gradients_of_zero(kernel, score):
    query = torch.randn(3, 4, 5, requires_grad=True)
    options = {"score": score(), "kernel": kernel}
    learned = [query, *options["score"].parameters()]
    for read in (attend, attention_weights):
        out = read(query, (torch.randn(3, 0, 5), torch.randn(3, 0, 2)), **options)
        for gradient in torch.autograd.grad(out.sum(), learned, allow_unused=True):
            assert gradient is None or not gradient.any()


@each_kernel
def test_values_of_size_zero_do_not_change_weights(kernel, score):
    query = torch.randn(2, 3, 5)
    keys = torch.randn(2, 4, 5)
    options = {"score": score(), "kernel": kernel}
    weights = attention_weights(query, (keys, torch.empty(2, 4, 0)), **options)
    close(weights, attention_weights(query, (keys, torch.randn(2, 4, 6)), **options))
    assert weights.std() > 0


class OneRow(Choice):
    """Choice whose weights of the first query would be broadcast."""

    def weights(self, scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
        return scores[:1].softmax(-1)


class Scores(Score):
    """Score of one's own that gives the scores of some pairs only."""

    def __init__(self, *index: slice, part: str = "compare"):
        super().__init__()
        self.index, self.part = index, part

    def map_query(self, query: torch.Tensor) -> torch.Tensor:
        return query[self.index] if self.part == "map_query" else query

    def map_keys(self, keys: torch.Tensor) -> torch.Tensor:
        return keys[self.index] if self.part == "map_keys" else keys

    def compare(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        scores = query @ keys.mT
        return scores[self.index] if self.part == "compare" else scores


def _refused() -> dict[str, dict]:
    """Return the arguments of reads that do not fit, the errors and their messages."""
    query, keys, values = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    pair, true = (keys, values), torch.ones(3, 4, dtype=torch.bool)
    reads: dict[str, dict] = {
        "there must be as many values as keys, got 4 keys and 3": {"memory": (keys, values[:3])},
        "values must have the query's dtype": {"memory": (keys, values.double())},
        "memory must be a Memory or a pair": {"memory": keys},
        "memory must be a Memory or a pair.*got tuple": {"memory": (keys, values, values)},
        "values must be a tensor, got list": {"memory": (keys, values.tolist())},
        r"keys must be \(..., key, dim\), got shape": {"memory": (keys[0], values)},
        "the last axis of query must not be empty": {
            "query": query[:, :0],
            "memory": (keys[:, :0], values),
        },
        "of ScaledDot must have equal sizes, got 5 and 4": {"memory": (keys[:, :4], values)},
        "mask must be an object of class Mask, got Tensor": {"memory": pair, "mask": true},
        "score must be .* Score, got the class ScaledDot": {"memory": pair, "score": ScaledDot},
        "choice must be an object of class Choice, got str": {"memory": pair, "choice": "hard"},
        "bias must be floating point": {"memory": pair, "bias": true},
        "leading axes of mask Dense must be those": {"memory": pair, "mask": dense(true[None])},
        "leading axes of bias TensorBias must be": {"memory": pair, "bias": torch.zeros(1, 3, 4)},
        r"weights of OneRow.weights must be \(3, 4\), got \(1, 4\)": {
            "memory": pair,
            "choice": OneRow(),
        },
        r"scores of Scores.compare must be \(3, 4\), got \(1, 4\)": {
            "memory": pair,
            "score": Scores(slice(1)),
        },
        r"scores of Scores.compare must be \(1, 2, 6, 4\), got \(1, 2, 6, 1\)": {
            "query": query.expand(1, 4, 3, 5),
            "memory": (keys.expand(1, 2, 4, 5), values.expand(1, 2, 4, 2)),
            "score": Scores(..., slice(1)),
        },
        r"vectors of Scores.map_keys must be \(4, 5\), got \(1, 5\)": {
            "memory": pair,
            "score": Scores(slice(1), part="map_keys"),
        },
        r"vectors of Scores.map_query must be \(2, 3, 5\), got \(1, 3, 5\)": {
            "query": query.expand(2, 3, 5),
            "memory": Memory(keys, values),
            "score": Scores(slice(1), part="map_query"),
        },
        r"vectors of Scores.map_keys must be \(2, 4, 5\), got \(1, 4, 5\)": {
            "query": query.expand(2, 3, 5),
            "memory": Memory(keys.expand(2, 4, 5), values.expand(2, 4, 2)),
            "score": Scores(slice(1), part="map_keys"),
        },
        "query must be neither nested nor sparse": {"query": query.to_sparse(), "memory": pair},
        "values must be neither nested nor sparse": {"memory": (keys, values.to_sparse())},
        "bias must be neither nested nor sparse": {
            "memory": pair,
            "bias": torch.eye(4).to_sparse(),
        },
        "beta must broadcast to the rows": {"memory": pair, "choice": Soft(torch.ones(2, 1))},
        "sink must broadcast to the rows": {"memory": pair, "choice": SinkSoft(2)},
    }
    return {message: {"query": query} | arguments for message, arguments in reads.items()}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("message", _refused())
def test_arguments_that_do_not_fit_are_refused(message):
    for read in (attend, attention_weights):
        with pytest.raises((TypeError, ValueError), match=message):
            read(**_refused()[message])


@pytest.mark.usefixtures("no_shape_checks")
def test_nested_keys_are_refused():
    query, keys, values = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    nested = torch.nested.nested_tensor([keys], layout=torch.jagged)
    for read in (attend, attention_weights):
        with pytest.raises(TypeError, match="keys must be neither nested nor sparse"):
            read(query, (nested, values))


@pytest.mark.parametrize("kernel", ["reference", "products", "sdpa"])
def test_nan_spreads_as_in_torch(kernel):
    query, keys, values = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(2, 4, 2)
    keys[0, 1, 2] = torch.nan
    out = attend(query, (keys, values), kernel=kernel)
    assert out[0].isnan().all()
    assert torch.equal(
        out.isnan(), torch.nn.functional.scaled_dot_product_attention(query, keys, values).isnan()
    )
