"""Dropout, addition and layer norm in one pass over memory, on a CPU: the compiled loops.

    s = x + m f        y = w (s - mean s) / sqrt(var s + eps) + b        m_i = 0 with probability p, else 1 / (1 - p)

The random bits of m are a function of a seed and of an element's place: SplitMix64, of which each 64 bits serve four
elements. So nothing of m is stored, gradients draw the same bits again, and threads need not agree on an order. s is
not stored either: from x and f it is soon made again. Sums over rows are taken rows of a task first, tasks in order,
so that they do not depend on the number of threads.

f may be float32 or bfloat16, which comes as its 16 bits; all else is float32. y comes in bfloat16, too, if wanted.

Source: steele2014 (SplitMix64); ba2016 (layer norm).
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_jobs import as_address, take_one
from regard.attention.kernels.bits import widened
from regard.attention.kernels.rows_cpu import ROWS_STAMP, reader, writer
from regard.attention.kernels.threads import side_by_side

_STAMP = hashlib.sha256(Path(__file__).read_bytes() + ROWS_STAMP.encode()).hexdigest()
_TASK = 1 << 14
"""Elements of a task, about."""
_WORTH_A_THREAD = 1 << 15
"""Elements below which waking a second thread costs more than it saves."""
_PLACES = 16
(
    _COUNTER, _ROWS, _DIM, _ROWS_A_TASK, _SEED, _THRESHOLD, _EPSILON,
    _X, _F, _OUT, _STATS, _WEIGHT, _BIAS, _GRAD, _TO_F, _ROUNDED,
) = range(_PLACES)  # fmt: skip


def drop(f: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
    """m f, as float32 or bfloat16."""
    out = torch.empty(f.shape, dtype=dtype)
    tasks = _drop_tasks if f.dtype == dtype else _casting_drop_tasks
    _run(tasks(dtype), f, seed, threshold, {_F: f, _OUT: out})
    return out


def add(x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
    """x + m f."""
    out = torch.empty_like(x)
    _run(_add_tasks(f.dtype), x, seed, threshold, {_X: x, _F: f, _OUT: out})
    return out


def add_norm(
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    seed: int,
    threshold: int,
    *,
    rounds: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """y, of each row the mean and one over the deviation of s, and y in bfloat16 if `rounds`."""
    out, stats = torch.empty_like(x), torch.empty(x.numel() // x.shape[-1], 2, dtype=torch.float32)
    rounded = torch.empty_like(x, dtype=torch.bfloat16) if rounds else None
    tensors = {_X: x, _F: f, _OUT: out, _STATS: stats, _WEIGHT: weight, _BIAS: bias, _ROUNDED: rounded}
    _run(_norm_tasks(f.dtype), x, seed, threshold, tensors, epsilon)
    return out, stats, rounded


def add_norm_gradients(
    gradients: tuple[Tensor | None, Tensor | None],
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    stats: Tensor,
    seed: int,
    threshold: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, f, weight and bias, from that of y and that of y in bfloat16; either may be missing."""
    to_x, to_f = torch.empty_like(x), torch.empty_like(f)
    sums = torch.zeros(_tasks(x), 2, x.shape[-1], dtype=torch.float32)
    tensors = {_X: x, _F: f, _OUT: to_x, _STATS: stats, _WEIGHT: weight, _BIAS: sums, _TO_F: to_f}
    tensors |= {_GRAD: gradients[0], _ROUNDED: gradients[1]}
    _run(_norm_gradient_tasks(f.dtype), x, seed, threshold, tensors)
    to_weight, to_bias = sums.sum(0)
    return to_x, to_f, to_weight, to_bias


def _rows_a_task(x: Tensor) -> int:
    return max(1, _TASK // max(1, x.shape[-1]))


def _tasks(x: Tensor) -> int:
    return -(-(x.numel() // x.shape[-1]) // _rows_a_task(x))


def _run(work, x: Tensor, seed: int, threshold: int, tensors: dict[int, Tensor | None], epsilon: float = 0.0) -> None:
    if x.numel() == 0:
        return
    table = np.zeros(_PLACES, np.int64)
    table[_ROWS:_EPSILON] = x.numel() // x.shape[-1], x.shape[-1], _rows_a_task(x), seed, threshold
    table[_EPSILON:_X].view(np.float64)[0] = epsilon
    for place, tensor in tensors.items():
        table[place] = 0 if tensor is None else tensor.data_ptr()
    threads = min(torch.get_num_threads(), 1 + x.numel() // _WORTH_A_THREAD, _tasks(x))
    side_by_side(work, table.ctypes.data, threads)


@pasted
def _array(job, at, shape, dtype):
    return carray(as_address(job[at]), shape, dtype)


@pasted
def _begin(address):
    """The job, its first task, and room for the random bits and the values of a row."""
    job = carray(address, (_PLACES,), np.int64)
    dim = job[_DIM]
    return job, take_one(job, _COUNTER), np.empty((dim + 3) // 4, np.uint64), np.empty(dim, np.float32)


@compiled
def _draw(bits, seed, row):
    first = np.uint64(row) * np.uint64(bits.shape[0])
    for i in range(bits.shape[0]):
        z = np.uint64(seed) + (first + np.uint64(i) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits[i] = z ^ (z >> np.uint64(31))


@compiled
def _multiply_mask(values, bits, seed, row, threshold):
    """values *= m, for this row."""
    if threshold == 0:
        return
    _draw(bits, seed, row)
    few = bits.view(np.uint16)
    scale = np.float32(65536.0 / (65536 - threshold))
    least = np.uint16(threshold)
    for i in range(values.shape[0]):
        values[i] = values[i] * scale if few[i] >= least else np.float32(0)


def _make_drop(dtype, stamp, source_dtype=None):
    source_dtype = dtype if source_dtype is None else source_dtype
    read, write = reader(source_dtype), writer(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job, task, bits, values = _begin(address)
        rows, dim, step = job[_ROWS], job[_DIM], job[_ROWS_A_TASK]
        f, out = _array(job, _F, (rows, dim), source_dtype), _array(job, _OUT, (rows, dim), dtype)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _multiply_mask(values, bits, job[_SEED], row, job[_THRESHOLD])
                write(out[row], values)
            task = take_one(job, _COUNTER)

    return tasks


def _make_casting_drop(dtype, stamp):
    return _make_drop(dtype, stamp, np.uint16 if dtype == np.float32 else np.float32)


def _make_add(dtype, stamp):
    read = reader(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job, task, bits, values = _begin(address)
        rows, dim, step = job[_ROWS], job[_DIM], job[_ROWS_A_TASK]
        x, f = _array(job, _X, (rows, dim), np.float32), _array(job, _F, (rows, dim), dtype)
        out = _array(job, _OUT, (rows, dim), np.float32)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _multiply_mask(values, bits, job[_SEED], row, job[_THRESHOLD])
                given, made = x[row], out[row]
                for i in range(dim):
                    made[i] = given[i] + values[i]
            task = take_one(job, _COUNTER)

    return tasks


@compiled
def _moments(values):
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += values[i]
    mean = total / np.float32(values.shape[0])
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += (values[i] - mean) * (values[i] - mean)
    return mean, total / np.float32(values.shape[0])


def _make_norm(dtype, stamp):
    read, round_row = reader(dtype), writer(np.uint16)

    def tasks(address):
        stamp  # noqa: B018
        job, task, bits, values = _begin(address)
        rows, dim, step = job[_ROWS], job[_DIM], job[_ROWS_A_TASK]
        epsilon = job[_EPSILON:_X].view(np.float64)[0]
        x, f = _array(job, _X, (rows, dim), np.float32), _array(job, _F, (rows, dim), dtype)
        out, stats = _array(job, _OUT, (rows, dim), np.float32), _array(job, _STATS, (rows, 2), np.float32)
        weight, bias = _array(job, _WEIGHT, (dim,), np.float32), _array(job, _BIAS, (dim,), np.float32)
        rounded = _array(job, _ROUNDED, (rows, dim), np.uint16)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _multiply_mask(values, bits, job[_SEED], row, job[_THRESHOLD])
                given, made = x[row], out[row]
                for i in range(dim):
                    values[i] += given[i]
                mean, variance = _moments(values)
                inverse = np.float32(1.0 / np.sqrt(variance + epsilon))
                stats[row, 0], stats[row, 1] = mean, inverse
                for i in range(dim):
                    made[i] = (values[i] - mean) * inverse * weight[i] + bias[i]
                if job[_ROUNDED] != 0:
                    round_row(rounded[row], made)
            task = take_one(job, _COUNTER)

    return tasks


@compiled
def _norm_gradient(values, gradient, weight, mean, inverse, to_weight, to_bias, to_s):
    """Adds to the gradients of weight and bias; writes that of s, from s in `values`."""
    dim = values.shape[0]
    plain, along = np.float32(0), np.float32(0)
    for i in range(dim):
        normal = (values[i] - mean) * inverse
        values[i] = normal
        to_weight[i] += gradient[i] * normal
        to_bias[i] += gradient[i]
        inner = gradient[i] * weight[i]
        plain += inner
        along += inner * normal
    plain, along = plain / np.float32(dim), along / np.float32(dim)
    for i in range(dim):
        to_s[i] = inverse * (gradient[i] * weight[i] - plain - values[i] * along)


@compiled
def _add_rounded(values, source):
    for i in range(values.shape[0]):
        values[i] += widened(source[i])


def _make_norm_gradient(dtype, stamp):
    read, write = reader(dtype), writer(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job, task, bits, values = _begin(address)
        rows, dim, step = job[_ROWS], job[_DIM], job[_ROWS_A_TASK]
        x, f = _array(job, _X, (rows, dim), np.float32), _array(job, _F, (rows, dim), dtype)
        to_x, to_f = _array(job, _OUT, (rows, dim), np.float32), _array(job, _TO_F, (rows, dim), dtype)
        stats, grad = _array(job, _STATS, (rows, 2), np.float32), _array(job, _GRAD, (rows, dim), np.float32)
        weight, whole = _array(job, _WEIGHT, (dim,), np.float32), np.zeros(dim, np.float32)
        rounded = _array(job, _ROUNDED, (rows, dim), np.uint16)
        sums = _array(job, _BIAS, ((rows + step - 1) // step, 2, dim), np.float32)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                read(values, f[row])
                _multiply_mask(values, bits, job[_SEED], row, job[_THRESHOLD])
                given, made = x[row], to_x[row]
                for i in range(dim):
                    values[i] += given[i]
                mean, inverse = stats[row, 0], stats[row, 1]
                if job[_GRAD] != 0:
                    whole[:] = grad[row]
                else:
                    whole[:] = 0
                if job[_ROUNDED] != 0:
                    _add_rounded(whole, rounded[row])
                _norm_gradient(values, whole, weight, mean, inverse, sums[task, 0], sums[task, 1], made)
                for i in range(dim):
                    values[i] = made[i]
                _multiply_mask(values, bits, job[_SEED], row, job[_THRESHOLD])
                write(to_f[row], values)
            task = take_one(job, _COUNTER)

    return tasks


_drop_tasks = worker(_make_drop, _STAMP)
_casting_drop_tasks = worker(_make_casting_drop, _STAMP)
_add_tasks = worker(_make_add, _STAMP)
_norm_tasks = worker(_make_norm, _STAMP)
_norm_gradient_tasks = worker(_make_norm_gradient, _STAMP)
