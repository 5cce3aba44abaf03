"""Additive attention on a CPU: hands tensors and threads to the compiled loops.

    score[i,j] = v . tanh(query[i] + keys[j]) + bias[i,j]    out[i] = softmax_j(score) values    lse[i] = logsumexp_j

This module is imported on the first use of the operator, and numba with it. The loops are compiled for float32 and for
float64, once a machine: they are cached on disk, beside the package or in the user's cache folder when that is
read-only. Half precision is computed in float32.

Threads are those that torch's own operators use (`threads`): the loops let go of the interpreter's lock, take tasks
from one counter, and a task writes only what is its own, so that results do not depend on which thread did what.
Memory beyond the results is O(keys dim) a thread, and for gradients O(keys (dim + value_dim)) a part of the query rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.kernels.additive_cpu_backward import backward_tasks
from regard.attention.kernels.additive_cpu_forward import forward_tasks
from regard.attention.kernels.additive_cpu_jobs import pack
from regard.attention.kernels.additive_cpu_loops import ROWS, constants
from regard.attention.kernels.additive_cpu_steps import backward_steps, forward_steps
from regard.attention.kernels.additive_op import is_step
from regard.attention.kernels.threads import side_by_side

_DIRECT_COST = 5
"""How much longer a triple takes without tables."""
_WORTH_A_THREAD = 1_000_000
"""Triples below which waking a second thread costs more than it saves."""
_CONSTANTS = {
    torch.float32: torch.from_numpy(constants(np.dtype(np.float32))),
    torch.float64: torch.from_numpy(constants(np.dtype(np.float64))),
}


def forward(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    v: Tensor,
    first: Tensor | None,
    last: Tensor | None,
    allowed: Tensor | None,
    bias: Tensor | None,
    diagonals: Tensor | None,
    exps: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The read and the log of the sum of e^score of each query; arguments and results as in `additive_read`."""
    wide = _wide(query.dtype)
    batch, heads, num_queries, _ = query.shape
    out = torch.empty(batch, heads, num_queries, values.shape[-1], dtype=wide)
    lse = torch.empty(batch, heads, num_queries, dtype=wide)
    threads, parts = _shares(query, keys, values)
    tasks = forward_steps if is_step(query, keys) else forward_tasks
    tabled = exps is not None and is_step(query, keys)
    arrays = [_array(x, wide) for x in (query, exps if tabled else keys, values, v)]
    rules, steps = _rules(wide, first, last, allowed, bias, diagonals)
    given = *arrays, _CONSTANTS[wide], *rules, out, lse
    sizes = *query.shape, *keys.shape[1:3], values.shape[3], v.shape[0]
    _run(tasks(wide), sizes, threads, parts, False, tabled, given, steps)
    return out.to(query.dtype), lse


def backward(
    grad_out: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    v: Tensor,
    first: Tensor | None,
    last: Tensor | None,
    allowed: Tensor | None,
    bias: Tensor | None,
    diagonals: Tensor | None,
    exps: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of query, keys, values, v, bias and diagonals: None where `needs` says no or there is no input."""
    wide = _wide(query.dtype)
    batch, heads, _, dim = query.shape
    threads, parts = _shares(query, keys, values)
    tasks = backward_steps if is_step(query, keys) else backward_tasks
    to_query = torch.empty(query.shape, dtype=wide)
    to_keys = torch.empty(parts, *keys.shape, dtype=wide)
    to_values = torch.empty(parts, *values.shape, dtype=wide) if needs[2] else torch.empty(0, 0, 0, 0, 0, dtype=wide)
    to_v = torch.empty(parts, batch, heads, dim, dtype=wide)
    to_bias, to_diagonals = _slots(bias, needs[4], query, threads), _slots(diagonals, needs[5], query, threads)
    if needs[4] and bias is not None:
        bias = bias.contiguous()  # its gradient is found at the same places
    if needs[5] and diagonals is not None:
        diagonals = diagonals.contiguous()
    tabled = exps is not None and is_step(query, keys)
    arrays = [_array(x, wide) for x in (query, exps if tabled else keys, values, v)]
    rules, steps = _rules(wide, first, last, allowed, bias, diagonals)
    grad_, out_, lse_ = (_array(x, wide) for x in (grad_out, out, lse))
    sums = to_query, to_keys, to_values, to_v, to_bias, to_diagonals
    in_order = to_bias.shape[0] > 1 or to_diagonals.shape[0] > 1
    given = *arrays, _CONSTANTS[wide], *rules, out_, lse_, grad_, *sums
    sizes = *query.shape, *keys.shape[1:3], values.shape[3], v.shape[0]
    _run(tasks(wide), sizes, threads, parts, in_order, tabled, given, steps)
    to_v = to_v.sum((0, 1))
    inputs = query, keys, values, v, bias, diagonals
    gradients = (
        to_query,
        _total(to_keys),
        _total(to_values),
        to_v if v.shape[0] == heads else to_v.sum(0, keepdim=True),
        _total(to_bias),
        _total(to_diagonals),
    )
    return tuple(
        gradient.view(x.shape).to(x.dtype) if need and x is not None else None
        for gradient, x, need in zip(gradients, inputs, needs, strict=True)
    )


def _slots(bias: Tensor | None, need: bool, query: Tensor, threads: int) -> Tensor:
    """Zeros for the gradient of a bias: a slot a thread where several tasks add to one number."""
    if bias is None or not need:
        return torch.empty(0, 0, dtype=_wide(query.dtype))
    shared = bias.shape[:3] != query.shape[:3]
    return torch.zeros(threads if shared else 1, bias.numel(), dtype=_wide(query.dtype))


def _total(parts: Tensor) -> Tensor:
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _array(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype).contiguous()


def _rules(dtype: torch.dtype, *rules: Tensor | None) -> tuple[list[Tensor | None], list[int]]:
    """Each rule as flat memory, and the steps of all: zero along axes of size one. Absent or empty rules are None."""
    flat: list[Tensor | None] = []
    steps: list[int] = []
    for rule, axes, kind in zip(
        rules, (3, 3, 4, 4, 3), (torch.int64, torch.int64, torch.bool, dtype, dtype), strict=True
    ):
        if rule is None or rule.numel() == 0:
            flat.append(None)
            steps += [0] * axes
            continue
        memory = rule.detach().to(kind)
        steps += [0 if size == 1 else step for size, step in zip(memory.shape, memory.stride(), strict=True)]
        span = 1 + sum((size - 1) * step for size, step in zip(memory.shape, memory.stride(), strict=True))
        flat.append(memory.as_strided((span,), (1,)))
    return flat, steps


def _shares(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """How many threads the read is worth, and into how many parts the query rows of one key head are cut."""
    batch, heads, num_queries, dim = query.shape
    places = batch * keys.shape[1]
    step = is_step(query, keys)
    work = batch * heads * num_queries * keys.shape[2] * (dim * (_DIRECT_COST if step else 1) + values.shape[3] // 2)
    threads = min(torch.get_num_threads(), 1 + work // _WORTH_A_THREAD)
    if threads == 1 or places == 0:
        return 1, 1
    if step:
        return min(threads, places), 1
    blocks = -(-num_queries // ROWS)
    parts = min(blocks, -(-2 * threads // places))
    return min(threads, places * parts), parts


def _run(
    work: Any,
    sizes: tuple[int, ...],
    threads: int,
    parts: int,
    in_order: bool,
    tabled: bool,
    arrays: Sequence[Tensor | None],
    steps: Sequence[int],
) -> None:
    """Let `threads` threads, this one among them, take tasks until none is left.

    In order: each takes every so many-th, so that what it adds up in its slot is the same in each run.
    """
    job = pack((threads if in_order else 0, parts, *sizes, threads, tabled), arrays, steps)
    side_by_side(work, job.ctypes.data, threads)
