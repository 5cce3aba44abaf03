"""Jobs for the loops of additive attention on a CPU: one table of sizes, addresses and strides for all threads.

Threads that call a Python function wait for the interpreter lock; a compiled function of one pointer needs no Python.
`pack_job` writes the table; `input_arrays`, `output_arrays` and `gradient_arrays` are views of it in compiled code.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

from regard.compat.numba import VOID_POINTER
from regard.native.additive.cpu.rules import BackwardInputs, Gradients, Rules
from regard.native.compile import jit_inline

_SIZES = 14
"""Number of sizes before the addresses."""
(
    _COUNTER, _SLOT, _STEP, _PARTS, _BATCH, _HEADS, _QUERIES, _DIM, _KEY_HEADS, _KEYS, _VALUE_DIM, _V_HEADS, _SLOTS,
    _HAS_EXPS,
) = range(_SIZES)  # fmt: skip
_ARRAYS = 19
"""Number of addresses, followed by as many element counts."""
(
    _QUERY, _KEY, _VALUE, _V, _CONST, _FIRST, _LAST, _ALLOWED, _BIAS, _DIAGONALS, _OUT, _LSE,
    _GRAD, _GRAD_QUERY, _GRAD_KEYS, _GRAD_VALUES, _GRAD_V, _GRAD_BIAS, _GRAD_DIAGONALS,
) = range(_SIZES, _SIZES + _ARRAYS)  # fmt: skip
_STRIDES = _SIZES + 2 * _ARRAYS
_LENGTH = _STRIDES + 17
"""Length with the strides of masks and biases: three of first, last and diagonals, four of allowed and bias."""


def pack_job(sizes: Sequence[int], arrays: Sequence[Tensor | None], strides: Sequence[int]) -> np.ndarray:
    """Return the table of a job from the sizes (from `_STEP` on) and arrays in the order above.

    Trailing arrays may be missing. Arrays must be contiguous, masks and biases flat; all must outlive the job.
    """
    table = np.zeros(_LENGTH, np.int64)
    table[_STEP:_SIZES] = sizes
    table[_SIZES : _SIZES + len(arrays)] = [0 if x is None else x.data_ptr() for x in arrays]
    table[_SIZES + _ARRAYS : _SIZES + _ARRAYS + len(arrays)] = [0 if x is None else x.numel() for x in arrays]
    table[_STRIDES:] = strides
    return table


def _address(context, number):
    """Emit the conversion of an integer to a pointer."""

    def build(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], VOID_POINTER)

    return types.voidptr(number), build


as_address: Callable = intrinsic(_address)


def _fetch_add(context, table, index):
    """Emit an atomic increment of table[index] that returns the old value."""
    signature = types.int64(table, types.int64)

    def build(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        increment = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", builder.gep(array.data, [arguments[1]]), increment, "monotonic")

    return signature, build


fetch_and_increment: Callable = intrinsic(_fetch_add)


@jit_inline
def open_job(address):
    """Return the job's table, this thread's slot, and its first task."""
    job = carray(address, (_LENGTH,), np.int64)
    slot = fetch_and_increment(job, _SLOT)
    return job, slot, slot if job[_STEP] > 0 else fetch_and_increment(job, _COUNTER)


@jit_inline
def next_task(job, task):
    """Return the next task: at a fixed stride per thread if in order, else from the shared counter."""
    return task + job[_STEP] if job[_STEP] > 0 else fetch_and_increment(job, _COUNTER)


@jit_inline
def has_exp_keys(job):
    """Return True if the key array holds e^{2 keys}."""
    return job[_HAS_EXPS] > 0


@jit_inline
def _array(job, at, shape, dtype):
    return carray(as_address(job[at]), shape, dtype)


@jit_inline
def _flat_array(job, at, dtype):
    return carray(as_address(job[at]), (job[at + _ARRAYS],), dtype)


@jit_inline
def input_arrays(job, dtype):
    """Return query, keys, values, v, rules, constants, and the number of parts of the rows of a key head."""
    batch, heads, queries, dim = job[_BATCH], job[_HEADS], job[_QUERIES], job[_DIM]
    key_heads, num_keys, value_dim = job[_KEY_HEADS], job[_KEYS], job[_VALUE_DIM]
    s = job[_STRIDES:]
    rules = Rules(
        _flat_array(job, _FIRST, np.int64), (s[0], s[1], s[2]), _flat_array(job, _LAST, np.int64), (s[3], s[4], s[5]),
        _flat_array(job, _ALLOWED, np.bool_), (s[6], s[7], s[8], s[9]),
        _flat_array(job, _BIAS, dtype), (s[10], s[11], s[12], s[13]),
        _flat_array(job, _DIAGONALS, dtype), (s[14], s[15], s[16]), queries,
    )  # fmt: skip
    return (
        _array(job, _QUERY, (batch, heads, queries, dim), dtype),
        _array(job, _KEY, (batch, key_heads, num_keys, dim), dtype),
        _array(job, _VALUE, (batch, key_heads, num_keys, value_dim), dtype),
        _array(job, _V, (job[_V_HEADS], dim), dtype),
        rules,
        _flat_array(job, _CONST, dtype),
        job[_PARTS],
    )


@jit_inline
def output_arrays(job, dtype):
    """Return out and lse."""
    rows = job[_BATCH], job[_HEADS], job[_QUERIES]
    return (
        _array(job, _OUT, (rows[0], rows[1], rows[2], job[_VALUE_DIM]), dtype),
        _array(job, _LSE, rows, dtype),
    )


@jit_inline
def gradient_arrays(job, dtype):
    """Return the inputs of the backward pass, the gradients to write, the rules, and the number of parts."""
    query, keys, values, v, rules, const, parts = input_arrays(job, dtype)
    out, lse = output_arrays(job, dtype)
    grad = _array(job, _GRAD, out.shape, dtype)
    slots = job[_SLOTS]
    is_absent = job[_GRAD_VALUES + _ARRAYS] == 0
    grad_values = (
        (0, 0, 0, 0, 0) if is_absent else (parts, values.shape[0], values.shape[1], values.shape[2], values.shape[3])
    )
    grads = Gradients(
        _array(job, _GRAD_QUERY, query.shape, dtype),
        _array(job, _GRAD_KEYS, (parts, keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3]), dtype),
        _array(job, _GRAD_VALUES, grad_values, dtype),
        _array(job, _GRAD_V, (parts, query.shape[0], query.shape[1], query.shape[3]), dtype),
        _array(job, _GRAD_BIAS, (slots, job[_GRAD_BIAS + _ARRAYS] // slots), dtype),
        _array(job, _GRAD_DIAGONALS, (slots, job[_GRAD_DIAGONALS + _ARRAYS] // slots), dtype),
    )
    return BackwardInputs(query, keys, values, v, grad, out, lse, const), grads, rules, parts
