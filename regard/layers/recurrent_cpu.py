"""Gates of a gru on a CPU, all of a step in one pass over memory, forwards and backwards: the compiled loops.

    r, z = sigmoid(p + a + q)                    p = A x + b, a = C c (or absent), q = B s + b'
    n    = tanh(p + a + r q)
    s'   = (1 - z) n + z s                       rows whose sequence is over keep s, and their output is zero

    dn = (1 - z) (1 - n^2) ds'      dz = z (1 - z) (s - n) ds'      dr = r (1 - r) q_n dn
    dp = da = [dr dz dn]            dq = [dr dz r dn]               ds = z ds' + what B sends back

What products give and take is float32 or bfloat16, which comes as its 16 bits; states and their gradients are float32.
Rows are computed each by itself, so that nothing depends on the number of threads.

Source: cho2014 (gru; the reset gate where torch has it).
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_jobs import as_address, take_one
from regard.attention.kernels.additive_cpu_loops import exp_twice
from regard.attention.kernels.rows_cpu import ROWS_STAMP, reader, writer
from regard.attention.kernels.threads import side_by_side

_STAMP = hashlib.sha256(Path(__file__).read_bytes() + ROWS_STAMP.encode()).hexdigest()
_TASK = 1 << 12
"""Numbers of a state that are a task."""
_WORTH_A_THREAD = 1 << 13
"""Numbers of states below which waking a second thread costs more than it saves."""
_PLACES = 20
(
    _COUNTER, _ROWS, _DIM, _ROWS_A_TASK, _PLACE, _INPUT, _INPUT_STEP, _CONTEXT, _AGAIN, _AGAIN_STEP, _BEFORE,
    _GATES, _AFTER, _LOW, _OUT, _OUT_STEP, _LENGTHS, _EXTRA, _CARRY, _TO_AGAIN,
) = range(_PLACES)  # fmt: skip
_ONE, _HALF, _TWO, _CLAMP = np.float32(1), np.float32(0.5), np.float32(2), np.float32(43)


def gru(
    projected: Tensor,
    context: Tensor | None,
    again: Tensor,
    before: Tensor,
    *,
    gates: Tensor,
    after: Tensor,
    low: Tensor | None,
    out: Tensor | None = None,
    lengths: Tensor | None = None,
    place: int = 0,
) -> None:
    """Writes s' (rows, hidden) to `after`, its bfloat16 to `low`, [r z n q_n] to `gates`; to `out` s' or zeros.

    projected: (rows, 3 hidden), rows as far apart as they like; context: (rows, 3 hidden) or None; again: (rows,
    at least 3 hidden). lengths: rows of `place` or fewer items are over.
    """
    table = _job(before, place)
    _put(table, _INPUT, projected, _INPUT_STEP)
    _put(table, _CONTEXT, context)
    _put(table, _AGAIN, again, _AGAIN_STEP)
    _put(table, _OUT, out, _OUT_STEP)
    for at, tensor in ((_BEFORE, before), (_GATES, gates), (_AFTER, after), (_LOW, low), (_LENGTHS, lengths)):
        _put(table, at, tensor)
    share_out(_forward(again.dtype), table, before.shape[0], before.numel(), _WORTH_A_THREAD)


def gru_gradients(
    of_out: Tensor | None,
    extra: Tensor | None,
    carry: Tensor,
    gates: Tensor,
    before: Tensor,
    *,
    to_input: Tensor,
    to_again: Tensor,
    lengths: Tensor | None = None,
    place: int = 0,
) -> None:
    """Writes gradients of p (which are those of a) and of q; `carry` becomes what z lets through of ds'.

    ds' = carry + extra + of_out: gradients (rows, hidden) of s' from the step behind, from products, from the output.
    """
    table = _job(before, place)
    _put(table, _OUT, of_out, _OUT_STEP)
    _put(table, _INPUT, to_input, _INPUT_STEP)
    _put(table, _TO_AGAIN, to_again, _AGAIN_STEP)
    for at, tensor in ((_EXTRA, extra), (_CARRY, carry), (_GATES, gates), (_BEFORE, before), (_LENGTHS, lengths)):
        _put(table, at, tensor)
    share_out(_backward(to_input.dtype), table, before.shape[0], before.numel(), _WORTH_A_THREAD)


def share_out(work, table: np.ndarray, rows: int, size: int, worth: int) -> None:
    """Let as many threads as the size is worth take tasks of rows until none is left."""
    if rows:
        side_by_side(work, table.ctypes.data, min(torch.get_num_threads(), 1 + size // worth, rows))


def _job(before: Tensor, place: int) -> np.ndarray:
    rows, dim = before.shape
    table = np.zeros(_PLACES, np.int64)
    table[_ROWS : _PLACE + 1] = rows, dim, max(1, _TASK // dim), place
    return table


def _put(table: np.ndarray, at: int, tensor: Tensor | None, step: int | None = None) -> None:
    if tensor is not None:
        table[at] = tensor.data_ptr()
        if step is not None:
            table[step] = tensor.stride(0)


@pasted
def _sigmoid(x):
    x = -_HALF * x
    x = _CLAMP if x > _CLAMP else x
    x = -_CLAMP if x < -_CLAMP else x
    return _ONE / (_ONE + exp_twice(x))


@pasted
def _tanh(x):
    x = _CLAMP if x > _CLAMP else x
    x = -_CLAMP if x < -_CLAMP else x
    return _ONE - _TWO / (_ONE + exp_twice(x))


@compiled
def _step(values, again, before, gates, after):
    """One row: values = p + a."""
    dim = before.shape[0]
    reset, keep, candidate, recalled = gates[:dim], gates[dim : 2 * dim], gates[2 * dim : 3 * dim], gates[3 * dim :]
    for i in range(2 * dim):
        gates[i] = _sigmoid(values[i] + again[i])
    values, again = values[2 * dim :], again[2 * dim :]
    for i in range(dim):
        new = _tanh(values[i] + reset[i] * again[i])
        recalled[i] = again[i]
        candidate[i] = new
        after[i] = new + keep[i] * (before[i] - new)


@compiled
def _add(values, more):
    for i in range(values.shape[0]):
        values[i] += more[i]


def _make_forward(dtype, stamp):
    read, write = reader(dtype), writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, dim, step, place = job[_ROWS], job[_DIM], job[_ROWS_A_TASK], job[_PLACE]
        values, again, more = (
            np.empty(3 * dim, np.float32),
            np.empty(3 * dim, np.float32),
            np.empty(3 * dim, np.float32),
        )
        before = carray(as_address(job[_BEFORE]), (rows, dim), np.float32)
        after = carray(as_address(job[_AFTER]), (rows, dim), np.float32)
        gates = carray(as_address(job[_GATES]), (rows, 4 * dim), np.float32)
        lengths = carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        task = take_one(job, _COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                now = after[row]
                lives = job[_LENGTHS] == 0 or place < lengths[row]
                if lives:
                    read(values, carray(as_address(job[_INPUT] + row * job[_INPUT_STEP] * size), (3 * dim,), dtype))
                    if job[_CONTEXT] != 0:
                        read(more, carray(as_address(job[_CONTEXT] + row * 3 * dim * size), (3 * dim,), dtype))
                        _add(values, more)
                    read(again, carray(as_address(job[_AGAIN] + row * job[_AGAIN_STEP] * size), (3 * dim,), dtype))
                    _step(values, again, before[row], gates[row], now)
                else:
                    now[:] = before[row]
                if job[_LOW] != 0:
                    write(carray(as_address(job[_LOW] + row * dim * size), (dim,), dtype), now)
                if job[_OUT] != 0:
                    out = carray(as_address(job[_OUT] + row * job[_OUT_STEP] * 4), (dim,), np.float32)
                    if lives:
                        out[:] = now
                    else:
                        out[:] = 0
            task = take_one(job, _COUNTER)

    return tasks


@compiled
def _step_back(carry, gates, before, to_input, to_again):
    """One row: carry is ds', and becomes z ds'."""
    dim = before.shape[0]
    reset, keep, candidate, recalled = gates[:dim], gates[dim : 2 * dim], gates[2 * dim : 3 * dim], gates[3 * dim :]
    to_reset, to_keep, to_new = to_input[:dim], to_input[dim : 2 * dim], to_input[2 * dim :]
    again_reset, again_keep, again_new = to_again[:dim], to_again[dim : 2 * dim], to_again[2 * dim :]
    for i in range(dim):
        r, z, n, all_of = reset[i], keep[i], candidate[i], carry[i]
        new = all_of * (_ONE - z) * (_ONE - n * n)
        open_ = new * recalled[i] * r * (_ONE - r)
        kept = all_of * (before[i] - n) * z * (_ONE - z)
        to_reset[i] = open_
        again_reset[i] = open_
        to_keep[i] = kept
        again_keep[i] = kept
        to_new[i] = new
        again_new[i] = new * r
        carry[i] = all_of * z


def _make_backward(dtype, stamp):
    read, write = reader(dtype), writer(dtype)
    size = np.dtype(dtype).itemsize

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, dim, step, place = job[_ROWS], job[_DIM], job[_ROWS_A_TASK], job[_PLACE]
        to_input, to_again, more = (
            np.empty(3 * dim, np.float32),
            np.empty(3 * dim, np.float32),
            np.empty(dim, np.float32),
        )
        before = carray(as_address(job[_BEFORE]), (rows, dim), np.float32)
        carry = carray(as_address(job[_CARRY]), (rows, dim), np.float32)
        gates = carray(as_address(job[_GATES]), (rows, 4 * dim), np.float32)
        lengths = carray(as_address(job[_LENGTHS]), (rows,), np.int64)
        task = take_one(job, _COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                lives = job[_LENGTHS] == 0 or place < lengths[row]
                if job[_EXTRA] != 0:
                    read(more, carray(as_address(job[_EXTRA] + row * dim * size), (dim,), dtype))
                    _add(carry[row], more)
                if lives:
                    if job[_OUT] != 0:
                        of_out = carray(as_address(job[_OUT] + row * job[_OUT_STEP] * 4), (dim,), np.float32)
                        _add(carry[row], of_out)
                    _step_back(carry[row], gates[row], before[row], to_input, to_again)
                else:
                    to_input[:] = 0
                    to_again[:] = 0
                write(carray(as_address(job[_INPUT] + row * job[_INPUT_STEP] * size), (3 * dim,), dtype), to_input)
                write(carray(as_address(job[_TO_AGAIN] + row * job[_AGAIN_STEP] * size), (3 * dim,), dtype), to_again)
            task = take_one(job, _COUNTER)

    return tasks


_forward = worker(_make_forward, _STAMP)
_backward = worker(_make_backward, _STAMP)
