"""The table of compiled operations: for each, the inputs that it accepts, and where it is.

`accepts` depends on the machine and on types, sizes and settings alone (see regard.ops.dispatch).
This module imports neither numba nor Triton: they are loaded with the first operation that runs.
"""

import torch
from torch import Tensor, nn

from regard.native.linear import is_onednn_faster
from regard.ops import linear, softmax
from regard.ops.dispatch import Native
from regard.ops.gru import product_dtype

_MIN_PRODUCT_WITH_GRADIENTS = 6 << 20
"""Multiplications from which oneDNN is faster for products with gradients, calls included."""
_MAX_KEY_DIM = 128
"""Rows of the matrix of a memory that fit the registers of a GPU's program."""
_VECTOR = 64
"""Bytes of a row from which torch vectorizes a softmax; below it is 5 to 15 times as slow."""


def is_plain(
    *tensors: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
) -> bool:
    """Return True if loops on a CPU can take these tensors: of these dtypes, not empty, plain."""
    for tensor in tensors:
        if not (
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.is_cpu
            and tensor.dtype in dtypes
            and tensor.layout == torch.strided
            and not tensor.is_neg()
            and tensor.numel() > 0
            and tensor.dim() > 0
        ):
            return False
    return True


def _accepts_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, needs_grad: bool | None = None
) -> bool:
    """needs_grad: whether gradients are computed; by default as tensors and grad mode say."""
    size = x.numel() * weight.shape[0]
    if x.dtype != torch.float32 or not linear.may_be_compiled(x, weight):
        return False
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if needs_grad is None:
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return (
        not (needs_grad and size < _MIN_PRODUCT_WITH_GRADIENTS)
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (weight.is_contiguous() or weight.t().is_contiguous())
        and is_plain(*tensors, dtypes=(torch.float32,))
        and not torch.is_autocast_enabled("cpu")
        and is_onednn_faster()
    )


def _accepts_softmax(scores: Tensor) -> bool:
    is_short = scores.shape[-1] * scores.element_size() < _VECTOR
    return is_short and scores.numel() >= softmax.MIN_COMPILED and is_plain(scores)


def _accepts_add_dropout(x: Tensor, f: Tensor, *norm: Tensor | None) -> bool:
    weights = [part for part in norm if part is not None]
    return (
        torch.is_grad_enabled()
        and x.shape == f.shape
        and len(weights) == len(norm)
        and all(part.shape == x.shape[-1:] for part in weights)
        and is_plain(f)
        and is_plain(x, *weights, dtypes=(torch.float32,))
    )


def _accepts_gru(*tensors: Tensor) -> bool:
    dtype = product_dtype()
    dtypes = torch.float32, dtype
    return dtype in (torch.float32, torch.bfloat16) and is_plain(*tensors, dtypes=dtypes)


def _accepts_gru_encode(lengths: Tensor, items: Tensor, *weights: Tensor) -> bool:
    return (
        torch.is_grad_enabled()
        and lengths.device.type == "cpu"
        and _accepts_gru(items, *weights)
        and any(tensor.requires_grad for tensor in (items, *weights))
    )


def _accepts_gru_decode(
    targets: Tensor, state: Tensor, context: Tensor, keys: Tensor, values: Tensor, lengths: Tensor,
    *weights: Tensor,
) -> bool:  # fmt: skip
    rows = keys.shape[0]
    return (
        len(targets) == rows == len(state)
        and lengths.shape == (rows,)
        and _accepts_gru(targets, state, context, keys, values, *weights)
    )


def _accepts_write(*tensors: Tensor | None) -> bool:
    parts = [tensor for tensor in tensors if tensor is not None]
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in parts)
    return not needs_grad and is_plain(*parts, dtypes=(torch.float32,))


def _accepts_scan(*tensors: Tensor | None) -> bool:
    parts = [tensor for tensor in tensors if tensor is not None]
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in parts)
    *_, key_dim, value_dim = parts[-1].shape
    fits = key_dim <= _MAX_KEY_DIM and parts[-1].shape == (*parts[0].shape[:-3], key_dim, value_dim)
    return fits and not needs_grad and all(_is_wide_on_cuda(tensor) for tensor in parts)


def _is_wide_on_cuda(tensor: Tensor) -> bool:
    is_plain_cuda = type(tensor) is Tensor and tensor.is_cuda
    return is_plain_cuda and tensor.dtype == torch.float32 and tensor.numel() > 0


def _accepts_cuda_scores(scores: Tensor) -> bool:
    is_plain_cuda = type(scores) is Tensor and scores.is_cuda and scores.is_contiguous()
    dtypes = torch.float32, torch.bfloat16, torch.float16
    return is_plain_cuda and scores.dtype in dtypes and len(scores) > 0


def _accepts_all(*_: Tensor) -> bool:
    return True


OPERATIONS = {
    "linear": Native(_accepts_linear, "linear:linear"),
    "gru_encode": Native(_accepts_gru_encode, "gru.autograd:encode"),
    "gru_decode": Native(_accepts_gru_decode, "gru.autograd:decode"),
    "additive.cpu": Native(_accepts_all, "additive.cpu.call:forward"),
    "additive.cpu.backward": Native(_accepts_all, "additive.cpu.call:backward"),
    "additive.cuda": Native(_accepts_all, "additive.gpu.call:forward", requires="triton"),
    "additive.cuda.backward": Native(_accepts_all, "additive.gpu.call:backward", requires="triton"),
    "exponentiate_rows": Native(is_plain, "token_loss:exponentiate_rows"),
    "exponentiate_rows.cuda": Native(
        _accepts_cuda_scores, "token_loss_gpu:exponentiate_rows", requires="triton"
    ),
    "accumulate": Native(is_plain, "token_loss:accumulate"),
    "scan_chunks.cuda": Native(_accepts_scan, "delta_rule_gpu:scan", requires="triton"),
    "write": Native(_accepts_write, "delta_rule:write"),
    "softmax": Native(_accepts_softmax, "rows:softmax"),
    "dropout": Native(is_plain, "dropout.autograd:drop"),
    "add_dropout": Native(_accepts_add_dropout, "dropout.autograd:add_drop"),
    "add_dropout_norm": Native(_accepts_add_dropout, "dropout.autograd:add_drop_norm"),
}
