"""Additive attention on a CPU: hands tensors and threads to the compiled loops.

    score[i,j] = v . tanh(query[i] + keys[j]) + bias[i,j]    out[i] = softmax_j(score) values    lse[i] = logsumexp_j

This module is imported on the first use of the operator, and numba with it. The loops are compiled for float32 and for
float64, once a machine: they are cached on disk, beside the package or in the user's cache folder when that is
read-only. Half precision is computed in float32.

Threads are those that torch's own operators use (`threads`): the loops let go of the interpreter's lock, take tasks
from one counter, and a task writes only what is its own, so that results do not depend on which thread did what.
Memory beyond the results is O(keys dim) a thread, and for gradients O(keys (dim + value_dim)) a part of the query rows.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.attention.kernels.additive_cpu_backward import backward_tasks
from regard.attention.kernels.additive_cpu_forward import forward_tasks
from regard.attention.kernels.additive_cpu_loops import ROWS, constants
from regard.attention.kernels.additive_cpu_steps import backward_steps, forward_steps
from regard.attention.kernels.threads import side_by_side

__all__ = ["backward", "forward"]

_FEW = 4
"""Queries that read the same keys, up to which the loops of `additive_cpu_steps` are faster."""
_DIRECT_COST = 5
"""How much longer a triple takes without tables."""
_WORTH_A_THREAD = 1_000_000
"""Triples below which waking a second thread costs more than it saves."""
_CONSTANTS = {np.dtype(kind): constants(np.dtype(kind)) for kind in (np.float32, np.float64)}


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
) -> tuple[Tensor, Tensor]:
    """The read and the log of the sum of e^score of each query; arguments and results as in `additive_read`."""
    wide = _wide(query.dtype)
    batch, heads, num_queries, _ = query.shape
    out = torch.empty(batch, heads, num_queries, values.shape[-1], dtype=wide)
    lse = torch.empty(batch, heads, num_queries, dtype=wide)
    threads, parts = _shares(query, keys, values)
    tasks = forward_steps if _is_step(query, keys) else forward_tasks
    arrays = [_array(x, wide) for x in (query, keys, values, v)]
    rules = _rules(wide, first, last, allowed, bias, diagonals)
    arguments = (*arrays, *rules, _CONSTANTS[arrays[0].dtype], out.numpy(), lse.numpy())
    _run(tasks, threads, parts, False, *arguments)
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
    out: Tensor,
    lse: Tensor,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of query, keys, values, v, bias and diagonals: None where `needs` says no or there is no input."""
    wide = _wide(query.dtype)
    batch, heads, _, dim = query.shape
    threads, parts = _shares(query, keys, values)
    tasks = backward_steps if _is_step(query, keys) else backward_tasks
    to_query = torch.empty(query.shape, dtype=wide)
    to_keys = torch.empty(parts, *keys.shape, dtype=wide)
    to_values = torch.empty(parts, *values.shape, dtype=wide) if needs[2] else torch.empty(0, 0, 0, 0, 0, dtype=wide)
    to_v = torch.empty(parts, batch, heads, dim, dtype=wide)
    to_bias, to_diagonals = _slots(bias, needs[4], query, threads), _slots(diagonals, needs[5], query, threads)
    if needs[4] and bias is not None:
        bias = bias.contiguous()  # its gradient is found at the same places
    if needs[5] and diagonals is not None:
        diagonals = diagonals.contiguous()
    arrays = [_array(x, wide) for x in (query, keys, values, v)]
    rules = _rules(wide, first, last, allowed, bias, diagonals)
    given = [_array(x, wide) for x in (grad_out, out, lse)]
    sums = [x.numpy() for x in (to_query, to_keys, to_values, to_v, to_bias, to_diagonals)]
    in_order = to_bias.shape[0] > 1 or to_diagonals.shape[0] > 1
    _run(tasks, threads, parts, in_order, *arrays, *rules, _CONSTANTS[arrays[0].dtype], *given, *sums)
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


def _array(x: Tensor, dtype: torch.dtype) -> np.ndarray:
    return x.detach().to(dtype).contiguous().numpy()


def _rules(dtype: torch.dtype, *rules: Tensor | None) -> list:
    """Each rule as a flat array and its steps, in the order of the loops' arguments."""
    first, last, allowed, bias, diagonals = rules
    arguments: list = []
    for rule, axes, kind in (
        (first, 3, torch.int64),
        (last, 3, torch.int64),
        (allowed, 4, torch.bool),
        (bias, 4, dtype),
        (diagonals, 3, dtype),
    ):
        arguments += _flat(rule, axes, kind)
    return arguments


def _flat(x: Tensor | None, axes: int, dtype: torch.dtype) -> tuple[np.ndarray, tuple[int, ...]]:
    """The memory that x spans, and its steps: zero along axes of size one. Absent or empty: size zero."""
    if x is None or x.numel() == 0:
        return np.empty(0, _NUMPY[dtype]), (0,) * axes
    x = x.detach().to(dtype)
    steps = tuple(0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True))
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=True))
    return x.as_strided((span,), (1,)).numpy(), steps


_NUMPY = {torch.int64: np.int64, torch.bool: np.bool_, torch.float32: np.float32, torch.float64: np.float64}


def _is_step(query: Tensor, keys: Tensor) -> bool:
    """Whether so few queries read the same keys that tables of exponentials do not pay."""
    return query.shape[2] * query.shape[1] <= _FEW * keys.shape[1]


def _shares(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """How many threads the read is worth, and into how many parts the query rows of one key head are cut."""
    batch, heads, num_queries, dim = query.shape
    places = batch * keys.shape[1]
    is_step = _is_step(query, keys)
    work = batch * heads * num_queries * keys.shape[2] * (dim * (_DIRECT_COST if is_step else 1) + values.shape[3] // 2)
    threads = min(torch.get_num_threads(), 1 + work // _WORTH_A_THREAD)
    if threads == 1 or places == 0:
        return 1, 1
    if is_step:
        return min(threads, places), 1
    blocks = -(-num_queries // ROWS)
    parts = min(blocks, -(-2 * threads // places))
    return min(threads, places * parts), parts


def _run(tasks: Callable[..., None], threads: int, parts: int, in_order: bool, *arguments: object) -> None:
    """Let `threads` threads, this one among them, take tasks until none is left.

    In order: each takes every so many-th, so that what it adds up in its slot is the same in each run.
    """
    if threads == 1:
        return tasks(np.zeros(1, np.int64), 1, 0, parts, *arguments)
    step = threads if in_order else 1
    counters = [np.full(1, i, np.int64) for i in range(threads)] if in_order else [np.zeros(1, np.int64)] * threads
    slots = iter(range(threads))

    def work() -> None:
        slot = next(slots)
        tasks(counters[slot], step, slot, parts, *arguments)

    side_by_side(work, threads)
