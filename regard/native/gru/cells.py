"""Compiled CPU loops of GRU cells: all gates of a step in one pass, forward and backward.

    r, z = sigmoid(p + a + q)                    p = A x + b, a = C c (or absent), q = B s + b'
    n    = tanh(p + a + r q)
    s'   = (1 - z) n + z s                       finished rows keep s and output zero

    dn = (1 - z) (1 - n^2) ds'      dz = z (1 - z) (s - n) ds'      dr = r (1 - r) q_n dn
    dp = da = [dr dz dn]            dq = [dr dz r dn]               ds = z ds' + B^T dq

Inputs and outputs of products are float32 or bfloat16 (passed as uint16); states and their
gradients are float32. Rows are computed separately, so that results do not depend on the number of
threads.

Source: cho2014 (GRU; the reset gate is placed as in torch.nn.GRU).
"""

from typing import Any, NamedTuple

import numpy as np
from numba import carray
from torch import Tensor

from regard.native.additive.cpu.loops import clamp_to, exp_twice
from regard.native.compile import jit, jit_inline, jit_worker
from regard.native.jobs import (
    COUNTER,
    Address,
    Strided,
    array_at,
    fetch_and_increment,
    offsets,
    run_job,
)
from regard.native.rows import add_to, row_reader, row_writer

_ELEMENTS_PER_TASK = 1 << 12
"""Number of state elements per task."""
_MIN_WORK_PER_THREAD = 1 << 13
"""Number of state elements below which waking a second thread costs more than it saves."""


class GRUJob(NamedTuple):
    """A step of a GRU; or its gradients, in place of `input` and `recurrent` (and `out`)."""

    rows: int
    dim: int
    rows_per_task: int
    time: int
    input: Strided = None
    recurrent: Strided = None
    out: Strided = None
    context: Address = None
    state: Address = None
    gates: Address = None
    new_state: Address = None
    low: Address = None
    lengths: Address = None
    extra: Address = None
    carry: Address = None


_AT = offsets(GRUJob)
_ONE, _HALF, _TWO, _CLAMP = np.float32(1), np.float32(0.5), np.float32(2), np.float32(43)


def gru(state: Tensor, *, recurrent: Tensor, **others: Any) -> None:
    """Write s' (rows, hidden) to `new_state`, its bfloat16 to `low`, [r z n q_n] to `gates`, and s'
    or zeros to `out`.

    input, recurrent: p and q (rows, at least 3 hidden) with any row stride.
    context: a (rows, 3 hidden) or None.
    lengths: rows of at most `time` items are finished.
    """
    _run(_forward(recurrent.dtype), state, recurrent=recurrent, **others)


def gru_gradients(state: Tensor, *, input: Tensor, **others: Any) -> None:
    """Write the gradients of p (equal to those of a) and of q, and replace `carry` by z ds'.

    ds' = carry + extra + out: gradients (rows, hidden) of s' from the next step, from products,
    from the output.
    """
    _run(_backward(input.dtype), state, input=input, **others)


def _run(function: Any, state: Tensor, *, time: int = 0, **others: Any) -> None:
    rows, dim = state.shape
    job = GRUJob(rows, dim, max(1, _ELEMENTS_PER_TASK // dim), time, state=state, **others)
    run_rows(function, job, state.numel(), _MIN_WORK_PER_THREAD)


def run_rows(function: Any, job: Any, size: int, min_work: int) -> None:
    """Run the tasks of a job of rows on as many threads as pay off for this size."""
    if job.rows:
        run_job(function, job, min(1 + size // min_work, job.rows))


@jit_inline
def _sigmoid(x):
    return _ONE / (_ONE + exp_twice(clamp_to(-_HALF * x, _CLAMP)))


@jit_inline
def _tanh(x):
    return _ONE - _TWO / (_ONE + exp_twice(clamp_to(x, _CLAMP)))


@jit
def _gru_step(values, recurrent, state, gates, new_state):
    """Compute one row, with values = p + a."""
    dim = state.shape[0]
    reset, update = gates[:dim], gates[dim : 2 * dim]
    new_gate, hidden_new = gates[2 * dim : 3 * dim], gates[3 * dim :]
    for i in range(2 * dim):
        gates[i] = _sigmoid(values[i] + recurrent[i])
    values, recurrent = values[2 * dim :], recurrent[2 * dim :]
    for i in range(dim):
        new = _tanh(values[i] + reset[i] * recurrent[i])
        hidden_new[i] = recurrent[i]
        new_gate[i] = new
        new_state[i] = new + update[i] * (state[i] - new)


@jit_worker
def _forward(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        rows, dim, step, time = job[_AT.rows], job[_AT.dim], job[_AT.rows_per_task], job[_AT.time]
        values, recurrent = np.empty(3 * dim, np.float32), np.empty(3 * dim, np.float32)
        extra = np.empty(3 * dim, np.float32)
        inputs = array_at(job, _AT.input, (rows, job[_AT.input_stride]), dtype)
        recurrents = array_at(job, _AT.recurrent, (rows, job[_AT.recurrent_stride]), dtype)
        contexts = array_at(job, _AT.context, (rows, 3 * dim), dtype)
        state = array_at(job, _AT.state, (rows, dim), np.float32)
        new_state = array_at(job, _AT.new_state, (rows, dim), np.float32)
        gates = array_at(job, _AT.gates, (rows, 4 * dim), np.float32)
        low = array_at(job, _AT.low, (rows, dim), dtype)
        outs = array_at(job, _AT.out, (rows, job[_AT.out_stride]), np.float32)
        lengths = array_at(job, _AT.lengths, (rows,), np.int64)
        task = fetch_and_increment(job, COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                target = new_state[row]
                is_active = job[_AT.lengths] == 0 or time < lengths[row]
                if is_active:
                    read(values, inputs[row, : 3 * dim])
                    if job[_AT.context] != 0:
                        read(extra, contexts[row])
                        add_to(values, extra)
                    read(recurrent, recurrents[row, : 3 * dim])
                    _gru_step(values, recurrent, state[row], gates[row], target)
                else:
                    target[:] = state[row]
                if job[_AT.low] != 0:
                    write(low[row], target)
                if job[_AT.out] != 0:
                    outs[row, :dim] = target
                    if not is_active:
                        outs[row, :dim] = 0
            task = fetch_and_increment(job, COUNTER)

    return tasks


@jit
def _gru_step_backward(carry, gates, state, grad_input, grad_recurrent):
    """Compute the gradients of one row; carry is ds' and becomes z ds'."""
    dim = state.shape[0]
    reset, update = gates[:dim], gates[dim : 2 * dim]
    new_gate, hidden_new = gates[2 * dim : 3 * dim], gates[3 * dim :]
    input_reset, recurrent_reset = grad_input[:dim], grad_recurrent[:dim]
    input_update, recurrent_update = grad_input[dim : 2 * dim], grad_recurrent[dim : 2 * dim]
    input_new, recurrent_new = grad_input[2 * dim :], grad_recurrent[2 * dim :]
    for i in range(dim):
        r, z, n, d_state = reset[i], update[i], new_gate[i], carry[i]
        new = d_state * (_ONE - z) * (_ONE - n * n)
        d_reset = new * hidden_new[i] * r * (_ONE - r)
        d_update = d_state * (state[i] - n) * z * (_ONE - z)
        input_reset[i] = d_reset
        recurrent_reset[i] = d_reset
        input_update[i] = d_update
        recurrent_update[i] = d_update
        input_new[i] = new
        recurrent_new[i] = new * r
        carry[i] = d_state * z


@jit_worker
def _backward(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        rows, dim, step, time = job[_AT.rows], job[_AT.dim], job[_AT.rows_per_task], job[_AT.time]
        grad_input, grad_recurrent = np.empty(3 * dim, np.float32), np.empty(3 * dim, np.float32)
        extra = np.empty(dim, np.float32)
        extras = array_at(job, _AT.extra, (rows, dim), dtype)
        grad_outs = array_at(job, _AT.out, (rows, job[_AT.out_stride]), np.float32)
        inputs = array_at(job, _AT.input, (rows, job[_AT.input_stride]), dtype)
        recurrents = array_at(job, _AT.recurrent, (rows, job[_AT.recurrent_stride]), dtype)
        state = array_at(job, _AT.state, (rows, dim), np.float32)
        carry = array_at(job, _AT.carry, (rows, dim), np.float32)
        gates = array_at(job, _AT.gates, (rows, 4 * dim), np.float32)
        lengths = array_at(job, _AT.lengths, (rows,), np.int64)
        task = fetch_and_increment(job, COUNTER)
        while task * step < rows:
            for row in range(task * step, min(rows, task * step + step)):
                if job[_AT.extra] != 0:
                    read(extra, extras[row])
                    add_to(carry[row], extra)
                if job[_AT.lengths] == 0 or time < lengths[row]:
                    if job[_AT.out] != 0:
                        add_to(carry[row], grad_outs[row, :dim])
                    _gru_step_backward(
                        carry[row], gates[row], state[row], grad_input, grad_recurrent
                    )
                else:
                    grad_input[:] = 0
                    grad_recurrent[:] = 0
                write(inputs[row, : 3 * dim], grad_input)
                write(recurrents[row, : 3 * dim], grad_recurrent)
            task = fetch_and_increment(job, COUNTER)

    return tasks
