"""Linear attention: the kernel equals the reference, the recurrent state the parallel read."""

from functools import partial

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, attention_weights
from regard.attention.choices import Proportional, Soft, divide
from regard.attention.kernels import linear
from regard.attention.masks import Mask, causal, dense, padding
from regard.attention.memory import LinearState, Memory
from regard.attention.scores import Dot, FeatureMap, Features, RandomFeatures, elu_plus_one, softmax
from regard.layers.multihead import MultiHead
from tests.helpers import close

BATCH, HEADS, DIM, VALUE_DIM = 3, 4, 5, 7
PROPORTIONAL = Proportional()
Inputs = tuple[Tensor, ...]
MAPS = {
    "elu": FeatureMap(elu_plus_one),
    "relu": FeatureMap(torch.relu),
    "softmax": FeatureMap(softmax),
    "random": RandomFeatures(DIM, 11).double(),
}
ALLOWED = torch.tensor([[True, False, True]]).repeat(1, 60)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "padding": lambda n: padding([n, 0, n // 2]),
    "causal-padding": lambda n: causal() & padding([n, 0, n // 2]),
    "some-keys": lambda n: dense(ALLOWED[:, :n]) & ~padding([2, 0, 1]) & causal(),
    "either": lambda n: dense(ALLOWED[:, :n]) | padding([2, 0, 1]),
}


def make_tensors(
    m: int, n: int, *, key_heads: int = HEADS, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (BATCH, HEADS, m, DIM), (BATCH, key_heads, n, DIM), (BATCH, key_heads, n, VALUE_DIM)
    query, keys, values = (
        torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )
    return query, keys, values


def read(inputs: Inputs, score: Features, mask: Mask | None, kernel: str) -> Tensor:
    query, keys, values = inputs
    return attend(query, (keys, values), score=score, choice=PROPORTIONAL, mask=mask, kernel=kernel)


def gradients(out: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * weighting).sum(), inputs)


def check_same_read(inputs: Inputs, score: Features, mask: Mask | None) -> None:
    formula, sums = (read(inputs, score, mask, kernel) for kernel in ("reference", "linear"))
    close(sums, formula)
    for actual, expected in zip(gradients(sums, inputs), gradients(formula, inputs), strict=True):
        close(actual, expected)


@pytest.mark.parametrize("score", MAPS.values(), ids=MAPS.keys())
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(("m", "n"), [(7, 7), (150, 150), (70, 150), (150, 70)])
def test_kernel_equals_the_formula(monkeypatch, score, mask, m, n):
    monkeypatch.setattr(linear, "SEGMENT", 2 * linear.CHUNK)
    check_same_read(make_tensors(m, n), score, mask(n))


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_grouped_heads_equal_the_formula(key_heads, mask):
    check_same_read(make_tensors(70, 90, key_heads=key_heads), MAPS["elu"], mask(90))


def test_each_query_head_may_mask_different_keys():
    same_for_queries = dense(torch.rand(BATCH, HEADS, 1, 13) > 0.5)
    for head_mask in (same_for_queries, same_for_queries & causal()):
        check_same_read(make_tensors(11, 13, key_heads=2), MAPS["elu"], head_mask)


@pytest.mark.parametrize("kernel", ["reference", "linear"])
def test_weights_are_proportional_to_the_scores(kernel):
    query, keys = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0], [-5.0, 1.0], [0.0, -2.0]])
    memory = keys, torch.tensor([[1.0], [10.0], [100.0]])
    score = FeatureMap(torch.relu)  # scores 5, 2 and 0
    options = {"score": score, "choice": PROPORTIONAL, "kernel": kernel}
    expected = torch.tensor([[5 / 7, 2 / 7, 0]])
    close(attention_weights(query, memory, **options), expected)
    close(attend(query, memory, **options), torch.tensor([[25 / 7]]))


def test_scores_whose_sum_overflows_give_correct_weights():
    query, keys = torch.tensor([[1.0, 2.0]]), torch.full((40, 2), 1e38)
    options = {"score": FeatureMap(torch.relu), "choice": PROPORTIONAL}
    close(attention_weights(query, (keys, keys), **options), torch.full((1, 40), 1 / 40))
    close(
        attend(query, (keys, torch.full((40, 1), 3.0)), kernel="reference", **options),
        torch.tensor([[3.0]]),
    )


@pytest.mark.parametrize("kernel", ["reference", "linear"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_without_keys_give_zeros_and_no_gradient(kernel, is_causal):
    query, keys, values = (x.detach() for x in make_tensors(5, 5))
    query[:, :, 2] = -1.0  # relu leaves nothing of it: its scores are all zero
    inputs = tuple(x.requires_grad_() for x in (query, keys, values))
    mask = padding([5, 0, 3]) & causal() if is_causal else padding([5, 0, 3])
    out = read(inputs, MAPS["relu"], mask, kernel)
    assert out[:, :, 2].abs().max() == 0
    assert out[1].abs().max() == 0
    grads = gradients(out, inputs)
    assert not any(grad.isnan().any() for grad in grads)
    assert grads[0][:, :, 2].abs().max() == 0
    assert all(grad[1].abs().max() == 0 for grad in grads)
    assert all(grad[2, :, 3:].abs().max() == 0 for grad in grads[1:])


def test_division_by_zero_gives_zero_and_no_gradient():
    parts = torch.tensor([[3.0], [3.0]], requires_grad=True)
    total = torch.tensor([[2.0], [0.0]], requires_grad=True)
    out = divide(parts, total)
    close(out, torch.tensor([[1.5], [0.0]]))
    of_parts, of_total = torch.autograd.grad(out.sum(), (parts, total))
    close(of_parts, torch.tensor([[0.5], [0]]))
    close(of_total, torch.tensor([[-0.75], [0]]))


def test_no_keys_give_zeros():
    for mask in (None, causal(), padding([0, 0, 0])):
        out = read(make_tensors(5, 0), MAPS["elu"], mask, "linear")
        assert torch.equal(out, torch.zeros(BATCH, HEADS, 5, VALUE_DIM, dtype=torch.float64))


@pytest.mark.parametrize("mask", ["none", "causal", "causal-padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_stays_within_the_bound(mask, dtype):
    inputs = make_tensors(150, 150, dtype=dtype)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    out, formula = (
        read(x, FeatureMap(), MASKS[mask](150), kernel)
        for x, kernel in ((inputs, "linear"), (exact, "reference"))
    )
    assert out.dtype == dtype
    bound = 1e-5 if dtype == torch.float32 else 0.01
    pairs = zip((out, *gradients(out, inputs)), (formula, *gradients(formula, exact)), strict=True)
    assert all(
        (actual.double() - expected).abs().max() <= bound * expected.abs().max()
        for actual, expected in pairs
    )


def test_half_precision_is_summed_in_float32():
    ones = torch.ones(1, 1, 3000, 1, dtype=torch.bfloat16)
    alternating = torch.arange(3000).remainder(2).to(torch.bfloat16).view(1, 1, 3000, 1)
    for mask in (None, causal()):
        out = read((ones, ones, alternating), FeatureMap(), mask, "linear")
        assert out[..., -1, :].item() == 0.5


def test_autocast_computes_in_float32_and_returns_its_dtype():
    inputs = make_tensors(150, 150, dtype=torch.float32)
    exact = read(inputs, FeatureMap(), causal(), "linear")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = read(inputs, FeatureMap(), causal(), "linear")
        state = LinearState.of(Memory(*inputs[1:]).map_keys_with(MAPS["elu"]))
    assert torch.equal(out, exact.bfloat16())
    assert state.sums.dtype == torch.float32
    close(state.totals, elu_plus_one(inputs[1]).sum(-2))


@pytest.mark.usefixtures("no_shape_checks")
def test_kernel_refuses_unsupported_reads():
    inputs = make_tensors(5, 7)
    memory = inputs[1], inputs[2]
    with pytest.raises(ValueError, match="score Dot is not a product of features"):
        attend(inputs[0], memory, score=Dot(), choice=PROPORTIONAL, kernel="linear")
    with pytest.raises(ValueError, match="choice Soft is not Proportional"):
        attend(inputs[0], memory, score=FeatureMap(), choice=Soft(), kernel="linear")
    bias = torch.zeros(5, 7)
    with pytest.raises(ValueError, match="a bias is added to the scores"):
        attend(
            inputs[0], memory, score=FeatureMap(), choice=PROPORTIONAL, bias=bias, kernel="linear"
        )
    every = dense(torch.ones(5, 7, dtype=torch.bool))
    for mask in (every, ~causal(), causal() | padding([1, 2, 3])):
        with pytest.raises(ValueError, match="neither causal nor the same for every query"):
            read(inputs, FeatureMap(), mask & causal(), "linear")
        close(read(inputs, MAPS["elu"], mask, "auto"), read(inputs, MAPS["elu"], mask, "reference"))
    with pytest.raises(ValueError, match="scores for Proportional must not be negative, got -"):
        attend(inputs[0], memory, score=Dot(), choice=PROPORTIONAL)


def test_one_query_may_have_any_mask():
    query, keys, values = make_tensors(1, 13)
    check_same_read(
        (query, keys, values), MAPS["elu"], dense(torch.rand(BATCH, 1, 13) > 0.5) & causal()
    )


def test_second_derivatives_equal_finite_differences():
    tensors = tuple(
        torch.randn(size, dtype=torch.float64, requires_grad=True)
        for size in ((5, 3), (7, 3), (7, 2))
    )
    for mask in (None, causal()):
        assert torch.autograd.gradgradcheck(
            lambda *x, mask=mask: read(x, MAPS["softmax"], mask, "linear"), tensors
        )


def test_saved_tensors_grow_linearly_with_the_length():
    saved_sizes = {}
    for length in (512, 1024):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, s=sizes: s.append(x.numel()) or x, lambda x: x
        ):
            read(
                make_tensors(length, length, dtype=torch.float32), FeatureMap(), causal(), "linear"
            )
        saved_sizes[length] = sum(sizes)
    assert saved_sizes[1024] < 2.1 * saved_sizes[512]


def row_read(mask: Mask | None, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return read((query, keys, values), MAPS["random"], mask, "linear")


def test_function_transforms_support_the_kernel():
    inputs = tuple(x.detach() for x in make_tensors(70, 70))
    for name in ("none", "causal"):
        mask = MASKS[name](70)
        mapped = torch.vmap(partial(row_read, mask))(*inputs)
        close(mapped, read(inputs, MAPS["random"], mask, "linear"))
    slopes = []
    for kernel in ("linear", "reference"):

        def total(values: Tensor, kernel: str = kernel) -> Tensor:
            return read((*inputs[:2], values), MAPS["elu"], causal(), kernel).sum()

        slopes.append(torch.func.grad(total)(inputs[2]))
    close(*slopes)


@pytest.mark.parametrize("score", MAPS.values(), ids=MAPS.keys())
@pytest.mark.parametrize("key_heads", [1, 2, HEADS])
def test_state_step_by_step_equals_causal_all_at_once(score, key_heads):
    query, keys, values = make_tensors(19, 19, key_heads=key_heads)
    parallel = read((query, keys, values), score, causal(), "linear")
    past = Memory(keys[..., :7, :], values[..., :7, :]).map_keys_with(score)
    state = LinearState.of(past)
    shape = state.sums.shape
    for i in range(7, 19):
        new = slice(i, i + 1)
        state = state.extend(score.map_keys(keys[..., new, :]), values[..., new, :])
        out = attend(query[..., new, :], state, score=score, choice=PROPORTIONAL, mask=causal())
        close(out, parallel[..., new, :])
    assert state.sums.shape == shape


def test_state_of_a_memory_omits_masked_keys():
    query, keys, values = make_tensors(5, 7)
    memory = Memory(keys, values, padding([7, 0, 3])).map_keys_with(MAPS["elu"])
    state = LinearState.of(memory)
    expected = attend(query, memory, score=MAPS["elu"], choice=PROPORTIONAL, kernel="reference")
    close(attend(query, state, score=MAPS["elu"], choice=PROPORTIONAL), expected)
    index = torch.tensor([2, 0, 2])
    close(
        attend(query[index], state.select(index), score=MAPS["elu"], choice=PROPORTIONAL),
        expected[index],
    )


@pytest.mark.usefixtures("no_shape_checks")
def test_state_refuses_operations_on_single_pairs():
    query, keys, values = make_tensors(5, 7)
    score = MAPS["elu"]
    state = LinearState.of(Memory(keys, values).map_keys_with(score))
    options = {"score": score, "choice": PROPORTIONAL}
    with pytest.raises(TypeError, match="memory must be a Memory or a pair"):
        attention_weights(query, state, **options)
    for wrong, message in (
        ({"mask": causal()}, "it takes neither bias nor mask"),
        ({"bias": torch.zeros(5, 7)}, "it takes neither bias nor mask"),
        ({"score": FeatureMap()}, "which mapped the keys, got FeatureMap"),
        ({"choice": Soft()}, "choice for a LinearState must be an object of class Proportional"),
        ({"kernel": "reference"}, "kernel must be 'auto' or 'linear' for a LinearState"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            attend(query, state, **(options | wrong))
    with pytest.raises(ValueError, match="the sums of new pairs must be"):
        state.extend(keys, keys)
    with pytest.raises(ValueError, match="the leading axes of keys must be those of the read"):
        attend(query[:, :3], state, **options)
    with pytest.raises(TypeError, match="keys must be mapped by Features"):
        LinearState.of(Memory(keys, values))
    with pytest.raises(ValueError, match="the mask must be the same for every query"):
        LinearState.of(Memory(keys, values, causal() & padding([7, 0, 3])).map_keys_with(score))


def test_multihead_uses_sums_in_training_and_step_by_step():
    layer = MultiHead(
        11, num_heads=4, key_heads=2, head_dim=3, score=FeatureMap(), choice=PROPORTIONAL
    ).double()
    items = torch.randn(BATCH, 13, 11, dtype=torch.float64)
    parallel = layer(items, layer.memory(items), mask=causal())
    parallel.square().sum().backward()
    assert all(
        weight.grad is not None and weight.grad.abs().max() > 0 for weight in layer.parameters()
    )
    state = LinearState.of(layer.memory(items[:, :1]))
    for i in range(1, 13):
        state = layer.extend(state, items[:, i : i + 1])
        close(layer(items[:, i : i + 1], state), parallel[:, i : i + 1])
