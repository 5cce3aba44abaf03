"""Scores to exponentials in place, on a CPU: the compiled loop of the output layer's loss.

    z_v  ->  exp(z_v - max z)        and of each row max z and the sum of the exponentials

Error: below 3e-7 of the value, and what the difference is rounded by. Exponents below -87 count as minus infinity. A
row with a NaN or plus infinity has NaN as its sum.
bfloat16 is widened where it is read and rounded where it is written, so that scores need no second copy.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.attention.kernels.additive_cpu_compile import compiled, worker
from regard.attention.kernels.additive_cpu_jobs import as_address, take_one
from regard.attention.kernels.bits import larger
from regard.attention.kernels.rows_cpu import ROWS_STAMP, exponentiate, reader, writer
from regard.attention.kernels.threads import side_by_side

_STAMP = hashlib.sha256(Path(__file__).read_bytes() + ROWS_STAMP.encode()).hexdigest()
_PLACES = 5
_COUNTER, _ROWS, _COLUMNS, _SCORES, _STATS = range(_PLACES)
_ROWS_A_TASK = 4
_TASK = 1 << 15
_BLOCK = 2048
"""Numbers at a time: wide and narrow, they stay in the first cache."""


def exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The largest score of each row and the sum of exp(score - largest), (rows, 1); writes these into `scores`."""
    rows, columns = scores.shape
    stats = torch.empty(2, rows, 1, dtype=torch.float32)
    table = np.array([0, rows, columns, scores.data_ptr(), stats.data_ptr()], np.int64)
    threads = min(torch.get_num_threads(), 1 + rows // _ROWS_A_TASK)
    side_by_side(_tasks(scores.dtype), table.ctypes.data, threads)
    highest, total = stats
    return highest, total


def accumulate(total: Tensor, part: Tensor) -> None:
    """total += part, both contiguous; torch first makes a float32 copy of a bfloat16 part."""
    table = np.array([0, 1, total.numel(), total.data_ptr(), part.data_ptr()], np.int64)
    threads = min(torch.get_num_threads(), 1 + total.numel() // _TASK)
    side_by_side(_accumulating(part.dtype), table.ctypes.data, threads)


@compiled
def _largest(values):
    """The largest value, unless one is NaN."""
    most = np.float32(-np.inf)
    for i in range(values.shape[0]):
        most = larger(most, values[i])
    return most


@compiled
def _total(values):
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += values[i]
    return total


def _make(dtype, stamp):
    read, write = reader(dtype), writer(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        rows, columns = job[_ROWS], job[_COLUMNS]
        scores = carray(as_address(job[_SCORES]), (rows, columns), dtype)
        stats = carray(as_address(job[_STATS]), (2, rows), np.float32)
        room = np.empty(min(columns, _BLOCK), np.float32)
        task = take_one(job, _COUNTER)
        while task * _ROWS_A_TASK < rows:
            for row in range(task * _ROWS_A_TASK, min(rows, task * _ROWS_A_TASK + _ROWS_A_TASK)):
                check, most = np.float32(0), np.float32(-np.inf)
                for first in range(0, columns, _BLOCK):
                    block = scores[row, first : min(columns, first + _BLOCK)]
                    values = room[: block.shape[0]]
                    read(values, block)
                    check += _total(values)
                    most = max(most, _largest(values))
                total = np.float32(0)
                for first in range(0, columns, _BLOCK):
                    block = scores[row, first : min(columns, first + _BLOCK)]
                    values = room[: block.shape[0]]
                    read(values, block)
                    exponentiate(values, most)
                    total += _total(values)
                    write(block, values)
                stats[0, row] = most
                stats[1, row] = total if check < np.inf else np.nan
            task = take_one(job, _COUNTER)

    return tasks


def _make_accumulating(dtype, stamp):
    read = reader(dtype)

    def tasks(address):
        stamp  # noqa: B018
        job = carray(address, (_PLACES,), np.int64)
        numbers = job[_COLUMNS]
        total = carray(as_address(job[_SCORES]), (numbers,), np.float32)
        part = carray(as_address(job[_STATS]), (numbers,), dtype)
        room = np.empty(_BLOCK, np.float32)
        task = take_one(job, _COUNTER)
        while task * _TASK < numbers:
            for first in range(task * _TASK, min(numbers, task * _TASK + _TASK), _BLOCK):
                target = total[first : min(numbers, first + _BLOCK)]
                values = room[: target.shape[0]]
                read(values, part[first : first + target.shape[0]])
                for i in range(target.shape[0]):
                    target[i] += values[i]
            task = take_one(job, _COUNTER)

    return tasks


_tasks = worker(_make, _STAMP)
_accumulating = worker(_make_accumulating, _STAMP)
