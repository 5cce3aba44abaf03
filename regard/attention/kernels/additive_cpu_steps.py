"""Additive attention on a CPU where queries are few: a decoder that asks one at a time, and its gradients.

With a query or four, tables of exponentials would cost more than they save (unless the caller keeps e^{2 keys} from
read to read), and tiles of keys have nothing to share.
Each query goes through the keys once; for gradients, r = 1 / (1 + e^{2(q + k)}) of a tile of keys is held between the
scores and what they send back, so that exponentials and divisions are taken once.

Source: bahdanau2015, appendix A.1.2 (the score); rabe2021 (weights again from their normalizer).
"""

import math
from collections import namedtuple

import numpy as np

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_forward import unit
from regard.attention.kernels.additive_cpu_jobs import begin, gradients, inputs, is_tabled, more, results
from regard.attention.kernels.additive_cpu_loops import (
    KEYS,
    decay,
    direct_scores,
    four_residuals,
    largest,
    one_residual,
    reciprocals,
    table,
)
from regard.attention.kernels.additive_cpu_rules import add_bias, limits, settle


@compiled
def _soften(scores, const):
    """Scores become e^{s - max}; returns the maximum and their sum, or minus infinity and zero."""
    top = largest(scores)
    if top == -np.inf:
        return top, const[5]
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        scores[j] = decay(scores[j] - top, half, zero, clamp)
        total += scores[j]
    return top, total


@compiled
def _read_values(shares, values, begin, end, out):
    """out = sum_j shares[j] values[j], begin <= j < end."""
    out[:] = 0
    j = begin
    while j + 4 <= end:
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        p, q, r, s = shares[j], shares[j + 1], shares[j + 2], shares[j + 3]
        for i in range(out.shape[0]):
            out[i] += (p * a[i] + q * b[i]) + (r * c[i] + s * d[i])
        j += 4
    while j < end:
        a, p = values[j], shares[j]
        for i in range(out.shape[0]):
            out[i] += p * a[i]
        j += 1


@compiled
def _tabled_scores(row, keys, v, begin, end, const, out):
    """out[j] = sum_d v_d / (1 + row[d] keys[j, d]) for begin <= j < end, of exponentials."""
    one, cap, zero = const[0], const[1], const[5]
    j = begin
    while j + 4 <= end:
        k0, k1, k2, k3 = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        s0 = s1 = s2 = s3 = zero
        for d in range(row.shape[0]):
            r0, r1, r2, r3 = reciprocals(one, cap, row[d], k0[d], k1[d], k2[d], k3[d])
            s0 += v[d] * r0
            s1 += v[d] * r1
            s2 += v[d] * r2
            s3 += v[d] * r3
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
        j += 4
    while j < end:
        k0 = keys[j]
        s0 = zero
        for d in range(row.shape[0]):
            x = one + row[d] * k0[d]
            s0 += v[d] / (cap if cap < x else x)
        out[j] = s0
        j += 1


@pasted
def _read_task(rules, b, g, tabled, query, keys, values, v, const, out, lse):
    """Every query that reads one key head of one batch entry."""
    heads, num_queries, dim = query.shape[1:]
    group = heads // keys.shape[1]
    num_keys = keys.shape[2]
    scores, scaled = np.empty(num_keys, query.dtype), np.empty(dim, query.dtype)
    lo, hi, exps = np.empty(1, np.int64), np.empty(1, np.int64), np.empty((1, dim), query.dtype)
    for h in range(g * group, (g + 1) * group):
        total, most = unit(v[h if v.shape[0] > 1 else 0], const, scaled)
        for i in range(num_queries):
            begin, end = limits(rules, b, h, i, i + 1, num_keys, lo, hi)
            to = out[b, h, i]
            if begin >= end:
                to[:], lse[b, h, i] = 0, -np.inf
                continue
            if tabled:
                table(query[b, h], i, num_queries, const, exps)
                _tabled_scores(exps[0], keys[b, g], scaled, begin, end, const, scores)
            else:
                direct_scores(query[b, h, i], keys[b, g], scaled, 0, begin, end, const, scores)
            settle(rules, b, h, i, 0, begin, end, begin, end, total, -most - most, scores)
            top, norm = _soften(scores[begin:end], const)
            if top == -np.inf:
                to[:], lse[b, h, i] = 0, -np.inf
                continue
            _read_values(scores, values[b, g], begin, end, to)
            share = const[0] / norm
            for c in range(to.shape[0]):
                to[c] *= share
            lse[b, h, i] = top + math.log(norm)


@compiled
def _residuals(row, keys, v, begin, end, tabled, const, residuals, scores):
    """residuals[j - begin, d] = 1 / (1 + e^{2(row[d] + keys[j, d])}) and scores[j - begin] = v . residuals.

    tabled: row and keys are exponentials.
    """
    one, cap, clamp, zero = const[0], const[1], const[2], const[5]
    j = begin
    while j + 4 <= end:
        k0, k1, k2, k3 = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        at = j - begin
        to0, to1, to2, to3 = residuals[at], residuals[at + 1], residuals[at + 2], residuals[at + 3]
        s0 = s1 = s2 = s3 = zero
        if tabled:
            for d in range(row.shape[0]):
                to0[d], to1[d], to2[d], to3[d] = reciprocals(one, cap, row[d], k0[d], k1[d], k2[d], k3[d])
        else:
            for d in range(row.shape[0]):
                to0[d], to1[d], to2[d], to3[d] = four_residuals(row[d], k0[d], k1[d], k2[d], k3[d], one, cap, clamp)
        for d in range(row.shape[0]):
            r0, r1, r2, r3 = to0[d], to1[d], to2[d], to3[d]
            s0 += v[d] * r0
            s1 += v[d] * r1
            s2 += v[d] * r2
            s3 += v[d] * r3
        scores[at], scores[at + 1], scores[at + 2], scores[at + 3] = s0, s1, s2, s3
        j += 4
    while j < end:
        k0, to0 = keys[j], residuals[j - begin]
        s0 = zero
        for d in range(row.shape[0]):
            if tabled:
                x = one + row[d] * k0[d]
                to0[d] = one / (cap if cap < x else x)
            else:
                to0[d] = one_residual(row[d], k0[d], one, cap, clamp)
            s0 += v[d] * to0[d]
        scores[j - begin] = s0
        j += 1


@compiled
def _slopes(scores, grad, delta, lse, values, first, const, to_values):
    """scores become p (grad . values - delta), p = e^{score - lse}; to_values += p grad. Returns the slopes' sum."""
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        value = values[first + j]
        p = decay(scores[j] - lse, half, zero, clamp)
        slope = zero
        for c in range(grad.shape[0]):
            slope += grad[c] * value[c]
        if to_values.shape[0] > 0:
            to = to_values[first + j]
            for c in range(grad.shape[0]):
                to[c] += p * grad[c]
        scores[j] = p * (slope - delta)
        total += scores[j]
    return total


@compiled
def _send(residuals, slopes, weights, first, to_row, to_keys, to_v):
    """What slopes send back through r: sums of slope r to v, and of weights slope r (1 - r) to the row and the keys."""
    j = 0
    while j + 4 <= slopes.shape[0]:
        n = first + j
        r0, r1, r2, r3 = residuals[j], residuals[j + 1], residuals[j + 2], residuals[j + 3]
        t0, t1, t2, t3 = to_keys[n], to_keys[n + 1], to_keys[n + 2], to_keys[n + 3]
        e0, e1, e2, e3 = slopes[j], slopes[j + 1], slopes[j + 2], slopes[j + 3]
        for d in range(to_row.shape[0]):
            u0, u1, u2, u3 = e0 * r0[d], e1 * r1[d], e2 * r2[d], e3 * r3[d]
            to_v[d] += (u0 + u1) + (u2 + u3)
            u0, u1, u2, u3 = u0 - u0 * r0[d], u1 - u1 * r1[d], u2 - u2 * r2[d], u3 - u3 * r3[d]
            to_row[d] += (u0 + u1) + (u2 + u3)
            t0[d] += weights[d] * u0
            t1[d] += weights[d] * u1
            t2[d] += weights[d] * u2
            t3[d] += weights[d] * u3
        j += 4
    while j < slopes.shape[0]:
        r0, t0, e0 = residuals[j], to_keys[first + j], slopes[j]
        for d in range(to_row.shape[0]):
            u0 = e0 * r0[d]
            to_v[d] += u0
            u0 -= u0 * r0[d]
            to_row[d] += u0
            t0[d] += weights[d] * u0
        j += 1


Block = namedtuple("Block", "residuals scores v weights total_v exps to_row to_v")


@compiled
def _back_row(rules, given, wanted, slot, b, h, g, i, begin, end, tabled, fresh, block):
    """One query's keys, tile by tile; returns the sum of its slopes. What it adds to is fresh if nobody did yet."""
    const, grad, out = given.const, given.grad[b, h, i], given.out[b, h, i]
    keys, values, lse = given.keys[b, g], given.values[b, g], given.lse[b, h, i]
    to_keys = wanted.keys[0, b, g]
    to_values = wanted.values[0, b, g] if wanted.values.size > 0 else block.residuals[:0]
    row = given.query[b, h, i]
    if tabled:
        table(given.query[b, h], i, i + 1, const, block.exps)
        row = block.exps[0]
    delta = total = const[5]
    for c in range(grad.shape[0]):
        delta += grad[c] * out[c]
    if fresh:
        to_keys[:begin], to_keys[end:], to_values[:begin], to_values[end:] = 0, 0, 0, 0
    for first in range(begin, end, KEYS):
        width = min(KEYS, end - first)
        tile = block.scores[:width]
        if fresh:  # a tile at a time, so that it is still in the cache when something is added
            to_keys[first : first + width], to_values[first : first + width] = 0, 0
        _residuals(row, keys, block.v, first, first + width, tabled, const, block.residuals, tile)
        settle(rules, b, h, i, first, 0, width, 0, width, block.total_v[0], -const[0] - const[0], tile)
        total += _slopes(tile, grad, delta, lse, values, first, const, to_values)
        add_bias(rules, wanted, slot, b, h, i, first, 0, width, tile)
        _send(block.residuals, tile, block.weights, first, block.to_row, to_keys, block.to_v)
    return total


@pasted
def _back_task(rules, given, wanted, slot, b, g, tabled):
    """Every query that reads one key head of one batch entry."""
    heads, num_queries, dim = given.query.shape[1:]
    group = heads // given.keys.shape[1]
    dtype, const, num_keys = given.query.dtype, given.const, given.keys.shape[2]
    block = Block(
        residuals=np.empty((KEYS, dim), dtype),
        scores=np.empty(KEYS, dtype),
        v=np.empty(dim, dtype),
        weights=np.empty(dim, dtype),
        total_v=np.empty(1, dtype),
        exps=np.empty((1, dim), dtype),
        to_row=np.empty(dim, dtype),
        to_v=np.empty(dim, dtype),
    )
    lo, hi = np.empty(1, np.int64), np.empty(1, np.int64)
    fresh = True
    for h in range(g * group, (g + 1) * group):
        v = given.v[h if given.v.shape[0] > 1 else 0]
        total = block.total_v[0] = const[5]
        for d in range(dim):
            block.v[d], block.weights[d], block.to_v[d] = v[d], 4 * v[d], const[5]
            block.total_v[0] += v[d]
        for i in range(num_queries):
            begin, end = limits(rules, b, h, i, i + 1, num_keys, lo, hi)
            block.to_row[:] = 0
            if begin < end and given.lse[b, h, i] > -np.inf:
                total += _back_row(rules, given, wanted, slot, b, h, g, i, begin, end, tabled, fresh, block)
                fresh = False
            to = wanted.query[b, h, i]
            for d in range(dim):
                to[d] = block.weights[d] * block.to_row[d]
        to_v = wanted.v[0, b, h]
        for d in range(dim):
            to_v[d] = total - (block.to_v[d] + block.to_v[d])
    if fresh:
        wanted.keys[0, b, g] = 0
        if wanted.values.size > 0:
            wanted.values[0, b, g] = 0


@worker
def forward_steps(dtype, stamp):
    """As `forward_tasks`, for few queries: a task is a key head of a batch entry, and has no parts."""

    def run(address):
        _ = stamp
        job, _, task = begin(address)
        query, keys, values, v, rules, const, _ = inputs(job, dtype)
        out, lse = results(job, dtype)
        heads = keys.shape[1]
        while task < keys.shape[0] * heads:
            _read_task(rules, task // heads, task % heads, is_tabled(job), query, keys, values, v, const, out, lse)
            task = more(job, task)

    return run


@worker
def backward_steps(dtype, stamp):
    """As `backward_tasks`, for few queries."""

    def run(address):
        _ = stamp
        job, slot, task = begin(address)
        given, wanted, rules, _ = gradients(job, dtype)
        heads = given.keys.shape[1]
        while task < given.keys.shape[0] * heads:
            _back_task(rules, given, wanted, slot, task // heads, task % heads, is_tabled(job))
            task = more(job, task)

    return run
