"""Compiled CPU loops of the output layer's loss: exponentials of scores, in place.

    z_v  ->  exp(z_v - max z)        and, for each row, max z and the sum of the exponentials

The relative error is below 3e-7, plus the rounding of the difference. Exponents below -87 count as
minus infinity. The sum of a row with NaN or plus infinity is NaN. bfloat16 is widened on load and
rounded on store, so that scores need no second copy.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.native.bits import maximum
from regard.native.compile import jit, jit_worker
from regard.native.jobs import COUNTER, Address, array_at, fetch_and_increment, offsets, run_job
from regard.native.rows import add_to, exponentiate, row_reader, row_writer


class ExponentiateJob(NamedTuple):
    """Scores that are replaced by their exponentials; stats (2, rows): maxima and sums."""

    rows: int
    columns: int
    scores: Address
    stats: Address


class AccumulateJob(NamedTuple):
    """A sum of two tensors, written to the first."""

    numbers: int
    total: Address
    part: Address


_AT, _ADD = offsets(ExponentiateJob), offsets(AccumulateJob)
_ROWS_PER_TASK = 4
_ELEMENTS_PER_TASK = 1 << 15
_BLOCK = 2048
"""Elements processed at a time: in float32 and bfloat16, they stay in the L1 cache."""


def exponentiate_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Replace scores by exp(score - max); return max and sum of exponentials by row, (rows, 1)."""
    rows, columns = scores.shape
    stats = scores.new_empty(2, rows, 1, dtype=torch.float32)
    job = ExponentiateJob(rows, columns, scores, stats)
    run_job(_exponentiate_tasks(scores.dtype), job, 1 + rows // _ROWS_PER_TASK)
    highest, total = stats
    return highest, total


def accumulate(total: Tensor, part: Tensor) -> None:
    """Add `part` to `total`, both contiguous, without torch's float32 copy of a bfloat16 part."""
    job = AccumulateJob(total.numel(), total, part)
    most = 1 + total.numel() // _ELEMENTS_PER_TASK
    run_job(_accumulate_tasks(part.dtype), job, most)


@jit
def _max_value(values):
    """Return the largest value, unless one is NaN."""
    most = np.float32(-np.inf)
    for i in range(values.shape[0]):
        most = maximum(most, values[i])
    return most


@jit
def _sum(values):
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += values[i]
    return total


@jit_worker
def _exponentiate_tasks(dtype):
    read, write = row_reader(dtype), row_writer(dtype)

    def tasks(address):
        job = carray(address, (_AT.length,), np.int64)
        rows, columns = job[_AT.rows], job[_AT.columns]
        scores = array_at(job, _AT.scores, (rows, columns), dtype)
        stats = array_at(job, _AT.stats, (2, rows), np.float32)
        buffer = np.empty(min(columns, _BLOCK), np.float32)
        task = fetch_and_increment(job, COUNTER)
        while task * _ROWS_PER_TASK < rows:
            start = task * _ROWS_PER_TASK
            for row in range(start, min(rows, start + _ROWS_PER_TASK)):
                check, most = np.float32(0), np.float32(-np.inf)
                for first in range(0, columns, _BLOCK):
                    block = scores[row, first : min(columns, first + _BLOCK)]
                    values = buffer[: block.shape[0]]
                    read(values, block)
                    check += _sum(values)
                    most = max(most, _max_value(values))
                total = np.float32(0)
                for first in range(0, columns, _BLOCK):
                    block = scores[row, first : min(columns, first + _BLOCK)]
                    values = buffer[: block.shape[0]]
                    read(values, block)
                    exponentiate(values, most)
                    total += _sum(values)
                    write(block, values)
                stats[0, row] = most
                stats[1, row] = total if check < np.inf else np.nan
            task = fetch_and_increment(job, COUNTER)

    return tasks


@jit_worker
def _accumulate_tasks(dtype):
    read = row_reader(dtype)

    def tasks(address):
        job = carray(address, (_ADD.length,), np.int64)
        numbers = job[_ADD.numbers]
        total = array_at(job, _ADD.total, (numbers,), np.float32)
        part = array_at(job, _ADD.part, (numbers,), dtype)
        buffer = np.empty(_BLOCK, np.float32)
        task = fetch_and_increment(job, COUNTER)
        while task * _ELEMENTS_PER_TASK < numbers:
            start = task * _ELEMENTS_PER_TASK
            for first in range(start, min(numbers, start + _ELEMENTS_PER_TASK), _BLOCK):
                last = min(numbers, first + _BLOCK)
                values = buffer[: last - first]
                read(values, part[first:last])
                add_to(total[first:last], values)
            task = fetch_and_increment(job, COUNTER)

    return tasks
