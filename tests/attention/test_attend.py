"""attend and attention_weights: values by hand, memories, and refused inputs."""

import math

import pytest
import torch

from regard.attention.attend import attend, attention_weights
from regard.attention.biases import Alibi
from regard.attention.choices import Soft
from regard.attention.kernels import selection
from regard.attention.kernels.selection import KERNELS
from regard.attention.masks import causal, dense, padding
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Concat, Cosine, Dot, General, ScaledDot, SoftCap
from tests.helpers import close


def test_attend_reads_by_hand():
    query = torch.tensor([[1.0]])
    keys, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    share = math.e / (1 + math.e)
    close(attention_weights(query, (keys, values), score=Dot()), torch.tensor([[1 - share, share]]))
    close(
        attend(query, (keys, values), score=Dot()), torch.tensor([[10 * (1 - share), 10 * share]])
    )


def test_attend_supports_leading_axes_and_unequal_sizes():
    query, keys, values = (
        torch.randn(2, 3, 5, 7),
        torch.randn(2, 3, 11, 13),
        torch.randn(2, 3, 11, 17),
    )
    score = Additive(7, 13, 19)
    assert attend(query, (keys, values), score=score).shape == (2, 3, 5, 17)
    assert attention_weights(query, (keys, values), score=score).shape == (2, 3, 5, 11)


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


def test_attend_without_leading_axes_equals_a_batch_of_one():
    query, keys, values = torch.randn(5, 7), torch.randn(11, 7), torch.randn(11, 3)
    for kernel in ("reference", "sdpa"):
        alone = attend(query, (keys, values), mask=causal(), kernel=kernel)
        batch = attend(query[None], (keys[None], values[None]), mask=causal(), kernel=kernel)
        close(alone, batch[0])


def test_empty_memory_reads_zeros():
    query, memory = torch.randn(2, 3, 5), (torch.zeros(2, 0, 5), torch.zeros(2, 0, 7))
    for kernel in ("reference", "sdpa"):
        close(attend(query, memory, kernel=kernel), torch.zeros(2, 3, 7))


def test_large_beta_tends_to_the_best_key():
    query, keys, values = torch.randn(5, 7), torch.randn(11, 7), torch.randn(11, 3)
    best = (query @ keys.t()).argmax(-1)
    for kernel in ("reference", "sdpa"):
        close(attend(query, (keys, values), choice=Soft(beta=1e4), kernel=kernel), values[best])


def test_beta_multiplies_scores():
    query, keys, values = torch.randn(5, 7), torch.randn(11, 7), torch.randn(11, 3)
    for kernel in ("reference", "sdpa"):
        sharp = attend(query, (keys, values), score=Dot(), choice=Soft(beta=2.5), kernel=kernel)
        close(sharp, attend(query * 2.5, (keys, values), score=Dot(), kernel=kernel))


def test_memory_mask_and_read_mask_are_combined():
    query, keys, values = torch.randn(2, 3, 5), torch.randn(2, 3, 5), torch.randn(2, 3, 7)
    memory = Memory(keys, values, padding([2, 3]))
    weights = attention_weights(query, memory, mask=causal())
    expected = (causal() & padding([2, 3])).tensor(3, 3, device=query.device)
    assert torch.equal(weights > 0, expected)


def test_keys_are_mapped_once_for_many_reads():
    score = General(5, 7)
    memory = Memory(torch.randn(2, 11, 7), torch.randn(2, 11, 3))
    mapped = memory.map_keys_with(score)
    query = torch.randn(2, 1, 5)
    close(attend(query, mapped, score=score), attend(query, memory, score=score))
    assert mapped.map_keys_with(score) is mapped
    with pytest.raises(
        ValueError,
        match="score must be the General that mapped the keys of this memory, got another score",
    ):
        attend(query, mapped, score=General(5, 7))


def test_growing_memory_equals_fixed_memory():
    keys, values = torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 5)
    memory = Memory(keys[..., :4, :], values[..., :4, :])
    memory = memory.extend(keys[..., 4:5, :], values[..., 4:5, :]).extend(
        keys[..., 5:, :], values[..., 5:, :]
    )
    assert torch.equal(memory.keys, keys)
    assert torch.equal(memory.values, values)
    assert torch.equal(memory.crop(4).keys, keys[..., :4, :])
    with pytest.raises(ValueError, match="size must be between 0 and 11, got 12"):
        memory.crop(12)
    with pytest.raises(ValueError, match="a memory must have no mask to be extended"):
        Memory(keys, values, padding([1, 2])).extend(keys, values)


def test_select_reorders_rows_and_their_mask():
    keys, values = torch.randn(3, 5, 7), torch.randn(3, 5, 2)
    query = torch.randn(3, 4, 7)
    index = torch.tensor([2, 0, 2])
    memory = Memory(keys, values, padding([1, 3, 5]))
    close(attend(query[index], memory.select(index)), attend(query, memory)[index])


@pytest.mark.usefixtures("no_shape_checks")
def test_attend_refuses_inputs_that_do_not_fit():
    query, keys, values = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    with pytest.raises(ValueError, match="4 keys and 3 values"):
        attend(query, (keys, values[:3]))
    with pytest.raises(
        TypeError, match=r"values must have the query's dtype torch\.float32, got torch\.float64"
    ):
        attend(query, (keys, values.double()))
    with pytest.raises(
        TypeError, match=r"mask must be a Mask, such as causal\(\) or dense\(tensor\), got Tensor"
    ):
        attend(query, (keys, values), mask=torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"bias must be floating point, got torch\.bool"):
        attend(query, (keys, values), bias=torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(
        ValueError, match="mask Dense must have at most the 2 axes of the read, got 3"
    ):
        attend(query, (keys, values), mask=dense(torch.ones(1, 3, 4, dtype=torch.bool)))
    for kernel in ("auto", "sdpa", "reference"):
        with pytest.raises(ValueError, match="must have equal sizes, got 5 and 4"):
            attend(query, (keys[:, :4], values), kernel=kernel)


@pytest.mark.parametrize("read", [attend, attention_weights])
def test_keys_and_values_as_two_arguments_are_refused_with_the_form_of_the_call(read):
    x = torch.randn(2, 3, 4)
    message = rf"got 3 positional arguments: pass keys and values as a pair, {read.__name__}\(query, \(keys, values\)\)"
    with pytest.raises(TypeError, match=message):
        read(x, x, x)


@pytest.mark.usefixtures("no_shape_checks")
def test_masks_and_biases_of_other_kinds_are_refused_with_the_way_to_write_them():
    x = torch.randn(2, 3, 4)
    with pytest.raises(TypeError, match=r"write tensor.bool\(\) if 1 means may attend"):
        dense(torch.ones(3, 3))
    with pytest.raises(TypeError, match=r"a dense mask must be a boolean tensor .* got list"):
        dense([[True]])
    with pytest.raises(TypeError, match=r"lengths must be integers .* got str"):
        padding("ab")
    for combine in (lambda a, b: a & b, lambda a, b: b & a, lambda a, b: a | b, lambda a, b: b | a):
        with pytest.raises(TypeError, match=r"got Tensor; wrap tensors in regard.dense"):
            combine(torch.ones(3, 3, dtype=torch.bool), causal())
    with pytest.raises(
        TypeError,
        match=r"bias must be a Bias or a floating-point tensor, got the class Alibi: write",
    ):
        attend(x, (x, x), bias=Alibi)


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


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "products", "flex"])
@pytest.mark.parametrize("beta", [0.0, torch.zeros(2, 1, 1)], ids=["number", "tensor"])
def test_beta_of_zero_weighs_all_allowed_keys_alike(kernel, beta):
    queries, keys, values = (torch.randn(3, 2, 5, 8) for _ in range(3))
    memory = Memory(keys, values, padding([5, 3, 1]))
    try:
        found = attend(queries, memory, choice=Soft(beta), mask=causal(), kernel=kernel)
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


@pytest.mark.parametrize("kernel", ["reference", "products", "sdpa"])
def test_nan_is_reported_with_its_index(kernel):
    query, keys, values = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(2, 4, 2)
    invalid = keys.clone()
    invalid[1, 2, 3] = math.nan
    with pytest.raises(
        ValueError, match=r"keys must be finite where not masked, got nan at \(1, 2, 3\) \(1 such"
    ):
        attend(query, (invalid, values), kernel=kernel)
    invalid_values = values.clone()
    invalid_values[0, 3, 1] = math.nan
    with pytest.raises(
        ValueError, match=r"values must be finite where not masked, got nan at \(0, 3, 1\)"
    ):
        attend(query, (keys, invalid_values), kernel=kernel)


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
def test_empty_reads_have_gradients_of_zero_whatever_their_numbers(kernel, score):
    query, options = (
        torch.full((3, 4, 5), torch.inf, requires_grad=True),
        {"score": score(), "kernel": kernel},
    )
    learned = [query, *options["score"].parameters()]
    for read in (attend, attention_weights):
        out = read(query, (torch.randn(3, 0, 5), torch.randn(3, 0, 2)), **options)
        for gradient in torch.autograd.grad(out.sum(), learned, allow_unused=True):
            assert gradient is None or not gradient.any()


@each_kernel
def test_values_of_size_zero_do_not_change_weights(kernel, score):
    query, keys, options = (
        torch.randn(2, 3, 5),
        torch.randn(2, 4, 5),
        {"score": score(), "kernel": kernel},
    )
    weights = attention_weights(query, (keys, torch.empty(2, 4, 0)), **options)
    close(weights, attention_weights(query, (keys, torch.randn(2, 4, 6)), **options))
    assert weights.std() > 0


@pytest.mark.parametrize("kernel", ["reference", "products", "sdpa"])
def test_products_of_masked_keys_may_overflow(kernel):
    query = torch.randn(2, 3, 5).index_fill(1, torch.tensor([2]), 1e30).requires_grad_()
    keys, values = (
        torch.randn(2, 4, 5).index_fill(1, torch.tensor([3]), 1e30).requires_grad_(),
        torch.randn(2, 4, 2),
    )
    allowed = torch.tensor([True, True, True, False]).expand(3, 4).clone()
    allowed[2] = False
    out = attend(query, (keys, values), mask=dense(allowed), kernel=kernel)
    gradients = torch.autograd.grad(out.square().sum(), (query, keys))
    unmasked = attend(query[:, :2], (keys[:, :3], values[:, :3]), kernel="reference")
    close(out[:, :2], unmasked)
    for gradient, expected in zip(
        gradients, torch.autograd.grad(unmasked.square().sum(), (query, keys)), strict=True
    ):
        close(gradient, expected)


@each_kernel
def test_masked_keys_and_values_have_no_effect_whatever_their_numbers(kernel, score):
    query, keys, values = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(2, 4, 2)
    query[1, 0], keys[0, 3], keys[1, 1:] = torch.inf, torch.nan, 1e30
    values[0, 3], values[1, 1:] = -torch.inf, torch.nan
    allowed = torch.ones(2, 3, 4, dtype=torch.bool)
    allowed[0, :, 3], allowed[1, :, 1:], allowed[1, 0] = False, False, False
    bias = torch.randn(2, 3, 4).masked_fill(~allowed, torch.inf)
    tensors = [tensor.requires_grad_() for tensor in (query, keys, values, bias)]
    plain = [tensor.detach().nan_to_num(0, 0, 0).requires_grad_() for tensor in tensors]
    options = {
        "score": score(),
        "choice": Soft(1.5, learn=True),
        "mask": dense(allowed),
        "kernel": kernel,
    }
    outs = [attend(q, (k, v), bias=b, **options) for q, k, v, b in (tensors, plain)]
    assert not outs[0][1, 0].any()
    close(*outs)
    learned = list(options["choice"].parameters())
    actual, expected = (
        torch.autograd.grad(out.square().sum(), [*own, *learned])
        for out, own in zip(outs, (tensors, plain), strict=True)
    )
    for gradient, reference in zip(actual, expected, strict=True):
        close(gradient, reference)


@each_kernel
def test_numbers_that_are_read_must_be_finite(kernel, score):
    query, keys, values = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    options = {"score": score(), "mask": causal(), "kernel": kernel}
    invalid = values.index_fill(0, torch.tensor([3]), torch.inf)
    with pytest.raises(
        ValueError, match=r"values must be finite where not masked, got inf at \(3, 0\)"
    ):
        attend(query, (keys, invalid), **options)
    with pytest.raises(
        ValueError, match=r"query must be finite where not masked, got nan at \(0, 0\)"
    ):
        attend(query * torch.nan, (keys, values), **options)
    with pytest.raises(
        ValueError, match=r"bias must be finite, or -inf to hide a pair, .* got inf at \(1, 2\)"
    ):
        attend(
            query,
            (keys, values),
            bias=torch.zeros(3, 4).index_put(
                (torch.tensor(1), torch.tensor(2)), torch.tensor(torch.inf)
            ),
            **options,
        )


@pytest.mark.parametrize("kernel", ["reference", "products", "sdpa"])
def test_scores_that_overflow_are_refused(kernel):
    query, keys, values = torch.full((3, 5), 1e30), torch.full((4, 5), 1e30), torch.randn(4, 2)
    with pytest.raises(
        ValueError, match=r"the output must be finite, but overflows torch\.float32"
    ):
        attend(query, (keys, values), kernel=kernel)


def test_capped_scores_that_overflow_are_refused():
    """An overflowing score may have the wrong sign: 2e38 + 2e38 - 3e38 - 3e38 < 0, but is +inf if
    summed in order."""
    query, keys = (
        torch.full((1, 4), 1e19),
        torch.tensor([[2e19, 2e19, -3e19, -3e19], [0.0, 0.0, 0.0, 0.0]]),
    )
    with pytest.raises(
        ValueError, match=r"the output must be finite, but overflows torch\.float32"
    ):
        attend(query, (keys, torch.randn(2, 3)), score=SoftCap(Dot(), 2.0))


@pytest.mark.usefixtures("no_shape_checks")
def test_attend_refuses_arguments_that_are_not_a_memory():
    query, keys, values = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    with pytest.raises(
        TypeError, match=r"memory must be a Memory or a pair \(keys, values\), got Tensor"
    ):
        attend(query, keys)
    with pytest.raises(TypeError, match="got tuple of 3"):
        attend(query, (keys, values, values))
    with pytest.raises(TypeError, match="values must be a tensor, got list"):
        attend(query, (keys, values.tolist()))
    with pytest.raises(ValueError, match=r"keys must be \(..., key, dim\), got shape \(5,\)"):
        attend(query, (keys[0], values))
    with pytest.raises(TypeError, match=r"values must be floating point, got dtype torch\.int64"):
        attend(query, (keys, values.long()))
    with pytest.raises(
        ValueError, match=r"the last axis of query must not be empty, got shape \(3, 0\)"
    ):
        attend(query[:, :0], (keys[:, :0], values))
    with pytest.raises(
        ValueError,
        match=r"beta must broadcast to the rows of the read, \(3, 1\), got shape \(2, 1\)",
    ):
        attend(query, (keys, values), choice=Soft(torch.ones(2, 1)))
    with pytest.raises(
        ValueError, match=r"combined must broadcast, .* \(2, 1, 4\) and \(3, 1, 1\)"
    ):
        attend(query, (keys, values), mask=padding([4, 4]) & dense(torch.ones(3, 1, 1) > 0))


def test_unknown_argument_is_named_with_the_known_ones() -> None:
    items = torch.ones(1, 2, 3)
    with pytest.raises(
        TypeError, match=r"attend has no argument 'choose'; its arguments are query, .*choice"
    ):
        attend(items, (items, items), choose=None)  # pyrefly: ignore
