"""The chunked loss equals that of torch, in value and gradient, for any chunk size."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.native import linear as onednn
from regard.native import table
from regard.native import token_loss as native_loss
from regard.ops import token_loss as loss_ops
from regard.ops.token_loss import token_loss
from tests.helpers import close


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 30])
def test_loss_equals_torch(monkeypatch, smoothing, with_bias, chunk_bytes):
    monkeypatch.setattr(loss_ops, "_CHUNK_BYTES", chunk_bytes)
    leaves = [torch.randn(157, 7), torch.randn(11, 7) * 5, torch.randn(11)][: 3 if with_bias else 2]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    hidden, weight, bias = (*leaves, None)[:3]
    target = torch.randint(11, (157,))
    loss = token_loss(hidden, weight, bias, target, smoothing=smoothing)
    logits = functional.linear(hidden, weight, bias)
    expected = functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    close(loss.total, expected)
    close(loss.nll, functional.cross_entropy(logits, target, reduction="sum"))
    actual = torch.autograd.grad(3 * loss.total, leaves)
    for ours, theirs in zip(actual, torch.autograd.grad(3 * expected, leaves), strict=True):
        close(ours, theirs)


def test_large_scores_do_not_overflow():
    hidden = torch.full((3, 2), 1e3, requires_grad=True)
    weight = torch.tensor([[1.0, 1.0], [-1.0, 2.0]])
    loss = token_loss(hidden, weight, None, torch.tensor([0, 1, 1]))
    assert loss.total.isfinite()
    assert torch.autograd.grad(loss.total, hidden)[0].isfinite().all()


def test_autocast_is_close_to_the_exact_loss():
    hidden, weight = torch.randn(57, 32, requires_grad=True), torch.randn(101, 32) / 6
    target = torch.randint(101, (57,))
    exact = token_loss(hidden, weight, None, target, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        approximate = token_loss(hidden, weight, None, target, smoothing=0.1)
    assert abs(approximate.total / exact.total - 1) < 0.01
    a, b = (torch.autograd.grad(x.total, hidden)[0] for x in (approximate, exact))
    assert (a - b).abs().max() < 0.03 * b.abs().max()


def test_without_gradients_none_are_computed(monkeypatch):
    """Parameters require gradients in evaluation, too."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(9, 4), torch.randn(7, 4, requires_grad=True)
    target = torch.randint(7, (9,))
    expected = token_loss(hidden, weight, None, target)
    monkeypatch.setattr(loss_ops, "_Gradients", None)
    with torch.no_grad():
        found = token_loss(hidden, weight, None, target)
    assert found.nll == expected.nll
    with pytest.raises(TypeError):
        token_loss(hidden, weight, None, target)


def test_loss_of_no_tokens_is_zero():
    hidden = torch.zeros(0, 3, requires_grad=True)
    loss = token_loss(hidden, torch.randn(5, 3), None, torch.zeros(0, dtype=torch.int64))
    assert loss.total == 0
    assert torch.autograd.grad(loss.total, hidden)[0].shape == (0, 3)


def test_loss_raises_for_a_smoothing_of_one():
    with pytest.raises(ValueError, match=r"smoothing must be at least 0 and below 1, got 1\.0"):
        token_loss(torch.zeros(1, 2), torch.zeros(3, 2), None, torch.tensor([0]), smoothing=1.0)


class PretendedCuda(torch.Tensor):
    """Tensor on the CPU that computes as one on CUDA does, where products have types of results."""

    is_cuda = property(lambda self: True)
    wide_products = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.addmm and "out_dtype" in kwargs:
            cls.wide_products += 1
            wide = [part.to(kwargs["out_dtype"]) for part in args]
            return super().__torch_function__(function, types, wide, {"out": kwargs["out"]})
        return super().__torch_function__(function, types, args, kwargs)


def check_loss_on_cuda(*, rows: int) -> None:
    """Compare the loss of pretended tensors on CUDA, in bfloat16, with that in float64."""
    PretendedCuda.wide_products = 0
    check_half_loss(lambda leaf: leaf.as_subclass(PretendedCuda))
    assert PretendedCuda.wide_products == -(-157 // rows)


def check_half_loss(move: Callable[[Tensor], Tensor]) -> None:
    """Compare the loss of tensors that `move` puts on a device, in bfloat16, with float64."""
    hidden, weight = torch.randn(157, 16), torch.randn(203, 16) / 2
    target = torch.randint(203, (157,))
    leaves = [move(leaf).requires_grad_() for leaf in (hidden, weight)]
    device = leaves[0].device
    with torch.autocast(device.type, torch.bfloat16):
        loss = token_loss(*leaves, None, target.to(device), smoothing=0.1)
    wide = [leaf.bfloat16().double().requires_grad_() for leaf in (hidden, weight)]
    logits = functional.linear(*wide)
    expected = functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
    assert abs(loss.total.double().cpu() / expected - 1) < 1e-3
    actual = torch.autograd.grad(loss.total, leaves)
    for ours, theirs in zip(actual, torch.autograd.grad(expected, wide), strict=True):
        assert (ours.cpu() - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("rows", [1, 64, 100, 157, 1000])
def test_gradient_of_the_table_is_added_by_products_on_cuda(monkeypatch, rows):
    monkeypatch.setattr(loss_ops, "_rows_per_chunk", lambda tokens, table: rows)
    monkeypatch.setattr(loss_ops, "native", lambda *_, **__: None)
    check_loss_on_cuda(rows=rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_size_of_a_chunk_changes_rounding_only(monkeypatch, dtype):
    leaves = [torch.randn(157, 7, dtype=dtype), torch.randn(11, 7, dtype=dtype)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    target = torch.randint(11, (157,))
    results = []
    for rows in (157, 1, 2, 13, 64, 156, 1000):
        monkeypatch.setattr(loss_ops, "_rows_per_chunk", lambda tokens, table, rows=rows: rows)
        loss = token_loss(*leaves, None, target, smoothing=0.1)
        results.append([*loss, *torch.autograd.grad(loss.total, leaves)])
    for result in results[1:]:
        for ours, theirs in zip(result, results[0], strict=True):
            close(ours / theirs.abs().max(), theirs / theirs.abs().max())


@pytest.mark.parametrize(("tokens", "vocab"), [(16_384, 50_304), (3, 11), (70_001, 8_000)])
def test_chunks_fill_memory_equally_on_an_accelerator_and_the_cache_on_a_cpu(tokens, vocab):
    table = torch.empty(vocab, 2, dtype=torch.bfloat16, device="meta")
    rows = loss_ops._rows_per_chunk(tokens, table)
    num_chunks = -(-tokens // rows)
    assert rows * vocab * 2 <= 512 << 20
    assert (num_chunks - 1) * (512 << 20) < tokens * vocab * 2
    assert rows == max(64, -(-tokens // num_chunks))
    on_cpu = loss_ops._rows_per_chunk(tokens, torch.empty(vocab, 2, dtype=torch.bfloat16))
    assert on_cpu == max(64, (16 << 20) // (vocab * 2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [11, 65, 997])
def test_float32_loss_matches_float64_with_any_product(monkeypatch, smoothing, vocab):
    monkeypatch.setattr(loss_ops, "_CHUNK_BYTES", 1 << 17)
    hidden = torch.randn(157, 37, requires_grad=True)
    weight = torch.randn(vocab, 37, requires_grad=True)
    target = torch.randint(vocab, (157,))
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    logits = functional.linear(*wide)
    expected = functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    gradients = torch.autograd.grad(expected, wide)
    for fast in (False, True):
        if fast and onednn.onednn_operators() is None:
            continue
        monkeypatch.setattr(table, "is_onednn_faster", lambda fast=fast: fast)
        monkeypatch.setattr("regard.ops.linear.MIN_COMPILED", 0)
        monkeypatch.setattr(table, "_MIN_PRODUCT_WITH_GRADIENTS", 0)
        loss = token_loss(hidden, weight, None, target, smoothing=smoothing)
        assert abs(loss.total.double() / expected - 1) < 1e-5
        actual = torch.autograd.grad(loss.total, (hidden, weight))
        for ours, theirs in zip(actual, gradients, strict=True):
            assert (ours.double() - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 7, 128, 1001])
def test_exponentials_match_float64(dtype, columns):
    scores = (torch.randn(13, columns) * 30).to(dtype)
    original = scores.double()
    highest, total = native_loss.exponentiate_rows(scores)
    assert torch.equal(highest.double(), original.amax(1, keepdim=True))
    difference = original - highest.double()  # which is rounded, too
    expected, error = difference.exp(), 1e-6 if dtype == torch.float32 else 2**-8
    error = error - 2**-23 * difference
    assert ((scores.double() - expected).abs() <= error * expected + 2e-38).all()
    assert (total.double() / expected.sum(1, keepdim=True) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_of_a_row_with_nan_or_infinity_is_nan(dtype):
    scores = torch.zeros(5, 300, dtype=dtype)
    scores[1, 7], scores[2, 299], scores[3, 0] = float("nan"), float("inf"), float("-inf")
    _, total = native_loss.exponentiate_rows(scores)
    assert total.isnan().squeeze(1).tolist() == [False, True, True, False, False]
    assert total[3] == 299


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5, 2048, 65613])
def test_accumulate_widens_before_adding(dtype, count):
    total, part = torch.randn(count), torch.randn(count).to(dtype)
    expected = total + part
    native_loss.accumulate(total, part)
    assert torch.equal(total, expected)
