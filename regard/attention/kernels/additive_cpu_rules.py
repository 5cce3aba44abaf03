"""Which pairs a block of query rows reads, and what is added to their scores: inside the loops of additive attention.

Rules arrive as flat arrays with steps, so that one address formula serves every broadcast and layout:

    first, last, allowed, bias      at b s0 + h s1 + i s2 (+ j s3), where the step of an axis of size one is zero
    diagonals                       at b s0 + h s1 + (j - i + M - 1) s2: a bias in O(M + N) memory

An array of size zero is a rule that is absent. Rows see only first <= j < last, so loops run over those keys alone;
`allowed` is asked for each four rows and tile before any score is computed.

Given and Wanted are what gradients are made from, and where they go.

Source: press2022 (a bias along diagonals), raffel2020, section 2.1.
"""

from collections import namedtuple

import numpy as np

from regard.attention.kernels.additive_cpu_compile import compiled
from regard.attention.kernels.additive_cpu_loops import LANES

Rules = namedtuple(  # numba knows this form
    "Rules",
    "first first_steps last last_steps allowed allowed_steps bias bias_steps diagonals diagonal_steps num_queries",
)
Given = namedtuple("Given", "query keys values v grad out lse const")
Wanted = namedtuple("Wanted", "query keys values v bias diagonals")
_MINUS_INFINITY = np.float32(-np.inf)


@compiled
def limits(rules, b, h, begin, end, num_keys, lo, hi):
    """Row r of the block reads lo[r] <= j < hi[r], within 0 .. num_keys; (0, 0) if nothing. Returns the block's."""
    lo[:], hi[:] = 0, 0
    least, most = num_keys, 0
    for i in range(begin, end):
        start, stop = 0, num_keys
        if rules.first.size > 0:
            s = rules.first_steps
            start = max(start, rules.first[b * s[0] + h * s[1] + i * s[2]])
        if rules.last.size > 0:
            s = rules.last_steps
            stop = min(stop, rules.last[b * s[0] + h * s[1] + i * s[2]])
        if start < stop:
            lo[i - begin], hi[i - begin] = start, stop
            least, most = min(least, start), max(most, stop)
    return least, most


@compiled
def _any_allowed(rules, b, h, i, begin, end):
    s = rules.allowed_steps
    base = b * s[0] + h * s[1] + i * s[2]
    for j in range(begin, end):
        if rules.allowed[base + j * s[3]]:
            return True
    return False


@compiled
def columns(rules, b, h, row, lo, hi, tile, width, begin, end):
    """Columns of the tile, from key `tile` on, that each four rows read: begin <= j < end. True if there are any.

    begin is a multiple of LANES, and so is end unless that goes beyond the tile's width.
    """
    found = False
    for four in range(begin.shape[0]):
        least, most = width, 0
        for r in range(4 * four, 4 * four + 4):
            start, stop = max(lo[r] - tile, 0), min(hi[r] - tile, width)
            if start >= stop:
                continue
            if rules.allowed.size > 0 and not _any_allowed(rules, b, h, row + r, tile + start, tile + stop):
                continue
            least, most = min(least, start), max(most, stop)
        if least < most:
            begin[four] = least // LANES * LANES
            end[four] = min((most + LANES - 1) // LANES * LANES, width)
            found = True
        else:
            begin[four], end[four] = 0, 0
    return found


@compiled
def _add(scores, bias, at, step):
    if step == 1:
        row = bias[at : at + scores.shape[0]]
        for j in range(scores.shape[0]):
            scores[j] += row[j]
    else:
        for j in range(scores.shape[0]):
            scores[j] += bias[at + j * step]


@compiled
def settle(rules, b, h, i, tile, lo, hi, begin, end, base, scale, scores):
    """scores[j] = base + scale scores[j] + biases for begin <= j < end, minus infinity where row i does not read.

    lo, hi: the columns of the tile that the row reads.
    """
    lo, hi = min(max(lo, begin), end), max(min(hi, end), begin)
    every = scores[begin:end]
    for j in range(every.shape[0]):
        every[j] = base + scale * every[j]
    if rules.bias.size > 0:
        at, step = _where(rules.bias_steps, b, h, i, tile)
        _add(scores[lo:hi], rules.bias, at + lo * step, step)
    if rules.diagonals.size > 0:
        s = rules.diagonal_steps
        at = b * s[0] + h * s[1] + (tile - i + rules.num_queries - 1) * s[2]
        _add(scores[lo:hi], rules.diagonals, at + lo * s[2], s[2])
    if rules.allowed.size > 0:
        at, step = _where(rules.allowed_steps, b, h, i, tile)
        for j in range(lo, hi):
            if not rules.allowed[at + j * step]:
                scores[j] = _MINUS_INFINITY
    scores[begin:lo] = _MINUS_INFINITY
    scores[hi:end] = _MINUS_INFINITY


@compiled
def add_bias(rules, wanted, slot, b, h, i, tile, lo, hi, ds):
    """Gradients of biases are those of the scores that they were added to."""
    if wanted.bias.size > 0:
        at, step = _where(rules.bias_steps, b, h, i, tile)
        for j in range(lo, hi):
            wanted.bias[slot, at + j * step] += ds[j]
    if wanted.diagonals.size > 0:
        s = rules.diagonal_steps
        at = b * s[0] + h * s[1] + (tile - i + rules.num_queries - 1) * s[2]
        for j in range(lo, hi):
            wanted.diagonals[slot, at + j * s[2]] += ds[j]


@compiled
def _where(steps, b, h, i, j):
    """Where (b, h, i, j) lies in a flat array, and the step to the next key."""
    return b * steps[0] + h * steps[1] + i * steps[2] + j * steps[3], steps[3]
