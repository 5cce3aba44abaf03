"""Compiled CPU loops of a memory that is written, for rows of any number of items.

    S <- a S + k u^T        u = v, or b (v - a S^T k)        o = S^T q

A task is one matrix S, which stays in the processor's cache for all of its items. The result is
written to another matrix, so that the old memory remains readable.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.compile import jit, jit_worker
from regard.native.jobs import COUNTER, Address, array_at, fetch_and_increment, offsets, run_job
from regard.ops.delta_rule import Writes


class WriteJob(NamedTuple):
    """Pairs that are written to matrices, one per row."""

    rows: int
    time: int
    key_dim: int
    value_dim: int
    out: Address
    new_state: Address
    query: Address
    keys: Address
    values: Address
    log_decay: Address
    strength: Address
    state: Address


_AT = offsets(WriteJob)
_MIN_WORK_PER_THREAD = 1 << 17
"""Products below which waking a second thread costs more than it saves."""


def write(query: Tensor, writes: Writes, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `regard.ops.delta_rule.write`, without gradients."""
    keys, values, log_decay = (x.contiguous() for x in writes[:3])
    strength = None if writes.strength is None else writes.strength.contiguous()
    query, state = query.contiguous(), state.contiguous()
    # empty_like takes half the time of new_empty, which reads the shape.
    out, new_state = torch.empty_like(values), torch.empty_like(state)
    size, (time, key_dim), value_dim = state.numel(), query.shape[-2:], values.shape[-1]
    rows = size // (key_dim * value_dim)
    tensors = out, new_state, query, keys, values, log_decay, strength, state
    job = WriteJob(rows, time, key_dim, value_dim, *tensors)
    run_job(_tasks(torch.float32), job, min(rows, 1 + size * (time + 1) // _MIN_WORK_PER_THREAD))
    return out, new_state


@jit
def _add_scaled(out, x, weight):
    for d in range(out.shape[0]):
        out[d] += weight * x[d]


@jit
def _correct(error, value, read, decay, strength):
    for d in range(error.shape[0]):
        error[d] = strength * (value[d] - decay * read[d])


@jit
def _advance(state, error, decay, key):
    for d in range(state.shape[0]):
        state[d] = decay * state[d] + key * error[d]


@jit
def _advance_to(new_state, state, error, decay, key):
    for d in range(state.shape[0]):
        new_state[d] = decay * state[d] + key * error[d]


@jit_worker
def _tasks(dtype):
    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        rows, time = job[_AT.rows], job[_AT.time]
        key_dim, value_dim = job[_AT.key_dim], job[_AT.value_dim]
        queries = array_at(job, _AT.query, (rows, time, key_dim), dtype)
        keys = array_at(job, _AT.keys, (rows, time, key_dim), dtype)
        values = array_at(job, _AT.values, (rows, time, value_dim), dtype)
        log_decays = array_at(job, _AT.log_decay, (rows, time), dtype)
        strengths = array_at(job, _AT.strength, (rows, time), dtype)
        states = array_at(job, _AT.state, (rows, key_dim, value_dim), dtype)
        outs = array_at(job, _AT.out, (rows, time, value_dim), dtype)
        new_states = array_at(job, _AT.new_state, (rows, key_dim, value_dim), dtype)
        read, error = np.empty(value_dim, dtype), np.empty(value_dim, dtype)
        row = fetch_and_increment(job, COUNTER)
        while row < rows:
            before, state = states[row], new_states[row]
            if time == 0:
                state[:] = before
            for t in range(time):
                key, query, out = keys[row, t], queries[row, t], outs[row, t]
                decay = np.exp(log_decays[row, t])
                if job[_AT.strength] != 0:
                    read[:] = 0
                    for i in range(key_dim):
                        _add_scaled(read, before[i], key[i])
                    _correct(error, values[row, t], read, decay, strengths[row, t])
                else:
                    error[:] = values[row, t]
                out[:] = 0
                for i in range(key_dim):
                    if t == 0:
                        _advance_to(state[i], before[i], error, decay, key[i])
                    else:
                        _advance(state[i], error, decay, key[i])
                    _add_scaled(out, state[i], query[i])
                before = state
            row = fetch_and_increment(job, COUNTER)

    return tasks
