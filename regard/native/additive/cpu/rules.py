"""Masks and biases of a block of query rows, inside the CPU loops of additive attention.

Masks and biases ("rules") are flat arrays with strides, so that one formula serves every broadcast
and layout:

    first, last, allowed, bias   at b s0 + h s1 + i s2 (+ j s3); stride zero for axes of size one
    diagonals                    at b s0 + h s1 + (j - i + M - 1) s2: a bias in O(M + N) memory

An array of size zero is an absent rule. A row reads only first <= j < last, so loops run over those
keys alone; `allowed` is checked for every four rows and tile before any score is computed.

Inputs are the arrays that a pass reads, and the results of the forward pass; Gradients those that
the backward pass writes.

Source: press2022 (a bias along diagonals), raffel2020, section 2.1.
"""

from collections import namedtuple

import numpy as np

from regard.native.additive.cpu.loops import LANES
from regard.native.compile import jit

Rules = namedtuple(  # numba supports only named tuples of collections
    "Rules",
    "first first_strides last last_strides allowed allowed_strides bias bias_strides "
    "diagonals diagonal_strides num_queries",
)
Inputs = namedtuple("Inputs", "query keys values v grad out lse const")
Gradients = namedtuple("Gradients", "query keys values v bias diagonals")
_MINUS_INFINITY = np.float32(-np.inf)


@jit
def key_ranges(rules, b, h, begin, end, num_keys, lo, hi):
    """Set the range lo[r] <= j < hi[r] of each row r, (0, 0) if none; return that of the block."""
    lo[:], hi[:] = 0, 0
    least, most = num_keys, 0
    for i in range(begin, end):
        start, stop = 0, num_keys
        if rules.first.size > 0:
            s = rules.first_strides
            start = max(start, rules.first[b * s[0] + h * s[1] + i * s[2]])
        if rules.last.size > 0:
            s = rules.last_strides
            stop = min(stop, rules.last[b * s[0] + h * s[1] + i * s[2]])
        if start < stop:
            lo[i - begin], hi[i - begin] = start, stop
            least, most = min(least, start), max(most, stop)
    return least, most


@jit
def _any_allowed(rules, b, h, i, begin, end):
    s = rules.allowed_strides
    base = b * s[0] + h * s[1] + i * s[2]
    for j in range(begin, end):
        if rules.allowed[base + j * s[3]]:
            return True
    return False


@jit
def tile_columns(rules, b, h, row, lo, hi, tile, width, begin, end):
    """Set the columns begin <= j < end of a tile that each four rows read; return True if any.

    begin is a multiple of LANES, and so is end unless that exceeds the width of the tile.
    """
    is_any = False
    for quad in range(begin.shape[0]):
        least, most = width, 0
        for r in range(4 * quad, 4 * quad + 4):
            start, stop = max(lo[r] - tile, 0), min(hi[r] - tile, width)
            if start >= stop:
                continue
            if rules.allowed.size > 0 and not _any_allowed(
                rules, b, h, row + r, tile + start, tile + stop
            ):
                continue
            least, most = min(least, start), max(most, stop)
        if least < most:
            begin[quad] = least // LANES * LANES
            end[quad] = min((most + LANES - 1) // LANES * LANES, width)
            is_any = True
        else:
            begin[quad], end[quad] = 0, 0
    return is_any


@jit
def _add_strided(scores, bias, at, step):
    if step == 1:
        row = bias[at : at + scores.shape[0]]
        for j in range(scores.shape[0]):
            scores[j] += row[j]
    else:
        for j in range(scores.shape[0]):
            scores[j] += bias[at + j * step]


@jit
def finish_scores(rules, b, h, i, tile, lo, hi, begin, end, base, scale, scores):
    """Set scores[j] = base + scale scores[j] + biases, begin <= j < end; -inf for masked keys.

    lo, hi: the columns of the tile that the row reads.
    """
    lo, hi = min(max(lo, begin), end), max(min(hi, end), begin)
    row = scores[begin:end]
    for j in range(row.shape[0]):
        row[j] = base + scale * row[j]
    if rules.bias.size > 0:
        at, step = _locate(rules.bias_strides, b, h, i, tile)
        _add_strided(scores[lo:hi], rules.bias, at + lo * step, step)
    if rules.diagonals.size > 0:
        s = rules.diagonal_strides
        at = b * s[0] + h * s[1] + (tile - i + rules.num_queries - 1) * s[2]
        _add_strided(scores[lo:hi], rules.diagonals, at + lo * s[2], s[2])
    if rules.allowed.size > 0:
        at, step = _locate(rules.allowed_strides, b, h, i, tile)
        for j in range(lo, hi):
            if not rules.allowed[at + j * step]:
                scores[j] = _MINUS_INFINITY
    scores[begin:lo] = _MINUS_INFINITY
    scores[hi:end] = _MINUS_INFINITY


@jit
def add_bias_gradients(rules, grads, slot, b, h, i, tile, lo, hi, ds):
    """Add the gradients of the scores to those of the biases."""
    if grads.bias.size > 0:
        at, step = _locate(rules.bias_strides, b, h, i, tile)
        for j in range(lo, hi):
            grads.bias[slot, at + j * step] += ds[j]
    if grads.diagonals.size > 0:
        s = rules.diagonal_strides
        at = b * s[0] + h * s[1] + (tile - i + rules.num_queries - 1) * s[2]
        for j in range(lo, hi):
            grads.diagonals[slot, at + j * s[2]] += ds[j]


@jit
def _locate(steps, b, h, i, j):
    """Return the offset of (b, h, i, j) in a flat array, and the stride between keys."""
    return b * steps[0] + h * steps[1] + i * steps[2] + j * steps[3], steps[3]
