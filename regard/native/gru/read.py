"""Additive attention of decoder steps on a CPU: one query per row and step, forward and backward.

    a_j = v . tanh(q + k_j)         p = softmax(a_1 .. a_length)          c = sum_j p_j values_j
    tanh(q + k_j) = 1 - 2 r_j       r_j = 1 / (1 + e^{2 q} e^{2 k_j})     e^{2 k_j}: once a sequence

    g_j = p_j (dc . values_j - dc . c)             gradient of a_j
    dq  = 4 v sum_j g_j r_j (1 - r_j)              at every step, for the state of the query
    dk_j = 4 v sum_t g_tj r_tj (1 - r_tj)          dvalues_j = sum_t p_tj dc_t
    dv  = sum_tj g_tj (1 - 2 r_tj)

The last line is computed after the loop, row by row, so that sums over steps stay in the cache
instead of being read and written at each step. |k| is at most `MAX_EXP_INPUT`, so that no product
of exponentials is 0 times infinity. Each row is computed separately, so that results do not depend
on the number of threads.

Source: bahdanau2015, appendix A.1.2.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.additive.cpu.loops import clamp_to, exp_twice
from regard.native.compile import jit, jit_inline, jit_worker
from regard.native.gru.cells import run_rows
from regard.native.jobs import COUNTER, Address, Strided, array_at, fetch_and_increment, offsets
from regard.native.rows import add_to, row_reader, row_writer

_MIN_WORK_PER_THREAD = 1 << 16


class ReadJob(NamedTuple):
    """A read of one step, its gradients, or those of the memory from all steps."""

    rows: int
    keys: int
    dim: int
    value_dim: int
    exps: Address
    values: Address
    v: Address
    lengths: Address
    steps: int = 1
    query: Strided = None
    exp_queries: Address = None
    weights: Address = None
    out: Address = None
    low: Address = None
    grad: Address = None
    extra: Address = None
    grad_scores: Address = None
    grad_out: Address = None
    grad_query: Strided = None
    grad_keys: Address = None
    grad_values: Address = None
    grad_v: Address = None


_AT = offsets(ReadJob)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_TWO, _CLAMP = np.float32(2), np.float32(43)


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


def read(memory: ExponentialMemory, *, query: Tensor, **outputs: Tensor | None) -> None:
    """Write c (rows, value_dim) to `out`, its bfloat16 to `low`, e^{2 q} to `exp_queries`, p (rows,
    keys) to `weights`.

    query: (rows, dim), with any row stride. All zeros for a length of 0.
    """
    _run(_forward(query.dtype), memory, query=query, **outputs)


def read_gradients(
    memory: ExponentialMemory, *, grad_query: Tensor, **others: Tensor | None
) -> None:
    """Write dc = grad + extra to `grad_out`, g to `grad_scores`, dq to `grad_query`."""
    _run(_backward(grad_query.dtype), memory, grad_query=grad_query, **others)


def memory_gradients(memory: ExponentialMemory, **others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of keys, values and v from (steps, rows, ...) tensors of all steps."""
    grad_keys, grad_values = torch.zeros_like(memory.keys), torch.zeros_like(memory.values)
    grad_v = memory.keys.new_zeros(memory.keys.shape[0], memory.keys.shape[2])
    targets = {"grad_keys": grad_keys, "grad_values": grad_values, "grad_v": grad_v}
    _run(_memory_gradients(torch.float32), memory, **targets, **others)
    return grad_keys, grad_values, grad_v.sum(0)


def _run(function: Any, memory: ExponentialMemory, **others: Any) -> None:
    rows, keys, dim = memory.keys.shape
    job = ReadJob(rows, keys, dim, memory.values.shape[2], *memory, **others)
    run_rows(function, job, memory.keys.numel(), _MIN_WORK_PER_THREAD)


@jit_inline
def _open_job(address):
    """Return the job and the arrays of the memory."""
    job = carray(address, (_AT.length,), np.int64)
    rows, keys, dim, value_dim = job[_AT.rows], job[_AT.keys], job[_AT.dim], job[_AT.value_dim]
    exps = array_at(job, _AT.exps, (rows, keys, dim), np.float32)
    values = array_at(job, _AT.values, (rows, keys, value_dim), np.float32)
    v = array_at(job, _AT.v, (dim,), np.float32)
    lengths = array_at(job, _AT.lengths, (rows,), np.int64)
    return job, exps, values, v, lengths


@jit
def _exponentiate(values):
    for d in range(values.shape[0]):
        values[d] = exp_twice(clamp_to(values[d], _CLAMP))


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


@jit_worker
def _forward(dtype):
    widen, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job, exps, values, v, lengths = _open_job(address)
        (rows, keys, dim), value_dim = exps.shape, values.shape[2]
        queries = array_at(job, _AT.query, (rows, job[_AT.query_stride]), dtype)
        exp_queries = array_at(job, _AT.exp_queries, (rows, dim), np.float32)
        weights = array_at(job, _AT.weights, (rows, keys), np.float32)
        out = array_at(job, _AT.out, (rows, value_dim), np.float32)
        low = array_at(job, _AT.low, (rows, value_dim), dtype)
        row = fetch_and_increment(job, COUNTER)
        while row < rows:
            exp_query, weight, target = exp_queries[row], weights[row], out[row]
            length = lengths[row]
            widen(exp_query, queries[row, :dim])
            _exponentiate(exp_query)
            target[:] = 0
            weight[length:] = 0
            if length > 0:
                for j in range(length):
                    weight[j] = _score(exp_query, exps[row, j], v)
                _softmax(weight[:length])
                for j in range(length):
                    _add_scaled(target, values[row, j], weight[j])
            if job[_AT.low] != 0:
                write(low[row], target)
            row = fetch_and_increment(job, COUNTER)

    return tasks


@jit_worker
def _backward(dtype):
    widen, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job, exps, values, v, lengths = _open_job(address)
        (rows, keys, dim), value_dim = exps.shape, values.shape[2]
        exp_queries = array_at(job, _AT.exp_queries, (rows, dim), np.float32)
        weights = array_at(job, _AT.weights, (rows, keys), np.float32)
        extras = array_at(job, _AT.extra, (rows, value_dim), dtype)
        grads = array_at(job, _AT.grad, (rows, value_dim), np.float32)
        grad_scores = array_at(job, _AT.grad_scores, (rows, keys), np.float32)
        grad_out = array_at(job, _AT.grad_out, (rows, value_dim), np.float32)
        grad_queries = array_at(job, _AT.grad_query, (rows, job[_AT.grad_query_stride]), dtype)
        grad_query = np.empty(dim, np.float32)
        row = fetch_and_increment(job, COUNTER)
        while row < rows:
            exp_query, weight, length = exp_queries[row], weights[row], lengths[row]
            slope, target = grad_scores[row], grad_out[row]
            if job[_AT.extra] != 0:
                widen(target, extras[row])
            else:
                target[:] = 0
            if job[_AT.grad] != 0:
                add_to(target, grads[row])
            grad_query[:] = 0
            slope[length:] = 0
            total = _ZERO
            for j in range(length):
                slope[j] = _dot(target, values[row, j])
            for j in range(length):
                total += slope[j] * weight[j]
            for j in range(length):
                slope[j] = weight[j] * (slope[j] - total)
                _add_query_gradient(grad_query, exp_query, exps[row, j], slope[j])
            _scale(grad_query, v)
            write(grad_queries[row, :dim], grad_query)
            row = fetch_and_increment(job, COUNTER)

    return tasks


@jit_worker
def _memory_gradients(dtype):
    def tasks(address):
        job, exps, values, v, lengths = _open_job(address)
        (rows, keys, dim), value_dim, steps = exps.shape, values.shape[2], job[_AT.steps]
        exp_queries = array_at(job, _AT.exp_queries, (steps, rows, dim), np.float32)
        weights = array_at(job, _AT.weights, (steps, rows, keys), np.float32)
        grad_scores = array_at(job, _AT.grad_scores, (steps, rows, keys), np.float32)
        grad_out = array_at(job, _AT.grad_out, (steps, rows, value_dim), np.float32)
        grad_keys = array_at(job, _AT.grad_keys, (rows, keys, dim), np.float32)
        grad_values = array_at(job, _AT.grad_values, (rows, keys, value_dim), np.float32)
        grad_v = array_at(job, _AT.grad_v, (rows, dim), np.float32)
        row = fetch_and_increment(job, COUNTER)
        while row < rows:
            length, target = lengths[row], grad_v[row]
            for t in range(steps):
                exp_query, total = exp_queries[t, row], _ZERO
                for j in range(length):
                    slope = grad_scores[t, row, j]
                    total += slope
                    _add_key_gradient(grad_keys[row, j], target, exp_query, exps[row, j], slope)
                    _add_scaled(grad_values[row, j], grad_out[t, row], weights[t, row, j])
                for d in range(dim):
                    target[d] += total
            for j in range(length):
                _scale(grad_keys[row, j], v)
            row = fetch_and_increment(job, COUNTER)

    return tasks
