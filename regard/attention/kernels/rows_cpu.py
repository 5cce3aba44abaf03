"""Rows of numbers in compiled loops on a CPU: widened, rounded, exponentials of them, and the softmax of short rows.

    exp(x) = 2^n exp(r),    n = round(x / ln 2),    |r| <= ln 2 / 2,    exp(r) by its Taylor polynomial of degree 6

    p = exp(s - max s) / sum exp(s - max s)         ds = p (dp - sum dp p)

Exponentials are taken of many short rows at once, so that vectors are full however short a row is. Loops compute in
float32; bfloat16 comes as the 16 bits that it is.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.attention.kernels import bits
from regard.attention.kernels.additive_cpu_compile import STAMP, compiled, compiled_in_order, worker
from regard.attention.kernels.additive_cpu_jobs import as_address, take_one
from regard.attention.kernels.bits import raised, rounded, widened
from regard.attention.kernels.threads import side_by_side

_SOURCES = Path(__file__), Path(bits.__file__)
ROWS_STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES) + STAMP.encode()).hexdigest()
"""Names this code, for whatever is compiled from it."""
_PLACES = 7
_COUNTER, _ROWS, _COLUMNS, _ROWS_A_TASK, _SCORES, _OUT, _GRAD = range(_PLACES)
_TASK = 1 << 12
"""Numbers of a task, about: they stay in the first cache."""
_WORTH_A_THREAD = 1 << 14
"""Numbers below which waking a second thread costs more than it saves."""


def softmax(scores: Tensor) -> Tensor:
    """p of each row (last axis) of contiguous scores."""
    out = torch.empty_like(scores)
    _run(_softmax_tasks, scores, (scores, out, out))
    return out


def softmax_gradient(gradient: Tensor, out: Tensor) -> Tensor:
    """ds from dp and p, both contiguous."""
    of_scores = torch.empty_like(out)
    _run(_gradient_tasks, out, (of_scores, out, gradient))
    return of_scores


def _run(tasks, like: Tensor, tensors: tuple[Tensor, ...]) -> None:
    columns = like.shape[-1]
    rows = like.numel() // columns
    step = max(1, _TASK // columns)
    table = np.array([0, rows, columns, step, *(tensor.data_ptr() for tensor in tensors)], np.int64)
    threads = min(torch.get_num_threads(), 1 + like.numel() // _WORTH_A_THREAD)
    side_by_side(tasks(like.dtype), table.ctypes.data, threads)


@compiled
def _read_float(values, source):
    for i in range(values.shape[0]):
        values[i] = source[i]


@compiled
def _read_bfloat(values, source):
    for i in range(values.shape[0]):
        values[i] = widened(source[i])


@compiled
def _write_bfloat(target, values):
    for i in range(values.shape[0]):
        target[i] = rounded(values[i])


def reader(dtype):
    """The loop that widens a row of this type to float32."""
    return _read_float if dtype == np.float32 else _read_bfloat


def writer(dtype):
    """The loop that rounds a row of float32 to this type."""
    return _write_float if dtype == np.float32 else _write_bfloat


@compiled
def _write_float(target, values):
    for i in range(values.shape[0]):
        target[i] = values[i]


@compiled_in_order
def exponentiate(values, most):
    """values = exp(values - most), exactly zero where that is below e^-87."""
    for i in range(values.shape[0]):
        x = values[i] - most
        # Adding 1.5 * 2^23 rounds, and leaves the integer in the last bits.
        shifted = x * np.float32(1.4426950408889634) + np.float32(12582912.0)
        n = shifted - np.float32(12582912.0)
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        y = np.float32(1 / 720)
        y = y * r + np.float32(1 / 120)
        y = y * r + np.float32(1 / 24)
        y = y * r + np.float32(1 / 6)
        y = y * r + np.float32(0.5)
        y = y * r + np.float32(1)
        y = raised(y * r + np.float32(1), shifted)
        values[i] = np.float32(0) if x < np.float32(-87.0) else y


def _make_softmax(dtype, stamp):
    read, write = reader(dtype), writer(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, columns, step = job[_ROWS], job[_COLUMNS], job[_ROWS_A_TASK]
        scores = carray(as_address(job[_SCORES]), (rows * columns,), dtype)
        out = carray(as_address(job[_OUT]), (rows * columns,), dtype)
        room = np.empty(step * columns, np.float32)
        task = take_one(job, _COUNTER)
        while task * step < rows:
            first, last = task * step * columns, min(rows, task * step + step) * columns
            values = room[: last - first]
            read(values, scores[first:last])
            for start in range(0, last - first, columns):
                row = values[start : start + columns]
                most = row[0]
                for i in range(columns):
                    most = row[i] if row[i] > most else most
                for i in range(columns):
                    row[i] -= most
            exponentiate(values, np.float32(0))
            for start in range(0, last - first, columns):
                row = values[start : start + columns]
                total = np.float32(0)
                for i in range(columns):
                    total += row[i]
                inverse = np.float32(1) / total
                for i in range(columns):
                    row[i] *= inverse
            write(out[first:last], values)
            task = take_one(job, _COUNTER)

    return tasks


def _make_gradient(dtype, stamp):
    read, write = reader(dtype), writer(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, columns, step = job[_ROWS], job[_COLUMNS], job[_ROWS_A_TASK]
        of_scores = carray(as_address(job[_SCORES]), (rows * columns,), dtype)
        out = carray(as_address(job[_OUT]), (rows * columns,), dtype)
        grad = carray(as_address(job[_GRAD]), (rows * columns,), dtype)
        room, other = np.empty(step * columns, np.float32), np.empty(step * columns, np.float32)
        task = take_one(job, _COUNTER)
        while task * step < rows:
            first, last = task * step * columns, min(rows, task * step + step) * columns
            shares, values = room[: last - first], other[: last - first]
            read(shares, out[first:last])
            read(values, grad[first:last])
            for start in range(0, last - first, columns):
                row, share = values[start : start + columns], shares[start : start + columns]
                total = np.float32(0)
                for i in range(columns):
                    total += row[i] * share[i]
                for i in range(columns):
                    row[i] = share[i] * (row[i] - total)
            write(of_scores[first:last], values)
            task = take_one(job, _COUNTER)

    return tasks


_softmax_tasks = worker(_make_softmax, ROWS_STAMP)
_gradient_tasks = worker(_make_gradient, ROWS_STAMP)
