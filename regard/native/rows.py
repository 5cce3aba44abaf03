"""Compiled CPU loops over rows: bfloat16, exponentials, and the softmax of many short rows.

    exp(x) = 2^n exp(r),    n = round(x / ln 2),    |r| <= ln 2 / 2,
    exp(r) by its Taylor polynomial of degree 6

    p = exp(s - max s) / sum exp(s - max s)         ds = p (dp - sum dp p)

Exponentials are computed for many short rows at once, so that vectors are full however short a row
is. Loops compute in float32; bfloat16 is passed as uint16.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.bits import round_to_bfloat16, scale_by_power_of_two, widen_bfloat16
from regard.native.compile import jit, jit_in_order, jit_worker
from regard.native.jobs import COUNTER, Address, array_at, fetch_and_increment, offsets, run_job


class SoftmaxJob(NamedTuple):
    """A softmax, or its gradient, which is written to `scores`."""

    numbers: int
    columns: int
    task_size: int
    scores: Address
    out: Address
    grad: Address = None


_AT = offsets(SoftmaxJob)
_TASK_SIZE = 1 << 12
"""Approximate number of elements of a task: they stay in the L1 cache."""
_MIN_WORK_PER_THREAD = 1 << 14
"""Number of elements below which waking a second thread costs more than it saves."""


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax p of each row (last axis)."""
    return _Softmax.apply(scores)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        scores = scores.contiguous()
        out = torch.empty_like(scores)
        _run(_softmax_tasks, scores, out)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients use torch's operators
            return out * (gradient - (gradient * out).sum(-1, keepdim=True))
        grad_scores = torch.empty_like(out)
        _run(_gradient_tasks, grad_scores, out, gradient.contiguous())
        return grad_scores


def _run(tasks, scores: Tensor, *others: Tensor) -> None:
    columns = scores.shape[-1]
    task_size = max(1, _TASK_SIZE // columns) * columns
    job = SoftmaxJob(scores.numel(), columns, task_size, scores, *others)
    run_job(tasks(scores.dtype), job, 1 + scores.numel() // _MIN_WORK_PER_THREAD)


@jit
def _read_float(values, source):
    for i in range(values.shape[0]):
        values[i] = source[i]


@jit
def _read_bfloat(values, source):
    for i in range(values.shape[0]):
        values[i] = widen_bfloat16(source[i])


@jit
def _write_float(target, values):
    for i in range(values.shape[0]):
        target[i] = values[i]


@jit
def _write_bfloat(target, values):
    for i in range(values.shape[0]):
        target[i] = round_to_bfloat16(values[i])


@jit
def add_to(values, others):
    """Add a row to another in place."""
    for i in range(values.shape[0]):
        values[i] += others[i]


def row_reader(dtype):
    """Return the loop that widens a row of this dtype to float32."""
    return _read_float if dtype == np.float32 else _read_bfloat


def row_writer(dtype):
    """Return the loop that rounds a row of float32 to this dtype."""
    return _write_float if dtype == np.float32 else _write_bfloat


@jit_in_order
def exponentiate(values, most):
    """Replace values by exp(values - most), exactly zero below e^-87."""
    for i in range(values.shape[0]):
        x = values[i] - most
        # Adding 1.5 * 2^23 rounds and leaves the integer in the last bits.
        shifted = x * np.float32(1.4426950408889634) + np.float32(12582912.0)
        n = shifted - np.float32(12582912.0)
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        y = np.float32(1 / 720)
        y = y * r + np.float32(1 / 120)
        y = y * r + np.float32(1 / 24)
        y = y * r + np.float32(1 / 6)
        y = y * r + np.float32(0.5)
        y = y * r + np.float32(1)
        y = scale_by_power_of_two(y * r + np.float32(1), shifted)
        values[i] = np.float32(0) if x < np.float32(-87.0) else y


@jit_worker
def _softmax_tasks(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        columns, step, numbers = job[_AT.columns], job[_AT.task_size], job[_AT.numbers]
        scores = array_at(job, _AT.scores, (numbers,), dtype)
        out = array_at(job, _AT.out, (numbers,), dtype)
        buffer = np.empty(step, np.float32)
        task = fetch_and_increment(job, COUNTER)
        while task * step < numbers:
            first, last = task * step, min(numbers, task * step + step)
            values = buffer[: last - first]
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
            task = fetch_and_increment(job, COUNTER)

    return tasks


@jit_worker
def _gradient_tasks(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        columns, step, numbers = job[_AT.columns], job[_AT.task_size], job[_AT.numbers]
        grad_scores = array_at(job, _AT.scores, (numbers,), dtype)
        out = array_at(job, _AT.out, (numbers,), dtype)
        grad = array_at(job, _AT.grad, (numbers,), dtype)
        buffers = np.empty((2, step), np.float32)
        task = fetch_and_increment(job, COUNTER)
        while task * step < numbers:
            first, last = task * step, min(numbers, task * step + step)
            weights, values = buffers[0, : last - first], buffers[1, : last - first]
            read(weights, out[first:last])
            read(values, grad[first:last])
            for start in range(0, last - first, columns):
                row, weight = values[start : start + columns], weights[start : start + columns]
                total = np.float32(0)
                for i in range(columns):
                    total += row[i] * weight[i]
                for i in range(columns):
                    row[i] = weight[i] * (row[i] - total)
            write(grad_scores[first:last], values)
            task = fetch_and_increment(job, COUNTER)

    return tasks
