"""Additive attention of a decoder's steps on a CPU: one query a row and step, forwards and backwards.

    a_j = v . tanh(q + k_j)         p = softmax(a_1 .. a_length)          c = sum_j p_j values_j
    tanh(q + k_j) = 1 - 2 r_j       r_j = 1 / (1 + e^{2 q} e^{2 k_j})     e^{2 k_j} is made once a sequence

    g_j = p_j (dc . values_j - dc . c)             gradient of a_j
    dq  = 4 v sum_j g_j r_j (1 - r_j)              at every step, for the state that asked
    dk_j = 4 v sum_t g_tj r_tj (1 - r_tj)          dvalues_j = sum_t p_tj dc_t          dv = sum_tj g_tj (1 - 2 r_tj)

the last line behind the loop, row by row, so that sums over steps stay in the cache instead of being read and written
at each. Keys may be as large as `REACH`; then no product of exponentials is 0 times infinity. Each row is computed by
itself, so that nothing depends on the number of threads.

Source: bahdanau2015, appendix A.1.2.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_jobs import as_address, take_one
from regard.attention.kernels.additive_cpu_loops import exp_twice
from regard.attention.kernels.rows_cpu import ROWS_STAMP, reader, writer
from regard.layers.recurrent_cpu import share_out

_STAMP = hashlib.sha256(Path(__file__).read_bytes() + ROWS_STAMP.encode()).hexdigest()
_WORTH_A_THREAD = 1 << 16
_PLACES = 24
(
    _COUNTER, _ROWS, _KEYS, _DIM, _VALUE_DIM, _STEPS, _EXPS, _VALUES, _V, _LENGTHS, _QUERY, _QUERY_STEP, _TABLES,
    _SHARES, _OUT, _LOW, _GRAD, _EXTRA, _SLOPES, _TO_OUT, _TO_QUERY, _TO_KEYS, _TO_VALUES, _TO_V,
) = range(_PLACES)  # fmt: skip
_ZERO, _ONE, _HALF, _TWO, _CLAMP = np.float32(0), np.float32(1), np.float32(0.5), np.float32(2), np.float32(43)


class Exponentials(NamedTuple):
    """What all steps read; contiguous."""

    keys: Tensor
    """e^{2 k} (rows, keys, dim)."""
    values: Tensor
    """(rows, keys, value_dim)"""
    v: Tensor
    """(dim)"""
    lengths: Tensor
    """Keys of each row (rows), int64."""


def read(
    query: Tensor, memory: Exponentials, *, table: Tensor, shares: Tensor, out: Tensor, low: Tensor | None
) -> None:
    """Writes c (rows, value_dim) to `out`, its bfloat16 to `low`, e^{2 q} to `table`, p (rows, keys) to `shares`.

    query: (rows, dim), rows as far apart as they like. All zeros where a length is 0.
    """
    job = _job(memory, 1)
    job[_QUERY], job[_QUERY_STEP] = query.data_ptr(), query.stride(0)
    job[_TABLES], job[_SHARES], job[_OUT] = table.data_ptr(), shares.data_ptr(), out.data_ptr()
    job[_LOW] = 0 if low is None else low.data_ptr()
    _run(_forward(query.dtype), job, memory)


def read_gradients(
    gradient: Tensor | None,
    extra: Tensor | None,
    memory: Exponentials,
    *,
    table: Tensor,
    shares: Tensor,
    slopes: Tensor,
    to_out: Tensor,
    to_query: Tensor,
) -> None:
    """Writes dc = gradient + extra to `to_out`, g to `slopes`, dq to `to_query`, rows as far apart as they like."""
    job = _job(memory, 1)
    job[_GRAD] = 0 if gradient is None else gradient.data_ptr()
    job[_EXTRA] = 0 if extra is None else extra.data_ptr()
    job[_TABLES], job[_SHARES], job[_SLOPES] = table.data_ptr(), shares.data_ptr(), slopes.data_ptr()
    job[_TO_OUT], job[_TO_QUERY], job[_QUERY_STEP] = to_out.data_ptr(), to_query.data_ptr(), to_query.stride(0)
    _run(_backward(to_query.dtype), job, memory)


def memory_gradients(
    tables: Tensor, shares: Tensor, slopes: Tensor, to_out: Tensor, memory: Exponentials
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of keys, values and v from what all steps left: tables (steps, rows, dim) and so on."""
    job = _job(memory, tables.shape[0])
    to_keys, to_values = torch.zeros_like(memory.keys), torch.zeros_like(memory.values)
    to_v = torch.zeros(memory.keys.shape[0], memory.keys.shape[2], dtype=torch.float32)
    job[_TABLES], job[_SHARES], job[_SLOPES] = tables.data_ptr(), shares.data_ptr(), slopes.data_ptr()
    job[_TO_OUT], job[_TO_KEYS] = to_out.data_ptr(), to_keys.data_ptr()
    job[_TO_VALUES], job[_TO_V] = to_values.data_ptr(), to_v.data_ptr()
    _run(_gather(torch.float32), job, memory)
    return to_keys, to_values, to_v.sum(0)


def _run(work, job: np.ndarray, memory: Exponentials) -> None:
    share_out(work, job, memory.keys.shape[0], memory.keys.numel(), _WORTH_A_THREAD)


def _job(memory: Exponentials, steps: int) -> np.ndarray:
    job = np.zeros(_PLACES, np.int64)
    job[_ROWS : _STEPS + 1] = *memory.keys.shape, memory.values.shape[2], steps
    job[_EXPS], job[_VALUES], job[_V], job[_LENGTHS] = (x.data_ptr() for x in memory)
    return job


@pasted
def _array(job, at, shape):
    return carray(as_address(job[at]), shape, np.float32)


@compiled
def _exponentials(values):
    for d in range(values.shape[0]):
        x = values[d]
        x = _CLAMP if x > _CLAMP else x
        x = -_CLAMP if x < -_CLAMP else x
        values[d] = exp_twice(x)


@compiled
def _score(table, exps, v):
    """-2 sum_d v_d r_d: the score but for a number that is the same for all keys."""
    total = _ZERO
    for d in range(v.shape[0]):
        total += v[d] / (_ONE + table[d] * exps[d])
    return -_TWO * total


@compiled
def _soften(shares):
    most = shares[0]
    for j in range(shares.shape[0]):
        most = max(most, shares[j])
    total = _ZERO
    for j in range(shares.shape[0]):
        x = _HALF * (shares[j] - most)
        power = _ZERO if x < -_CLAMP else exp_twice(x)
        shares[j] = power
        total += power
    for j in range(shares.shape[0]):
        shares[j] /= total


@compiled
def _add_scaled(out, x, weight):
    for d in range(out.shape[0]):
        out[d] += weight * x[d]


@compiled
def _dot(a, b):
    total = _ZERO
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@compiled
def _add_slopes(to, table, exps, slope):
    """to += slope r (1 - r)."""
    for d in range(to.shape[0]):
        r = _ONE / (_ONE + table[d] * exps[d])
        to[d] += slope * (r - r * r)


@compiled
def _add_both(to_key, to_v, table, exps, slope):
    """to_key += slope r (1 - r), to_v -= 2 slope r."""
    twice = _TWO * slope
    for d in range(to_key.shape[0]):
        r = _ONE / (_ONE + table[d] * exps[d])
        to_key[d] += slope * (r - r * r)
        to_v[d] -= twice * r


@compiled
def _scale(x, v):
    for d in range(x.shape[0]):
        x[d] *= (_TWO + _TWO) * v[d]


def _make_forward(dtype, stamp):
    widen, write = reader(dtype), writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, keys, dim, wide = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM]
        exps, values = _array(job, _EXPS, (rows, keys, dim)), _array(job, _VALUES, (rows, keys, wide))
        v, tables, shares = (
            _array(job, _V, (dim,)),
            _array(job, _TABLES, (rows, dim)),
            _array(job, _SHARES, (rows, keys)),
        )
        out, lengths = _array(job, _OUT, (rows, wide)), carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        row = take_one(job, _COUNTER)
        while row < rows:
            table, share, to, length = tables[row], shares[row], out[row], lengths[row]
            widen(table, carray(as_address(job[_QUERY] + row * job[_QUERY_STEP] * size), (dim,), dtype))
            _exponentials(table)
            to[:] = 0
            share[length:] = 0
            if length > 0:
                for j in range(length):
                    share[j] = _score(table, exps[row, j], v)
                _soften(share[:length])
                for j in range(length):
                    _add_scaled(to, values[row, j], share[j])
            if job[_LOW] != 0:
                write(carray(as_address(job[_LOW] + row * wide * size), (wide,), dtype), to)
            row = take_one(job, _COUNTER)

    return tasks


def _make_backward(dtype, stamp):
    widen, write = reader(dtype), writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, keys, dim, wide = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM]
        exps, values = _array(job, _EXPS, (rows, keys, dim)), _array(job, _VALUES, (rows, keys, wide))
        v, tables, shares = (
            _array(job, _V, (dim,)),
            _array(job, _TABLES, (rows, dim)),
            _array(job, _SHARES, (rows, keys)),
        )
        grads, slopes = _array(job, _GRAD, (rows, wide)), _array(job, _SLOPES, (rows, keys))
        to_out, lengths = _array(job, _TO_OUT, (rows, wide)), carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        to_query = np.empty(dim, np.float32)
        row = take_one(job, _COUNTER)
        while row < rows:
            table, share, slope, to, length = tables[row], shares[row], slopes[row], to_out[row], lengths[row]
            if job[_EXTRA] != 0:
                widen(to, carray(as_address(job[_EXTRA] + row * wide * size), (wide,), dtype))
            else:
                to[:] = 0
            if job[_GRAD] != 0:
                _add_scaled(to, grads[row], _ONE)
            to_query[:] = 0
            slope[length:] = 0
            total = _ZERO
            for j in range(length):
                slope[j] = _dot(to, values[row, j])
                total += slope[j] * share[j]
            for j in range(length):
                slope[j] = share[j] * (slope[j] - total)
                _add_slopes(to_query, table, exps[row, j], slope[j])
            _scale(to_query, v)
            write(carray(as_address(job[_TO_QUERY] + row * job[_QUERY_STEP] * size), (dim,), dtype), to_query)
            row = take_one(job, _COUNTER)

    return tasks


def _make_gather(dtype, stamp):
    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, keys, dim, wide, steps = job[_ROWS], job[_KEYS], job[_DIM], job[_VALUE_DIM], job[_STEPS]
        exps, v = _array(job, _EXPS, (rows, keys, dim)), _array(job, _V, (dim,))
        tables, shares = _array(job, _TABLES, (steps, rows, dim)), _array(job, _SHARES, (steps, rows, keys))
        slopes, to_out = _array(job, _SLOPES, (steps, rows, keys)), _array(job, _TO_OUT, (steps, rows, wide))
        to_keys, to_values = _array(job, _TO_KEYS, (rows, keys, dim)), _array(job, _TO_VALUES, (rows, keys, wide))
        to_v, lengths = _array(job, _TO_V, (rows, dim)), carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        row = take_one(job, _COUNTER)
        while row < rows:
            length, to = lengths[row], to_v[row]
            for t in range(steps):
                total = _ZERO
                for j in range(length):
                    slope = slopes[t, row, j]
                    total += slope
                    _add_both(to_keys[row, j], to, tables[t, row], exps[row, j], slope)
                    _add_scaled(to_values[row, j], to_out[t, row], shares[t, row, j])
                for d in range(dim):
                    to[d] += total
            for j in range(length):
                _scale(to_keys[row, j], v)
            row = take_one(job, _COUNTER)

    return tasks


_forward = worker(_make_forward, _STAMP)
_backward = worker(_make_backward, _STAMP)
_gather = worker(_make_gather, _STAMP)
