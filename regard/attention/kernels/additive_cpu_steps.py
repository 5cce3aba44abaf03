"""Additive attention on a CPU where queries are few: a decoder that asks one at a time, and its gradients.

With a query or four, tables of exponentials would cost more than they save, and tiles of keys have nothing to share.
Each query goes through the keys once; for gradients, r = 1 / (1 + e^{2(q + k)}) of a tile of keys is held between the
scores and what they send back, so that exponentials and divisions are taken once.

Source: bahdanau2015, appendix A.1.2 (the score); rabe2021 (weights again from their normaliser).
"""

import math
from collections.abc import Callable

import numpy as np

from regard.attention.kernels.additive_cpu_compile import STAMP, compiled, kept, pasted
from regard.attention.kernels.additive_cpu_forward import unit
from regard.attention.kernels.additive_cpu_loops import (
    KEYS,
    decay,
    direct_scores,
    four_residuals,
    largest,
    one_residual,
)
from regard.attention.kernels.additive_cpu_rules import Given, Rules, Wanted, add_bias, limits, settle, take

__all__ = ["backward_steps", "forward_steps"]


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


@pasted
def _read_task(rules, b, g, query, keys, values, v, const, out, lse):
    """Every query that reads one key head of one batch entry."""
    heads, num_queries, dim = query.shape[1:]
    group = heads // keys.shape[1]
    num_keys = keys.shape[2]
    scores, scaled = np.empty(num_keys, query.dtype), np.empty(dim, query.dtype)
    lo, hi = np.empty(1, np.int64), np.empty(1, np.int64)
    for h in range(g * group, (g + 1) * group):
        total, most = unit(v[h if v.shape[0] > 1 else 0], const, scaled)
        for i in range(num_queries):
            begin, end = limits(rules, b, h, i, i + 1, num_keys, lo, hi)
            to = out[b, h, i]
            if begin >= end:
                to[:], lse[b, h, i] = 0, -np.inf
                continue
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
def _residuals(row, keys, v, begin, end, const, residuals, scores):
    """residuals[j - begin, d] = 1 / (1 + e^{2(row[d] + keys[j, d])}) and scores[j - begin] = v . residuals."""
    one, cap, clamp, zero = const[0], const[1], const[2], const[5]
    j = begin
    while j + 4 <= end:
        k0, k1, k2, k3 = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        at = j - begin
        to0, to1, to2, to3 = residuals[at], residuals[at + 1], residuals[at + 2], residuals[at + 3]
        s0 = s1 = s2 = s3 = zero
        for d in range(row.shape[0]):
            r0, r1, r2, r3 = four_residuals(row[d], k0[d], k1[d], k2[d], k3[d], one, cap, clamp)
            to0[d], to1[d], to2[d], to3[d] = r0, r1, r2, r3
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


@compiled
def _back_row(rules, given, wanted, slot, b, h, g, i, begin, end, v, weights, total_v, residuals, scores, to_row, to_v):
    """One query's keys, tile by tile; returns the sum of its slopes."""
    const, grad, out = given.const, given.grad[b, h, i], given.out[b, h, i]
    keys, values, lse = given.keys[b, g], given.values[b, g], given.lse[b, h, i]
    to_keys = wanted.keys[0, b, g]
    to_values = wanted.values[0, b, g] if wanted.values.size > 0 else residuals[:0]
    delta = total = const[5]
    for c in range(grad.shape[0]):
        delta += grad[c] * out[c]
    for first in range(begin, end, KEYS):
        width = min(KEYS, end - first)
        tile = scores[:width]
        _residuals(given.query[b, h, i], keys, v, first, first + width, const, residuals, tile)
        settle(rules, b, h, i, first, 0, width, 0, width, total_v, -const[0] - const[0], tile)
        total += _slopes(tile, grad, delta, lse, values, first, const, to_values)
        add_bias(rules, wanted, slot, b, h, i, first, 0, width, tile)
        _send(residuals, tile, weights, first, to_row, to_keys, to_v)
    return total


@pasted
def _back_task(rules, given, wanted, slot, b, g):
    """Every query that reads one key head of one batch entry."""
    heads, num_queries, dim = given.query.shape[1:]
    group = heads // given.keys.shape[1]
    dtype, const, num_keys = given.query.dtype, given.const, given.keys.shape[2]
    residuals, scores = np.empty((KEYS, dim), dtype), np.empty(KEYS, dtype)
    weights, to_row = np.empty(dim, dtype), np.empty(dim, dtype)
    lo, hi = np.empty(1, np.int64), np.empty(1, np.int64)
    wanted.keys[0, b, g] = 0
    if wanted.values.size > 0:
        wanted.values[0, b, g] = 0
    for h in range(g * group, (g + 1) * group):
        v, to_v = given.v[h if given.v.shape[0] > 1 else 0], wanted.v[0, b, h]
        to_v[:] = 0
        total = total_v = const[5]
        for d in range(dim):
            weights[d] = 4 * v[d]
            total_v += v[d]
        for i in range(num_queries):
            begin, end = limits(rules, b, h, i, i + 1, num_keys, lo, hi)
            to_row[:] = 0
            if begin < end and given.lse[b, h, i] > -np.inf:
                total += _back_row(
                    rules, given, wanted, slot, b, h, g, i, begin, end, v, weights, total_v, residuals, scores,
                    to_row, to_v,
                )  # fmt: skip
            to = wanted.query[b, h, i]
            for d in range(dim):
                to[d] = weights[d] * to_row[d]
        for d in range(dim):
            to_v[d] = total - (to_v[d] + to_v[d])


def _kept_by(stamp: str) -> tuple[Callable[..., None], Callable[..., None]]:
    @kept
    def forward_steps(
        counter, step, slot, parts,
        query, keys, values, v,
        first, first_steps, last, last_steps, allowed, allowed_steps, bias, bias_steps, diagonals, diagonal_steps,
        const, out, lse,
    ):  # fmt: skip
        """As `forward_tasks`, for few queries: a task is a key head of a batch entry, and has no parts."""
        rules = Rules(
            first, first_steps, last, last_steps, allowed, allowed_steps, bias, bias_steps, diagonals, diagonal_steps,
            query.shape[2],
        )  # fmt: skip
        heads = keys.shape[1]
        _ = stamp
        task = take(counter, step)
        while task < keys.shape[0] * heads:
            _read_task(rules, task // heads, task % heads, query, keys, values, v, const, out, lse)
            task = take(counter, step)

    @kept
    def backward_steps(
        counter, step, slot, parts,
        query, keys, values, v,
        first, first_steps, last, last_steps, allowed, allowed_steps, bias, bias_steps, diagonals, diagonal_steps,
        const, grad, out, lse,
        to_query, to_keys, to_values, to_v, to_bias, to_diagonals,
    ):  # fmt: skip
        """As `backward_tasks`, for few queries; gradients but those of biases need not come filled with zeros."""
        rules = Rules(
            first, first_steps, last, last_steps, allowed, allowed_steps, bias, bias_steps, diagonals, diagonal_steps,
            query.shape[2],
        )  # fmt: skip
        given = Given(query, keys, values, v, grad, out, lse, const)
        wanted = Wanted(to_query, to_keys, to_values, to_v, to_bias, to_diagonals)
        heads = keys.shape[1]
        _ = stamp
        task = take(counter, step)
        while task < keys.shape[0] * heads:
            _back_task(rules, given, wanted, slot, task // heads, task % heads)
            task = take(counter, step)

    return forward_steps, backward_steps


forward_steps, backward_steps = _kept_by(STAMP)
