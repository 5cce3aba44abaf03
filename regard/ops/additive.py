"""The operator regard::additive_read: fused additive attention.

    score[i,j] = v . tanh(query[i] + keys[j]) + bias[i,j]
    out[i]     = softmax_j(score) values                        lse[i] = logsumexp_j(score)

The device selects the implementation: numba loops on a CPU (regard.native.additive.cpu), Triton
kernels on a GPU (regard.native.additive.gpu). Both are imported on first use and take O((query +
key) dim) memory, forward and backward. There are no second derivatives, and there is no plain form:
`unsupported_reason` says why the operator cannot be used.

Source: bahdanau2015, appendix A.1.2.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.compat.torch import is_eager
from regard.errors import UserError
from regard.ops import dispatch
from regard.ops.dispatch import find

MAX_EXP_INPUT = 33.0
"""Largest |key| for which products of e^{2 key} and e^{2 query} are accurate in float32."""
_MAX_STEP_QUERIES = 4

_RULES = "Tensor? first, Tensor? last, Tensor? allowed, Tensor? bias, Tensor? diagonals"
_INPUTS = f"Tensor query, Tensor keys, Tensor values, Tensor v, {_RULES}, Tensor? exps"
_READ, _BACKWARD = "regard::additive_read", "regard::additive_read_backward"
_DEVICES = ("cpu", "cuda")
_DIFFERENTIABLE = (0, 1, 2, 3, 7, 8)
"""Indices of query, keys, values, v, bias and diagonals among the inputs."""

torch.library.define(_READ, f"({_INPUTS}) -> (Tensor, Tensor)")
torch.library.define(
    _BACKWARD,
    f"(Tensor grad_out, {_INPUTS}, Tensor out, Tensor lse, bool[] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def additive_read(
    query: Float[Tensor, "batch head query dim"],
    keys: Float[Tensor, "batch key_head key dim"],
    values: Float[Tensor, "batch key_head key value_dim"],
    v: Float[Tensor, "#head dim"],
    first: Int[Tensor, "#batch #head #query"] | None = None,
    last: Int[Tensor, "#batch #head #query"] | None = None,
    allowed: Bool[Tensor, "#batch #head #query #key"] | None = None,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
    diagonals: Float[Tensor, "#batch #head diagonal"] | None = None,
    exps: Float[Tensor, "batch key_head key dim"] | None = None,
) -> tuple[Float[Tensor, "batch head query value_dim"], Float[Tensor, "batch head query"]]:
    """Read the memory with additive scores, storing neither weights nor hidden units.

        score[i,j] = v . tanh(query[i] + keys[j]) + bias[i,j] + diagonals[j - i + M - 1]
        out[i]     = sum_j softmax_j(score)[i,j] values[j]        lse[i] = log sum_j e^score[i,j]

    Query head h reads key head h // (head / key_head). Row i may read the keys first[i] <= j <
    last[i] (clipped to the keys) for which `allowed` is True and the bias is not -inf; loops run
    over these alone. A fully masked row gives out = 0, lse = -inf and no gradient.

    exps = e^{2 keys}, given only if no |key| exceeds `MAX_EXP_INPUT`, make a step on a CPU faster
    (see `is_step`), as a decoder reads the same keys at every step. Otherwise they are ignored.

    Gradients: of query, keys, values, v, bias and diagonals, once; lse is not differentiable.
    Precision: inputs of half precision are computed in float32; lse is float32, or float64 for
    float64 inputs.
    Cost:      time O(query * key * (dim + value_dim)) over allowed pairs, memory
               O((query + key) * dim).
    Raises:    ValueError for shapes that do not fit together, TypeError for dtypes that differ.
    Source:    bahdanau2015, appendix A.1.2; milakov2018 (online softmax).
    """
    _check(query, keys, values, v)
    if exps is not None and exps.shape != keys.shape:
        raise ValueError(f"exps must be {tuple(keys.shape)}, as keys, got {tuple(exps.shape)}")
    _check_rules(query, keys, first, last, allowed, bias, diagonals)
    inputs = query, keys, values, v, first, last, allowed, bias, diagonals, exps
    if not _can_skip_dispatcher(query):
        return _Read.apply(*inputs)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return _DirectRead.apply(*inputs)
    return _load_kernel(query.device.type)[0](*inputs)


def is_step(query: Tensor, keys: Tensor) -> bool:
    """Return True if too few queries read the keys for tables of exponentials to pay off."""
    return query.shape[2] * query.shape[1] <= _MAX_STEP_QUERIES * keys.shape[1]


def _check(query: Tensor, keys: Tensor, values: Tensor, v: Tensor) -> None:
    """Check the shapes and dtypes, which the loops do not check."""
    for name, x in (("keys", keys), ("values", values), ("v", v)):
        if x.dtype != query.dtype:
            raise TypeError(f"{name} must have the dtype of the query {query.dtype}, got {x.dtype}")
    batch, heads, _, dim = query.shape
    key_heads, num_keys = keys.shape[1:3]
    if keys.shape != (batch, key_heads, num_keys, dim) or values.shape[:3] != keys.shape[:3]:
        raise ValueError(
            f"keys and values must have batch {batch}, and keys size {dim}, as the query, got "
            f"{tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if key_heads == 0 or heads % key_heads != 0:
        raise ValueError(f"query heads must be a multiple of {key_heads} key heads, got {heads}")
    if v.dim() != 2 or v.shape[0] not in (1, heads) or v.shape[1] != dim:
        raise ValueError(f"v must have shape (1 or {heads}, {dim}), got {tuple(v.shape)}")


def _check_rules(query: Tensor, keys: Tensor, *rules: Tensor | None) -> None:
    batch, heads, num_queries, _ = query.shape
    num_keys = keys.shape[2]
    pairs = (batch, heads, num_queries, num_keys)
    diagonals = (batch, heads, max(0, num_queries + num_keys - 1))
    names = ("first", "last", "allowed", "bias", "diagonals")
    sizes = (pairs[:3], pairs[:3], pairs, pairs, diagonals)
    for name, rule, size in zip(names, rules, sizes, strict=True):
        if rule is None:
            continue
        fits = rule.dim() == len(size)
        fits = fits and all(x in (1, y) for x, y in zip(rule.shape, size, strict=True))
        if not fits or (name == "diagonals" and rule.shape[2] != size[2]):
            raise ValueError(
                f"{name} must broadcast to {size} axis by axis, got shape {tuple(rule.shape)}"
            )


def _can_skip_dispatcher(query: Tensor) -> bool:
    """Return True if nothing intercepts operator calls, so that the dispatcher can be skipped."""
    return type(query) in (Tensor, torch.nn.Parameter) and is_eager()


def unsupported_reason(device: str) -> str | None:
    """Return the reason why the operator cannot run on this type of device, or None if it can."""
    return _UNSUPPORTED.get(device, f"device {device} is not supported")


def _find_reason(device: str) -> str | None:
    if find(f"additive.{device}") is not None:
        return None
    reason = dispatch.unsupported_reason() or "triton is not installed"
    return f"it needs compiled code, but {reason}"


# Made once: torch.compile cannot trace a search for packages.
_UNSUPPORTED = {device: _find_reason(device) for device in _DEVICES}


@functools.cache
def _load_kernel(device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    forward, backward = find(f"additive.{device}"), find(f"additive.{device}.backward")
    if forward is None or backward is None:
        raise UserError(
            f"additive_read: {unsupported_reason(device)}; use attend(..., kernel='reference')"
        )
    return forward.run, backward.run


def _read(device: str, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    return _load_kernel(device)[0](*inputs)


def _backward(device: str, out: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    gradients = _load_kernel(device)[1](out, *inputs[:-1], tuple(inputs[-1]))
    return tuple(out.new_empty(0) if gradient is None else gradient for gradient in gradients)


for _device in _DEVICES:
    torch.library.impl(_READ, _device.upper())(functools.partial(_read, _device))
    torch.library.impl(_BACKWARD, _device.upper())(functools.partial(_backward, _device))


@torch.library.register_fake(_READ)
def _fake_read(
    query: Tensor, keys: Tensor, values: Tensor, v: Tensor, *rules: Tensor | None
) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty(*query.shape[:3], values.shape[3])
    return out, query.new_empty(query.shape[:3], dtype=wide)


@torch.library.register_fake(_BACKWARD)
def _fake_backward(grad_out: Tensor, *inputs: Tensor | list[bool] | None) -> tuple[Tensor, ...]:
    *tensors, _, _, needs = inputs
    differentiable = [tensors[i] for i in _DIFFERENTIABLE]
    assert isinstance(needs, Sequence)
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format)
        if need and isinstance(x, Tensor)
        else grad_out.new_empty(0)
        for x, need in zip(differentiable, needs, strict=True)
    )


class _Read(torch.autograd.Function):
    """The operator with its gradients, also under vmap, as register_autograd has not."""

    generate_vmap_rule = True

    # Named arguments: torch.compile counts them to know that there is no `ctx`.
    @staticmethod
    def forward(query, keys, values, v, first, last, allowed, bias, diagonals, exps):
        rules = first, last, allowed, bias, diagonals
        return torch.ops.regard.additive_read(query, keys, values, v, *rules, exps)

    @staticmethod
    def setup_context(
        ctx, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx, grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad_out, _Backward.apply)


class _DirectRead(torch.autograd.Function):
    """The operator with its gradients, without the dispatcher, which costs least."""

    @staticmethod
    def forward(ctx, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        query = inputs[0]
        assert query is not None
        out, lse = _load_kernel(query.device.type)[0](*inputs)
        ctx.save_for_backward(*inputs, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx, grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad_out is None or torch.is_grad_enabled() or not _can_skip_dispatcher(grad_out):
            return _gradients(ctx, grad_out, _Backward.apply)
        return _gradients(ctx, grad_out, _load_kernel(grad_out.device.type)[1])


def _gradients(
    ctx, grad_out: Tensor | None, backward: Callable[..., Sequence]
) -> tuple[Tensor | None, ...]:
    gradients: list[Tensor | None] = [None] * 10
    if grad_out is not None:
        needs = [ctx.needs_input_grad[i] for i in _DIFFERENTIABLE]
        results = backward(grad_out, *ctx.saved_tensors, needs)
        for index, gradient, need in zip(_DIFFERENTIABLE, results, needs, strict=True):
            gradients[index] = gradient if need else None
    return tuple(gradients)


class _Backward(torch.autograd.Function):
    """The operator of the gradients; its own backward raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad, query, keys, values, v, first, last, allowed, bias, diagonals, exps, out, lse, needs
    ):
        inputs = query, keys, values, v, first, last, allowed, bias, diagonals, exps
        return torch.ops.regard.additive_read_backward(grad, *inputs, out, lse, needs)

    @staticmethod
    def setup_context(ctx, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple[None, ...]:
        raise RuntimeError("no second derivatives; use attend(..., kernel='reference')")


# Direct calls of the operator, in an exported program for example, have gradients too.
torch.library.register_autograd(_READ, _Read.backward, setup_context=_Read.setup_context)


# Copies under vmap become heads: each head may have its own queries, keys, v, masks and biases.
_HEAD_AXES = (1, 1, 1, 0, 1, 1, 1, 1, 1, 1)
_OF_MEMORY = (1, 2, 9)
"""Indices of keys, values and exps, which may have fewer heads than the query."""


def _copies(x: Tensor, dim: int | None) -> Tensor:
    """Return the copies on the first axis; one, if all share it."""
    return x.movedim(dim, 0) if isinstance(dim, int) else x[None]


def _fold(info, dims: Sequence, inputs: Sequence, axes: Sequence[int]) -> list[Tensor | None]:
    """Return the inputs with the heads of all copies, copy by copy, where they have heads."""
    heads, folded = _copies(inputs[0], dims[0]).shape[2], []
    for index, (x, dim, axis) in enumerate(zip(inputs, dims, axes, strict=True)):
        copies = None if x is None else _copies(x, dim)
        if copies is not None:
            shape = [info.batch_size, *copies.shape[1:]]
            shape[axis + 1] = -1 if index in _OF_MEMORY else heads
            copies = copies.expand(shape).movedim(0, axis).flatten(axis, axis + 1)
        folded.append(copies)
    return folded


def _read_copies(info, dims: Sequence, *inputs: Tensor | None) -> tuple[tuple, tuple]:
    results = torch.ops.regard.additive_read(*_fold(info, dims, inputs, _HEAD_AXES))
    return tuple(x.unflatten(1, (info.batch_size, -1)) for x in results), (1, 1)


def _backward_copies(info, dims: Sequence, *inputs: Any) -> tuple[tuple, tuple]:
    count, (grad, *tensors, needs) = info.batch_size, inputs
    folded = _fold(info, (*dims[1:13], dims[0]), (*tensors, grad), (*_HEAD_AXES, 1, 1, 1))
    results = torch.ops.regard.additive_read_backward(folded[-1], *folded[:-1], needs)
    gradients = [result.new_empty(count, 0) for result in results]  # of what needs none
    for number, index in enumerate(_DIFFERENTIABLE):
        if needs[number]:
            axis, size = _HEAD_AXES[index], _copies(tensors[index], dims[1 + index]).shape[1:]
            gradient = results[number].unflatten(axis, (count, -1)).movedim(axis, 0)
            gradients[number] = gradient.sum_to_size(count, *size)  # heads may share one
    return tuple(gradients), (0,) * len(results)


torch.library.register_vmap(_READ, _read_copies)
torch.library.register_vmap(_BACKWARD, _backward_copies)
