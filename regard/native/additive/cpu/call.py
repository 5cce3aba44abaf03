"""Additive attention on a CPU: passes the tensors of `regard.ops.additive` to the compiled loops.

The loops compute in float32 or float64. Each task writes only its own outputs, so results do not
depend on the assignment of tasks to threads. Memory beyond the results is O(keys dim) per thread,
and for gradients O(keys (dim + value_dim)) per part of the query rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.native.additive.cpu.backward import backward_tasks
from regard.native.additive.cpu.forward import forward_tasks
from regard.native.additive.cpu.jobs import AdditiveJob
from regard.native.additive.cpu.loops import ROWS, constants
from regard.native.additive.cpu.steps import backward_steps, forward_steps
from regard.native.jobs import run_job
from regard.ops.additive import is_step

_DIRECT_COST = 5
"""Relative cost of a (query, key, hidden) triple without tables of exponentials."""
_MIN_WORK_PER_THREAD = 1_000_000
"""Number of triples below which waking a second thread costs more than it saves."""
_CONSTANTS = {
    torch.float32: torch.from_numpy(constants(np.dtype(np.float32))),
    torch.float64: torch.from_numpy(constants(np.dtype(np.float64))),
}


def forward(
    query: Tensor, keys: Tensor, values: Tensor, v: Tensor, *others: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the read and the log-sum-exp of the scores of each query.

    The arguments are those of `additive_read`.
    """
    *rules, exps = others
    dtype = _compute_dtype(query.dtype)
    out = query.new_empty(*query.shape[:3], values.shape[-1], dtype=dtype)
    lse = query.new_empty(query.shape[:3], dtype=dtype)
    threads, parts = _num_threads_and_parts(query, keys, values)
    tasks = forward_steps if is_step(query, keys) else forward_tasks
    _run(tasks(dtype), (query, keys, values, v), exps, rules, (0, parts, threads), (out, lse))
    return out.to(query.dtype), lse


def backward(grad_out: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
    """Return gradients of query, keys, values, v, bias, diagonals; None if absent or not needed.

    arguments: those of `forward`, its two results, and whether each gradient is needed.
    """
    *inputs, first, last, allowed, bias, diagonals, exps, out, lse, needs = arguments
    query, keys, values, v = inputs
    dtype = _compute_dtype(query.dtype)
    batch, heads, _, dim = query.shape
    threads, parts = _num_threads_and_parts(query, keys, values)
    grad_query = query.new_empty(query.shape, dtype=dtype)
    grad_keys = query.new_empty(parts, *keys.shape, dtype=dtype)
    grad_values = query.new_empty(parts if needs[2] else 0, *values.shape, dtype=dtype)
    grad_v = query.new_empty(parts, batch, heads, dim, dtype=dtype)
    grad_bias = _bias_gradient_slots(bias, needs[4], query, threads)
    grad_diagonals = _bias_gradient_slots(diagonals, needs[5], query, threads)
    if needs[4] and bias is not None:
        bias = bias.contiguous()  # its gradient uses the same offsets
    if needs[5] and diagonals is not None:
        diagonals = diagonals.contiguous()
    results = [_as_contiguous(x, dtype) for x in (out, lse, grad_out)]
    results += [grad_query, grad_keys, grad_values, grad_v, grad_bias, grad_diagonals]
    # In order, a thread takes every `threads`-th task: sums in its slot are the same in each run.
    in_order = grad_bias.shape[0] > 1 or grad_diagonals.shape[0] > 1
    step = threads if in_order else 0
    rules = first, last, allowed, bias, diagonals
    tasks = backward_steps if is_step(query, keys) else backward_tasks
    _run(tasks(dtype), inputs, exps, rules, (step, parts, threads), results)
    grad_v = grad_v.sum((0, 1))
    gradients = (
        grad_query,
        _sum_parts(grad_keys),
        _sum_parts(grad_values) if needs[2] else None,
        grad_v if v.shape[0] == heads else grad_v.sum(0, keepdim=True),
        _sum_parts(grad_bias),
        _sum_parts(grad_diagonals),
    )
    given = zip((query, keys, values, v, bias, diagonals), gradients, needs, strict=True)
    return tuple(
        None if x is None or gradient is None or not need else gradient.view(x.shape).to(x.dtype)
        for x, gradient, need in given
    )


def _run(
    tasks: Any, inputs: Sequence[Tensor], exps: Tensor | None, rules: Sequence[Tensor | None],
    schedule: tuple[int, int, int], results: Sequence[Tensor],
) -> None:  # fmt: skip
    """Run the tasks of a job, which keeps its tensors alive meanwhile.

    schedule: step, parts and threads.
    """
    query, keys, values, v = inputs
    step, parts, threads = schedule
    dtype = _compute_dtype(query.dtype)
    memory = keys if exps is None or not is_step(query, keys) else exps
    v = v.expand(query.shape[1], -1)
    arrays = [_as_contiguous(x, dtype) for x in (query, memory, values, v)]
    # Flat masks and biases, and all strides: zero along axes of size one.
    flat: list[Tensor | None] = []
    strides: list[int] = []
    kinds = torch.int64, torch.int64, torch.bool, dtype, dtype
    for rule, axes, kind in zip(rules, (3, 3, 4, 4, 3), kinds, strict=True):
        if rule is None or rule.numel() == 0:
            flat.append(None)
            strides += [0] * axes
            continue
        array = rule.detach().to(kind)
        span = 1
        for size, stride in zip(array.shape, array.stride(), strict=True):
            strides.append(0 if size == 1 else stride)
            span += (size - 1) * stride
        flat.append(array.as_strided((span,), (1,)))
    sizes = *query.shape, *keys.shape[1:3], values.shape[3]
    fields = (step, parts, *sizes, threads, memory is exps, strides, *arrays, _CONSTANTS[dtype])
    job = AdditiveJob(*fields, *flat, *results)  # pyrefly: ignore[bad-argument-count, bad-argument-type]
    run_job(tasks, job, threads)


def _bias_gradient_slots(bias: Tensor | None, need: bool, query: Tensor, threads: int) -> Tensor:
    """Return zeros for the gradient of a bias; one slot per thread if tasks share its numbers."""
    if bias is None or not need:
        return query.new_empty(0, 0, dtype=_compute_dtype(query.dtype))
    slots = threads if bias.shape[:3] != query.shape[:3] else 1
    return query.new_zeros(slots, bias.numel(), dtype=_compute_dtype(query.dtype))


def _sum_parts(parts: Tensor) -> Tensor:
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _as_contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype).contiguous()


def _num_threads_and_parts(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """Return the number of threads, and of parts into which rows of one key head are split."""
    batch, heads, num_queries, dim = query.shape
    pairs = batch * keys.shape[1]
    step = is_step(query, keys)
    cost = dim * (_DIRECT_COST if step else 1) + values.shape[3] // 2
    num_triples = batch * heads * num_queries * keys.shape[2] * cost
    threads = min(torch.get_num_threads(), 1 + num_triples // _MIN_WORK_PER_THREAD)
    if threads == 1 or pairs == 0:
        return 1, 1
    if step:
        return min(threads, pairs), 1
    blocks = -(-num_queries // ROWS)
    parts = min(blocks, -(-2 * threads // pairs))
    return min(threads, pairs * parts), parts
