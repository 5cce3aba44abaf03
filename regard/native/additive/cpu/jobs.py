"""The job of the loops of additive attention on a CPU, and views of its arrays in compiled code."""

from typing import NamedTuple

import numpy as np
from numba import carray

from regard.native.additive.cpu.rules import Gradients, Inputs, Rules
from regard.native.compile import jit, jit_inline
from regard.native.jobs import Flat, Numbers17, array_at, fetch_and_increment, offsets


class AdditiveJob(NamedTuple):
    """A pass of `regard.ops.additive`, with its sizes, contiguous arrays, flat masks and biases."""

    step: int
    """Number of threads if each takes every step-th task, else 0."""
    parts: int
    batch: int
    heads: int
    queries: int
    dim: int
    key_heads: int
    num_keys: int
    value_dim: int
    slots: int
    """Number of arrays for gradients of biases."""
    has_exps: int
    strides: Numbers17
    """Three of first, last and diagonals, four of allowed and bias; in their order below."""
    query: Flat
    keys: Flat
    values: Flat
    v: Flat
    const: Flat
    first: Flat
    last: Flat
    allowed: Flat
    bias: Flat
    diagonals: Flat
    out: Flat
    lse: Flat
    grad: Flat = None
    grad_query: Flat = None
    grad_keys: Flat = None
    grad_values: Flat = None
    grad_v: Flat = None
    grad_bias: Flat = None
    grad_diagonals: Flat = None
    slot: int = 0
    """Counts the threads."""


AT = offsets(AdditiveJob)


@jit_inline
def open_job(address):
    """Return the job's table, and this thread's slot."""
    job = carray(address, (AT.length,), np.int64)
    return job, fetch_and_increment(job, AT.slot)


@jit
def claim_tasks(job, slot):
    """Yield the batch entry, key head and part of each task that this thread computes."""
    step, parts, heads = job[AT.step], job[AT.parts], job[AT.key_heads]
    task = slot if step > 0 else fetch_and_increment(job, AT.counter)
    while task < job[AT.batch] * heads * parts:
        yield task // parts // heads, task // parts % heads, task % parts
        task = task + step if step > 0 else fetch_and_increment(job, AT.counter)


@jit_inline
def _flat(job, at, dtype):
    return array_at(job, at, (job[at + 1],), dtype)


@jit_inline
def input_arrays(job, dtype):
    """Return the inputs and the rules."""
    batch, heads, queries, dim = job[AT.batch], job[AT.heads], job[AT.queries], job[AT.dim]
    key_heads, num_keys, value_dim = job[AT.key_heads], job[AT.num_keys], job[AT.value_dim]
    s = job[AT.strides :]
    rules = Rules(
        _flat(job, AT.first, np.int64), (s[0], s[1], s[2]), _flat(job, AT.last, np.int64), (s[3],
            s[4], s[5]),
        _flat(job, AT.allowed, np.bool_), (s[6], s[7], s[8], s[9]),
        _flat(job, AT.bias, dtype), (s[10], s[11], s[12], s[13]),
        _flat(job, AT.diagonals, dtype), (s[14], s[15], s[16]), queries,
    )  # fmt: skip
    inputs = Inputs(
        query=array_at(job, AT.query, (batch, heads, queries, dim), dtype),
        keys=array_at(job, AT.keys, (batch, key_heads, num_keys, dim), dtype),
        values=array_at(job, AT.values, (batch, key_heads, num_keys, value_dim), dtype),
        v=array_at(job, AT.v, (heads, dim), dtype),
        grad=array_at(job, AT.grad, (batch, heads, queries, value_dim), dtype),
        out=array_at(job, AT.out, (batch, heads, queries, value_dim), dtype),
        lse=array_at(job, AT.lse, (batch, heads, queries), dtype),
        const=_flat(job, AT.const, dtype),
    )
    return inputs, rules


@jit_inline
def gradient_arrays(job, dtype):
    """Return the gradients to write."""
    batch, heads, queries, dim = job[AT.batch], job[AT.heads], job[AT.queries], job[AT.dim]
    key_heads, num_keys, value_dim = job[AT.key_heads], job[AT.num_keys], job[AT.value_dim]
    parts, slots = job[AT.parts], job[AT.slots]
    # Empty if the gradient of the values is not needed.
    value_parts = parts if job[AT.grad_values_size] > 0 else 0
    return Gradients(
        array_at(job, AT.grad_query, (batch, heads, queries, dim), dtype),
        array_at(job, AT.grad_keys, (parts, batch, key_heads, num_keys, dim), dtype),
        array_at(job, AT.grad_values, (value_parts, batch, key_heads, num_keys, value_dim), dtype),
        array_at(job, AT.grad_v, (parts, batch, heads, dim), dtype),
        array_at(job, AT.grad_bias, (slots, job[AT.grad_bias_size] // slots), dtype),
        array_at(job, AT.grad_diagonals, (slots, job[AT.grad_diagonals_size] // slots), dtype),
    )
