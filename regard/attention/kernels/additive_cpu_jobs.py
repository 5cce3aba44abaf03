"""A job for the loops of additive attention on a CPU: one table of sizes, addresses and steps, read by every thread.

Threads that Python starts a function on wait for each other at its lock; a compiled function that takes one pointer
needs no Python at all. `pack` writes the table; `inputs`, `results`, `gradients` make arrays of it in compiled code.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from regard.attention.kernels.additive_cpu_compile import pasted
from regard.attention.kernels.additive_cpu_rules import Given, Rules, Wanted

_SIZES = 14
"""Numbers before the addresses."""
(
    _COUNTER, _SLOT, _STEP, _PARTS, _BATCH, _HEADS, _QUERIES, _DIM, _KEY_HEADS, _KEYS, _VALUE_DIM, _V_HEADS, _SLOTS,
    _TABLED,
) = range(_SIZES)  # fmt: skip
_ARRAYS = 19
"""Addresses, and then as many counts of elements."""
(
    _QUERY, _KEY, _VALUE, _V, _CONST, _FIRST, _LAST, _ALLOWED, _BIAS, _DIAGONALS, _OUT, _LSE,
    _GRAD, _TO_QUERY, _TO_KEYS, _TO_VALUES, _TO_V, _TO_BIAS, _TO_DIAGONALS,
) = range(_SIZES, _SIZES + _ARRAYS)  # fmt: skip
_STEPS = _SIZES + 2 * _ARRAYS
_LENGTH = _STEPS + 17
"""Steps of the rules: three of first, last and diagonals, four of allowed and bias."""


def pack(sizes: Sequence[int], arrays: Sequence[Tensor | None], steps: Sequence[int]) -> np.ndarray:
    """The table of a job: sizes from `_STEP` on, and arrays, in the order above; the last arrays may be missing.

    Arrays must be contiguous, rules flat, and outlive the job.
    """
    table = np.zeros(_LENGTH, np.int64)
    table[_STEP:_SIZES] = sizes
    table[_SIZES : _SIZES + len(arrays)] = [0 if x is None else x.data_ptr() for x in arrays]
    table[_SIZES + _ARRAYS : _SIZES + _ARRAYS + len(arrays)] = [0 if x is None else x.numel() for x in arrays]
    table[_STEPS:] = steps
    return table


def _address(context, number):
    """The number as an address."""

    def build(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(number), build


as_address: Callable = intrinsic(_address)


def _take(context, table, place):
    """table[place], one more being left there, at once for all threads."""
    signature = types.int64(table, types.int64)

    def build(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", builder.gep(array.data, [arguments[1]]), one, "monotonic")

    return signature, build


take_one: Callable = intrinsic(_take)


@pasted
def begin(address):
    """The job's table, this thread's slot, and its first task."""
    job = carray(address, (_LENGTH,), np.int64)
    slot = take_one(job, _SLOT)
    return job, slot, slot if job[_STEP] > 0 else take_one(job, _COUNTER)


@pasted
def more(job, task):
    """The next task: in order, each thread has every so many-th; else whichever nobody has taken."""
    return task + job[_STEP] if job[_STEP] > 0 else take_one(job, _COUNTER)


@pasted
def is_tabled(job):
    """Whether e^{2 keys} come in the place of the keys."""
    return job[_TABLED] > 0


@pasted
def _array(job, at, shape, dtype):
    return carray(as_address(job[at]), shape, dtype)


@pasted
def _flat(job, at, dtype):
    return carray(as_address(job[at]), (job[at + _ARRAYS],), dtype)


@pasted
def inputs(job, dtype):
    """query, keys, values, v, rules, constants, and how many parts the rows of a key head are cut into."""
    batch, heads, queries, dim = job[_BATCH], job[_HEADS], job[_QUERIES], job[_DIM]
    key_heads, num_keys, value_dim = job[_KEY_HEADS], job[_KEYS], job[_VALUE_DIM]
    s = job[_STEPS:]
    rules = Rules(
        _flat(job, _FIRST, np.int64), (s[0], s[1], s[2]), _flat(job, _LAST, np.int64), (s[3], s[4], s[5]),
        _flat(job, _ALLOWED, np.bool_), (s[6], s[7], s[8], s[9]),
        _flat(job, _BIAS, dtype), (s[10], s[11], s[12], s[13]),
        _flat(job, _DIAGONALS, dtype), (s[14], s[15], s[16]), queries,
    )  # fmt: skip
    return (
        _array(job, _QUERY, (batch, heads, queries, dim), dtype),
        _array(job, _KEY, (batch, key_heads, num_keys, dim), dtype),
        _array(job, _VALUE, (batch, key_heads, num_keys, value_dim), dtype),
        _array(job, _V, (job[_V_HEADS], dim), dtype),
        rules,
        _flat(job, _CONST, dtype),
        job[_PARTS],
    )


@pasted
def results(job, dtype):
    """out and lse."""
    places = job[_BATCH], job[_HEADS], job[_QUERIES]
    return (
        _array(job, _OUT, (places[0], places[1], places[2], job[_VALUE_DIM]), dtype),
        _array(job, _LSE, places, dtype),
    )


@pasted
def gradients(job, dtype):
    """What gradients are made from, where they go, and the rest of `inputs`."""
    query, keys, values, v, rules, const, parts = inputs(job, dtype)
    out, lse = results(job, dtype)
    grad = _array(job, _GRAD, out.shape, dtype)
    slots = job[_SLOTS]
    none = job[_TO_VALUES + _ARRAYS] == 0
    to_values = (0, 0, 0, 0, 0) if none else (parts, values.shape[0], values.shape[1], values.shape[2], values.shape[3])
    wanted = Wanted(
        _array(job, _TO_QUERY, query.shape, dtype),
        _array(job, _TO_KEYS, (parts, keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3]), dtype),
        _array(job, _TO_VALUES, to_values, dtype),
        _array(job, _TO_V, (parts, query.shape[0], query.shape[1], query.shape[3]), dtype),
        _array(job, _TO_BIAS, (slots, job[_TO_BIAS + _ARRAYS] // slots), dtype),
        _array(job, _TO_DIAGONALS, (slots, job[_TO_DIAGONALS + _ARRAYS] // slots), dtype),
    )
    return Given(query, keys, values, v, grad, out, lse, const), wanted, rules, parts
