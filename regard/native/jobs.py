"""Jobs: the sizes and arrays of a compiled loop, as one table of integers that all threads read.

    class SumJob(NamedTuple):
        rows: int
        items: Address

    AT = offsets(SumJob)                           job[AT.rows], job[AT.items] in compiled code
    run_job(tasks, SumJob(rows=3, items=x), 2)     on two threads

A job is declared once, as a named tuple of typed fields; the table and the indices that the loops
read follow from it. Threads that call a Python function wait for the interpreter lock; a compiled
function of one pointer needs no Python. The first number of a table counts the tasks that were
taken (`fetch_and_increment`).

Compiled code runs without the interpreter lock, while other threads free and reuse memory. So no
function here returns an address: a call is given the table itself, which ctypes keeps until the
call returns, and the table keeps the tensors whose addresses it holds.
"""

import ctypes
import functools
import struct
from collections import namedtuple
from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

from numba import carray, types
from torch import Tensor

from regard.compat.numba import VOID_POINTER
from regard.native.compile import emit, intrinsic, jit_inline
from regard.native.threads import run_on_threads

COUNTER = 0
"""Index of the counter of tasks."""

Address = Annotated[Tensor | None, ""]
"""A contiguous tensor: its address, zero if None."""
Strided = Annotated[Tensor | None, "stride"]
"""A tensor whose rows are contiguous: its address, and NAME_stride, the stride of its rows."""
Flat = Annotated[Tensor | None, "size"]
"""A contiguous tensor of any size: its address, and NAME_size, its number of elements."""
Numbers17 = Annotated[Sequence[int], 17]
"""Seventeen numbers."""


def offsets(job: Any) -> Any:
    """Return the index of each field of a job in its table, a constant for compiled code."""
    indices, length = {"counter": COUNTER}, 1
    for name, added in _fields(job):
        indices[name] = length
        if isinstance(added, str) and added:
            indices[f"{name}_{added}"] = length + 1
        length += added if isinstance(added, int) else 2 if added else 1
    indices["length"] = length
    # numba supports named tuples of collections alone.
    return namedtuple("Offsets", indices)(**indices)  # pyrefly: ignore[bad-class-definition]


def run_job(function: Any, job: tuple, most: int) -> None:
    """Call a C function with the table of a job, on at most `most` of torch's threads."""
    run_on_threads(function, _pack(job), most)


def _pack(job: tuple) -> ctypes.Array:
    """Return the table of a job, which owns its tensors."""
    words, tensors = [0], []
    for value, (_, added) in zip(job, _fields(type(job)), strict=True):
        if value.__class__ is int and not added:
            words.append(value)
        elif isinstance(value, Tensor):
            # Compiled code knows no bit that changes the sign.
            tensor = value.resolve_neg() if value.is_neg() else value
            if not (tensor.is_cpu and (added == "stride" or tensor.is_contiguous())):
                where = f"on {tensor.device} with strides {tensor.stride()}"
                raise ValueError(f"compiled code needs contiguous tensors on the CPU, got {where}")
            tensors.append(tensor)
            words.append(tensor.data_ptr())
            if added:
                words.append(tensor.stride(0) if added == "stride" else tensor.numel())
        elif isinstance(value, float):
            words.append(*struct.unpack("q", struct.pack("d", value)))
        elif isinstance(added, int):
            words += value
        else:
            words += [value or 0, 0] if added else [value or 0]
    table = (ctypes.c_int64 * len(words))(*words)
    table.tensors = tensors  # pyrefly: ignore[missing-attribute]
    return table


@functools.cache
def _fields(job: Any) -> tuple[tuple[str, str | int], ...]:
    """Return each field's name, and that of the number after its address, or its count."""
    hints = get_type_hints(job, include_extras=True)
    return tuple((name, getattr(hints[name], "__metadata__", ("",))[0]) for name in job._fields)


@emit(types.voidptr(types.int64))
def as_address(builder, number):
    """Return an integer as a pointer."""
    return builder.inttoptr(number, VOID_POINTER)


@intrinsic
def fetch_and_increment(_typing, table, index):
    """Increment table[index] atomically and return the old value."""
    signature = types.int64(table, types.int64)

    def build(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        increment = context.get_constant(types.int64, 1)
        place = builder.gep(array.data, [arguments[1]])
        return builder.atomic_rmw("add", place, increment, "monotonic")

    return signature, build


@jit_inline
def array_at(job, at, shape, dtype):
    """Return the array of this shape whose address is job[at]."""
    return carray(as_address(job[at]), shape, dtype)
