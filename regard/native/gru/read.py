"""Additive attention of decoder steps on a CPU: one query per row and step, forward and backward.

    a_j = v . tanh(q + k_j)         p = softmax(a_1 .. a_length)          c = sum_j p_j values_j
    tanh(q + k_j) = 1 - 2 r_j       r_j = 1 / (1 + e^{2 q} e^{2 k_j})     e^{2 k_j} is computed once per sequence

    g_j = p_j (dc . values_j - dc . c)             gradient of a_j
    dq  = 4 v sum_j g_j r_j (1 - r_j)              at every step, for the state of the query
    dk_j = 4 v sum_t g_tj r_tj (1 - r_tj)          dvalues_j = sum_t p_tj dc_t          dv = sum_tj g_tj (1 - 2 r_tj)

The last line is computed after the loop, row by row, so that sums over steps stay in the cache instead of being read
and written at each step. |k| is at most `MAX_EXP_INPUT`, so that no product of exponentials is 0 times infinity. Each
row is computed separately, so that results do not depend on the number of threads.

Source: bahdanau2015, appendix A.1.2.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.additive.cpu.loops import exp_twice
from regard.native.compile import jit, jit_inline, jit_worker
from regard.native.gru.cells import run_rows
from regard.native.jobs import as_address, fetch_and_increment
from regard.native.rows import row_reader, row_writer

_MIN_WORK_PER_THREAD = 1 << 16
_LENGTH = 24
(
    _COUNTER, _ROWS, _KEYS, _DIM, _VALUE_DIM, _STEPS, _EXPS, _VALUES, _V, _LENGTHS, _QUERY, _QUERY_STRIDE, _EXP_QUERIES,
    _WEIGHTS, _OUT, _LOW, _GRAD, _EXTRA, _GRAD_SCORES, _GRAD_OUT, _GRAD_QUERY, _GRAD_KEYS, _GRAD_VALUES, _GRAD_V,
) = range(_LENGTH)  # fmt: skip
_ZERO, _ONE, _HALF, _TWO, _CLAMP = np.float32(0), np.float32(1), np.float32(0.5), np.float32(2), np.float32(43)


class ExponentialMemory(NamedTuple):
    """Memory of all steps; contiguous tensors."""

    keys: Tensor
    """e^{2 k} (rows, keys, dim)."""
    values: Tensor
    """(rows, keys, value_dim)"""
    v: Tensor
    """(dim)"""
    lengths: Tensor
    """Number of keys of each row (rows), int64."""


def read(
    query: Tensor, memory: ExponentialMemory, *, exp_query: Tensor, weights: Tensor, out: Tensor, low: Tensor | None
) -> None:
    """Write c (rows, value_dim) to `out`, its bfloat16 to `low`, e^{2 q} to `exp_query`, p (rows, keys) to `weights`.

    query: (rows, dim), with any row stride. All zeros for a length of 0.
    """
    job = _job(memory, 1)
    job[_QUERY], job[_QUERY_STRIDE] = query.data_ptr(), query.stride(0)
    job[_EXP_QUERIES], job[_WEIGHTS], job[_OUT] = exp_query.data_ptr(), weights.data_ptr(), out.data_ptr()
    job[_LOW] = 0 if low is None else low.data_ptr()
    _run(_forward(query.dtype), job, memory)


def read_gradients(
    gradient: Tensor | None,
    extra: Tensor | None,
    memory: ExponentialMemory,
    *,
    exp_query: Tensor,
    weights: Tensor,
    grad_scores: Tensor,
    grad_out: Tensor,
    grad_query: Tensor,
) -> None:
    """Write dc = gradient + extra to `grad_out`, g to `grad_scores`, dq to `grad_query`, with any row stride."""
    job = _job(memory, 1)
    job[_GRAD] = 0 if gradient is None else gradient.data_ptr()
    job[_EXTRA] = 0 if extra is None else extra.data_ptr()
    job[_EXP_QUERIES], job[_WEIGHTS], job[_GRAD_SCORES] = (
        exp_query.data_ptr(),
        weights.data_ptr(),
        grad_scores.data_ptr(),
    )
    job[_GRAD_OUT], job[_GRAD_QUERY], job[_QUERY_STRIDE] = (
        grad_out.data_ptr(),
        grad_query.data_ptr(),
        grad_query.stride(0),
    )
    _run(_backward(grad_query.dtype), job, memory)


def memory_gradients(
    exp_queries: Tensor, weights: Tensor, grad_scores: Tensor, grad_out: Tensor, memory: ExponentialMemory
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of keys, values and v from the tensors of all steps: exp_queries (steps, rows, dim) etc."""
    job = _job(memory, exp_queries.shape[0])
    grad_keys, grad_values = torch.zeros_like(memory.keys), torch.zeros_like(memory.values)
    grad_v = torch.zeros(memory.keys.shape[0], memory.keys.shape[2], dtype=torch.float32)
    job[_EXP_QUERIES], job[_WEIGHTS], job[_GRAD_SCORES] = (
        exp_queries.data_ptr(),
        weights.data_ptr(),
        grad_scores.data_ptr(),
    )
    job[_GRAD_OUT], job[_GRAD_KEYS] = grad_out.data_ptr(), grad_keys.data_ptr()
    job[_GRAD_VALUES], job[_GRAD_V] = grad_values.data_ptr(), grad_v.data_ptr()
    _run(_memory_gradients(torch.float32), job, memory)
    return grad_keys, grad_values, grad_v.sum(0)


def _run(function, job: np.ndarray, memory: ExponentialMemory) -> None:
    run_rows(function, job, memory.keys.shape[0], memory.keys.numel(), _MIN_WORK_PER_THREAD)


def _job(memory: ExponentialMemory, steps: int) -> np.ndarray:
    job = np.zeros(_LENGTH, np.int64)
    job[_ROWS : _STEPS + 1] = *memory.keys.shape, memory.values.shape[2], steps
    job[_EXPS], job[_VALUES], job[_V], job[_LENGTHS] = (x.data_ptr() for x in memory)
    return job


@jit_inline
def _array(job, at, shape):
    return carray(as_address(job[at]), shape, np.float32)


@jit
def _exponentiate(values):
    for d in range(values.shape[0]):
        x = values[d]
        x = _CLAMP if x > _CLAMP else x
        x = -_CLAMP if x < -_CLAMP else x
        values[d] = exp_twice(x)


@jit
def _score(exp_query, exps, v):
    """Return -2 sum_d v_d r_d: the score up to a constant that is the same for all keys."""
    total = _ZERO
    for d in range(v.shape[0]):
        total += v[d] / (_ONE + exp_query[d] * exps[d])
    return -_TWO * total


@jit
def _softmax(weights):
    most = weights[0]
    for j in range(weights.shape[0]):
        most = max(most, weights[j])
    total = _ZERO
    for j in range(weights.shape[0]):
        x = _HALF * (weights[j] - most)
        power = _ZERO if x < -_CLAMP else exp_twice(x)
        weights[j] = power
        total += power
    for j in range(weights.shape[0]):
        weights[j] /= total


@jit
def _add_scaled(out, x, weight):
    for d in range(out.shape[0]):
        out[d] += weight * x[d]


@jit
def _dot(a, b):
    total = _ZERO
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@jit
def _add_query_gradient(target, exp_query, exps, slope):
    """Add slope r (1 - r) to grad_query."""
    for d in range(target.shape[0]):
        r = _ONE / (_ONE + exp_query[d] * exps[d])
        target[d] += slope * (r - r * r)


@jit
def _add_key_gradient(grad_key, grad_v, exp_query, exps, slope):
    """Add slope r (1 - r) to grad_key and subtract 2 slope r from grad_v."""
    twice = _TWO * slope
    for d in range(grad_key.shape[0]):
        r = _ONE / (_ONE + exp_query[d] * exps[d])
        grad_key[d] += slope * (r - r * r)
        grad_v[d] -= twice * r


@jit
def _scale(x, v):
    for d in range(x.shape[0]):
        x[d] *= (_TWO + _TWO) * v[d]


def _make_forward(dtype, stamp):
    widen, write = row_reader(dtype), row_writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        _ = stamp
        job = carray(address, (_LENGTH,), np.int64)
        rows, keys, dim, value_dim = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM]
        exps, values = _array(job, _EXPS, (rows, keys, dim)), _array(job, _VALUES, (rows, keys, value_dim))
        v, exp_queries, weights = (
            _array(job, _V, (dim,)),
            _array(job, _EXP_QUERIES, (rows, dim)),
            _array(job, _WEIGHTS, (rows, keys)),
        )
        out, lengths = _array(job, _OUT, (rows, value_dim)), carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        row = fetch_and_increment(job, _COUNTER)
        while row < rows:
            exp_query, weight, target, length = exp_queries[row], weights[row], out[row], lengths[row]
            widen(exp_query, carray(as_address(job[_QUERY] + row * job[_QUERY_STRIDE] * size), (dim,), dtype))
            _exponentiate(exp_query)
            target[:] = 0
            weight[length:] = 0
            if length > 0:
                for j in range(length):
                    weight[j] = _score(exp_query, exps[row, j], v)
                _softmax(weight[:length])
                for j in range(length):
                    _add_scaled(target, values[row, j], weight[j])
            if job[_LOW] != 0:
                write(carray(as_address(job[_LOW] + row * value_dim * size), (value_dim,), dtype), target)
            row = fetch_and_increment(job, _COUNTER)

    return tasks


def _make_backward(dtype, stamp):
    widen, write = row_reader(dtype), row_writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        _ = stamp
        job = carray(address, (_LENGTH,), np.int64)
        rows, keys, dim, value_dim = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM]
        exps, values = _array(job, _EXPS, (rows, keys, dim)), _array(job, _VALUES, (rows, keys, value_dim))
        v, exp_queries, weights = (
            _array(job, _V, (dim,)),
            _array(job, _EXP_QUERIES, (rows, dim)),
            _array(job, _WEIGHTS, (rows, keys)),
        )
        grads, grad_scores = _array(job, _GRAD, (rows, value_dim)), _array(job, _GRAD_SCORES, (rows, keys))
        grad_out, lengths = (
            _array(job, _GRAD_OUT, (rows, value_dim)),
            carray(as_address(job[_LENGTHS]), (rows,), np.int64),
        )
        grad_query = np.empty(dim, np.float32)
        row = fetch_and_increment(job, _COUNTER)
        while row < rows:
            exp_query, weight, slope, target, length = (
                exp_queries[row],
                weights[row],
                grad_scores[row],
                grad_out[row],
                lengths[row],
            )
            if job[_EXTRA] != 0:
                widen(target, carray(as_address(job[_EXTRA] + row * value_dim * size), (value_dim,), dtype))
            else:
                target[:] = 0
            if job[_GRAD] != 0:
                _add_scaled(target, grads[row], _ONE)
            grad_query[:] = 0
            slope[length:] = 0
            total = _ZERO
            for j in range(length):
                slope[j] = _dot(target, values[row, j])
                total += slope[j] * weight[j]
            for j in range(length):
                slope[j] = weight[j] * (slope[j] - total)
                _add_query_gradient(grad_query, exp_query, exps[row, j], slope[j])
            _scale(grad_query, v)
            write(carray(as_address(job[_GRAD_QUERY] + row * job[_QUERY_STRIDE] * size), (dim,), dtype), grad_query)
            row = fetch_and_increment(job, _COUNTER)

    return tasks


def _make_memory_gradients(dtype, stamp):
    def tasks(address):
        _ = stamp
        job = carray(address, (_LENGTH,), np.int64)
        rows, keys, dim, value_dim, steps = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM], job[_STEPS]
        exps, v = _array(job, _EXPS, (rows, keys, dim)), _array(job, _V, (dim,))
        exp_queries, weights = _array(job, _EXP_QUERIES, (steps, rows, dim)), _array(job, _WEIGHTS, (steps, rows, keys))
        grad_scores, grad_out = (
            _array(job, _GRAD_SCORES, (steps, rows, keys)),
            _array(job, _GRAD_OUT, (steps, rows, value_dim)),
        )
        grad_keys, grad_values = (
            _array(job, _GRAD_KEYS, (rows, keys, dim)),
            _array(job, _GRAD_VALUES, (rows, keys, value_dim)),
        )
        grad_v, lengths = _array(job, _GRAD_V, (rows, dim)), carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        row = fetch_and_increment(job, _COUNTER)
        while row < rows:
            length, target = lengths[row], grad_v[row]
            for t in range(steps):
                total = _ZERO
                for j in range(length):
                    slope = grad_scores[t, row, j]
                    total += slope
                    _add_key_gradient(grad_keys[row, j], target, exp_queries[t, row], exps[row, j], slope)
                    _add_scaled(grad_values[row, j], grad_out[t, row], weights[t, row, j])
                for d in range(dim):
                    target[d] += total
            for j in range(length):
                _scale(grad_keys[row, j], v)
            row = fetch_and_increment(job, _COUNTER)

    return tasks


_forward = jit_worker(_make_forward)
_backward = jit_worker(_make_backward)
_memory_gradients = jit_worker(_make_memory_gradients)
