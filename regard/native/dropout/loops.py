"""Compiled CPU loops of dropout, addition and layer norm in one pass over memory.

    s = x + m f        m_i = 0 with probability p, else 1 / (1 - p)
    y = w (s - mean s) / sqrt(var s + eps) + b

The random bits of m are a function of a seed and of the position of an element: SplitMix64, whose
64 bits serve four elements. So m is not stored, backward draws the same bits again, and threads may
run in any order. s is not stored either, as it is cheap to recompute from x and f. Sums over rows
are first taken within tasks, then over tasks in order, so that they do not depend on the number of
threads.

f may be float32 or bfloat16 (passed as uint16); everything else is float32. y is optionally
returned in bfloat16 too.

Source: steele2014 (SplitMix64); ba2016 (layer norm).
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.compile import jit, jit_inline, jit_worker
from regard.native.jobs import COUNTER, Address, array_at, fetch_and_increment, offsets, run_job
from regard.native.rows import row_reader, row_writer

_ELEMENTS_PER_TASK = 1 << 14
"""Approximate number of elements of a task."""
_MIN_WORK_PER_THREAD = 1 << 15
"""Number of elements below which waking a second thread costs more than it saves."""


class DropoutJob(NamedTuple):
    """Dropout, sum or norm of rows; or gradients: of x in `out`, else in `bias` (task, 2, dim)."""

    rows: int
    dim: int
    rows_per_task: int
    seed: int
    threshold: int
    epsilon: float = 0.0
    x: Address = None
    f: Address = None
    out: Address = None
    stats: Address = None
    weight: Address = None
    bias: Address = None
    grad: Address = None
    grad_f: Address = None
    rounded: Address = None


_AT = offsets(DropoutJob)


def drop(f: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
    """Return m f, as float32 or bfloat16."""
    out = torch.empty_like(f, dtype=dtype)
    tasks = _drop_tasks if f.dtype == dtype else _casting_drop_tasks
    _run(tasks(dtype), f, seed, threshold, f=f, out=out)
    return out


def add(x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
    """Return x + m f."""
    out = torch.empty_like(x)
    _run(_add_tasks(f.dtype), x, seed, threshold, x=x, f=f, out=out)
    return out


def add_norm(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor, epsilon: float, seed: int, threshold: int,
    *, with_bfloat16: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return y, mean and inverse standard deviation of each row of s, and y in bfloat16."""
    out, stats = torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1], 2)
    rounded = torch.empty_like(x, dtype=torch.bfloat16) if with_bfloat16 else None
    _run(
        _add_tasks(f.dtype), x, seed, threshold, epsilon=epsilon, x=x, f=f, out=out, stats=stats,
        weight=weight, bias=bias, rounded=rounded,
    )  # fmt: skip
    return out, stats, rounded


def add_norm_gradients(
    gradient: Tensor, x: Tensor, f: Tensor, weight: Tensor, stats: Tensor, seed: int, threshold: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of x, f, weight and bias from that of y."""
    grad_x, grad_f = torch.empty_like(x), torch.empty_like(f)
    sums = x.new_zeros(_num_tasks(x), 2, x.shape[-1])
    _run(
        _norm_gradient_tasks(f.dtype), x, seed, threshold, x=x, f=f, out=grad_x, stats=stats,
        weight=weight, bias=sums, grad=gradient, grad_f=grad_f,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(0)
    return grad_x, grad_f, grad_weight, grad_bias


def _rows_per_task(x: Tensor) -> int:
    return max(1, _ELEMENTS_PER_TASK // max(1, x.shape[-1]))


def _num_tasks(x: Tensor) -> int:
    return -(-(x.numel() // x.shape[-1]) // _rows_per_task(x))


def _run(function, like: Tensor, seed: int, threshold: int, **others: Any) -> None:
    if like.numel() == 0:
        return
    dim = like.shape[-1]
    job = DropoutJob(like.numel() // dim, dim, _rows_per_task(like), seed, threshold, **others)
    most = min(1 + like.numel() // _MIN_WORK_PER_THREAD, _num_tasks(like))
    run_job(function, job, most)


@jit_inline
def _open_job(address):
    """Return the job, its sizes, and buffers for the random bits and the values of a row."""
    job = carray(address, (_AT.length,), np.int64)
    bits, values = np.empty((job[_AT.dim] + 3) // 4, np.uint64), np.empty(job[_AT.dim], np.float32)
    return job, job[_AT.rows], job[_AT.dim], job[_AT.rows_per_task], bits, values


@jit
def _draw_bits(bits, seed, row):
    first = np.uint64(row) * np.uint64(bits.shape[0])
    for i in range(bits.shape[0]):
        z = np.uint64(seed) + (first + np.uint64(i) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits[i] = z ^ (z >> np.uint64(31))


@jit
def _apply_dropout(values, bits, seed, row, threshold):
    """Multiply the values of a row by m."""
    if threshold == 0:
        return
    _draw_bits(bits, seed, row)
    bits16 = bits.view(np.uint16)
    scale = np.float32(65536.0 / (65536 - threshold))
    bound = np.uint16(threshold)
    for i in range(values.shape[0]):
        values[i] = values[i] * scale if bits16[i] >= bound else np.float32(0)


def _make_drop(source_dtype, dtype):
    read, write = row_reader(source_dtype), row_writer(dtype)

    def tasks(address):
        job, rows, dim, step, bits, values = _open_job(address)
        f = array_at(job, _AT.f, (rows, dim), source_dtype)
        out = array_at(job, _AT.out, (rows, dim), dtype)
        task = fetch_and_increment(job, COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _apply_dropout(values, bits, job[_AT.seed], row, job[_AT.threshold])
                write(out[row], values)
            task = fetch_and_increment(job, COUNTER)

    return tasks


@jit_worker
def _drop_tasks(dtype):
    return _make_drop(dtype, dtype)


@jit_worker
def _casting_drop_tasks(dtype):
    return _make_drop(np.uint16 if dtype == np.float32 else np.float32, dtype)


@jit
def _moments(values):
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += values[i]
    mean = total / np.float32(values.shape[0])
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += (values[i] - mean) * (values[i] - mean)
    return mean, total / np.float32(values.shape[0])


@jit_worker
def _add_tasks(dtype):
    """The sum s; with a weight its norm."""
    read, round_row = row_reader(dtype), row_writer(np.uint16)

    def tasks(address):
        job, rows, dim, step, bits, values = _open_job(address)
        epsilon = job[_AT.epsilon : _AT.epsilon + 1].view(np.float64)[0]
        x = array_at(job, _AT.x, (rows, dim), np.float32)
        f = array_at(job, _AT.f, (rows, dim), dtype)
        out = array_at(job, _AT.out, (rows, dim), np.float32)
        stats = array_at(job, _AT.stats, (rows, 2), np.float32)
        weight = array_at(job, _AT.weight, (dim,), np.float32)
        bias = array_at(job, _AT.bias, (dim,), np.float32)
        rounded = array_at(job, _AT.rounded, (rows, dim), np.uint16)
        task = fetch_and_increment(job, COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _apply_dropout(values, bits, job[_AT.seed], row, job[_AT.threshold])
                x_row, out_row = x[row], out[row]
                if job[_AT.weight] == 0:
                    for i in range(dim):
                        out_row[i] = x_row[i] + values[i]
                    continue
                for i in range(dim):
                    values[i] += x_row[i]
                mean, variance = _moments(values)
                inverse = np.float32(1.0 / np.sqrt(variance + epsilon))
                stats[row, 0], stats[row, 1] = mean, inverse
                for i in range(dim):
                    out_row[i] = (values[i] - mean) * inverse * weight[i] + bias[i]
                if job[_AT.rounded] != 0:
                    round_row(rounded[row], out_row)
            task = fetch_and_increment(job, COUNTER)

    return tasks


@jit
def _norm_gradient(values, gradient, weight, mean, inverse, grad_weight, grad_bias, grad_s):
    """Add to the gradients of weight and bias and write that of s; `values` holds s."""
    dim = values.shape[0]
    total, weighted = np.float32(0), np.float32(0)
    for i in range(dim):
        normal = (values[i] - mean) * inverse
        values[i] = normal
        grad_weight[i] += gradient[i] * normal
        grad_bias[i] += gradient[i]
    for i in range(dim):
        inner = gradient[i] * weight[i]
        total += inner
        weighted += inner * values[i]
    total, weighted = total / np.float32(dim), weighted / np.float32(dim)
    for i in range(dim):
        grad_s[i] = inverse * (gradient[i] * weight[i] - total - values[i] * weighted)


@jit_worker
def _norm_gradient_tasks(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job, rows, dim, step, bits, values = _open_job(address)
        x = array_at(job, _AT.x, (rows, dim), np.float32)
        f = array_at(job, _AT.f, (rows, dim), dtype)
        grad_x = array_at(job, _AT.out, (rows, dim), np.float32)
        grad_f = array_at(job, _AT.grad_f, (rows, dim), dtype)
        stats = array_at(job, _AT.stats, (rows, 2), np.float32)
        grad = array_at(job, _AT.grad, (rows, dim), np.float32)
        weight = array_at(job, _AT.weight, (dim,), np.float32)
        sums = array_at(job, _AT.bias, ((rows + step - 1) // step, 2, dim), np.float32)
        task = fetch_and_increment(job, COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _apply_dropout(values, bits, job[_AT.seed], row, job[_AT.threshold])
                x_row, out_row = x[row], grad_x[row]
                for i in range(dim):
                    values[i] += x_row[i]
                mean, inverse = stats[row, 0], stats[row, 1]
                _norm_gradient(
                    values, grad[row], weight, mean, inverse, sums[task, 0], sums[task, 1], out_row
                )
                for i in range(dim):
                    values[i] = out_row[i]
                _apply_dropout(values, bits, job[_AT.seed], row, job[_AT.threshold])
                write(grad_f[row], values)
            task = fetch_and_increment(job, COUNTER)

    return tasks
