"""Additive attention on a CPU for few queries, as in step-by-step decoding, forward and backward.

With one to four queries, tables of exponentials would cost more than they save (unless the caller
caches e^{2 keys} between reads), and tiles of keys have nothing to share.
Each query reads the keys once; for gradients, r = 1 / (1 + e^{2(q + k)}) of a tile of keys is kept
between the scores and their gradients, so that exponentials and divisions are computed once.

Source: bahdanau2015, appendix A.1.2 (the score); rabe2021 (weights recomputed from their
        normalizer).
"""

import math
from collections import namedtuple

import numpy as np

from regard.native.additive.cpu.forward import normalize_v
from regard.native.additive.cpu.jobs import AT, claim_tasks, gradient_arrays, input_arrays, open_job
from regard.native.additive.cpu.loops import (
    KEYS,
    direct_scores,
    exp_nonpositive,
    exp_table,
    four_residuals,
    max_value,
    one_residual,
    reciprocals,
)
from regard.native.additive.cpu.rules import add_bias_gradients, finish_scores, key_ranges
from regard.native.compile import jit, jit_inline, jit_worker


@jit
def _softmax(scores, const):
    """Replace scores by e^{s - max}; return the maximum and their sum, or -inf and zero."""
    top = max_value(scores)
    if top == -np.inf:
        return top, const[5]
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        scores[j] = exp_nonpositive(scores[j] - top, half, zero, clamp)
        total += scores[j]
    return top, total


@jit
def _read_values(weights, values, begin, end, out):
    """Set out = sum_j weights[j] values[j], begin <= j < end."""
    out[:] = 0
    j = begin
    while j + 4 <= end:
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        p, q, r, s = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(out.shape[0]):
            out[i] += (p * a[i] + q * b[i]) + (r * c[i] + s * d[i])
        j += 4
    while j < end:
        a, p = values[j], weights[j]
        for i in range(out.shape[0]):
            out[i] += p * a[i]
        j += 1


@jit
def _scores_from_exps(row, keys, v, begin, end, const, out):
    """Set out[j] = sum_d v_d / (1 + row[d] keys[j, d]), begin <= j < end, of exponentials."""
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


@jit_inline
def _read_task(rules, inputs, b, g, has_exps):
    """Process every query that reads one key head of one batch entry."""
    heads, num_queries, dim = inputs.query.shape[1:]
    keys, values, const = inputs.keys[b, g], inputs.values[b, g], inputs.const
    group, num_keys, dtype = heads // inputs.keys.shape[1], keys.shape[0], keys.dtype
    scores, unit_v = np.empty(num_keys, dtype), np.empty(dim, dtype)
    lo, hi, exps = np.empty(1, np.int64), np.empty(1, np.int64), np.empty((1, dim), dtype)
    for h in range(g * group, (g + 1) * group):
        total, most = normalize_v(inputs.v[h], const, unit_v)
        queries, lse = inputs.query[b, h], inputs.lse[b, h]
        for i in range(num_queries):
            begin, end = key_ranges(rules, b, h, i, i + 1, num_keys, lo, hi)
            target = inputs.out[b, h, i]
            if begin >= end:
                target[:], lse[i] = 0, -np.inf
                continue
            if has_exps:
                exp_table(queries, i, num_queries, const, exps)
                _scores_from_exps(exps[0], keys, unit_v, begin, end, const, scores)
            else:
                direct_scores(queries[i], keys, unit_v, 0, begin, end, const, scores)
            finish_scores(rules, b, h, i, 0, begin, end, begin, end, total, -most - most, scores)
            top, norm = _softmax(scores[begin:end], const)
            if top == -np.inf:
                target[:], lse[i] = 0, -np.inf
                continue
            _read_values(scores, values, begin, end, target)
            share = const[0] / norm
            for c in range(target.shape[0]):
                target[c] *= share
            lse[i] = top + math.log(norm)


@jit
def _residuals(row, keys, v, begin, end, has_exps, const, residuals, scores):
    """Set residuals[j - begin, d] = 1 / (1 + e^{2(row[d] + keys[j, d])}) and scores v . residuals.

    has_exps: row and keys are exponentials.
    """
    one, cap, clamp, zero = const[0], const[1], const[2], const[5]
    j = begin
    while j + 4 <= end:
        k0, k1, k2, k3 = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        at = j - begin
        out0, out1 = residuals[at], residuals[at + 1]
        out2, out3 = residuals[at + 2], residuals[at + 3]
        s0 = s1 = s2 = s3 = zero
        if has_exps:
            for d in range(row.shape[0]):
                out0[d], out1[d], out2[d], out3[d] = reciprocals(
                    one, cap, row[d], k0[d], k1[d], k2[d], k3[d]
                )
        else:
            for d in range(row.shape[0]):
                out0[d], out1[d], out2[d], out3[d] = four_residuals(
                    row[d], k0[d], k1[d], k2[d], k3[d], one, cap, clamp
                )
        for d in range(row.shape[0]):
            r0, r1, r2, r3 = out0[d], out1[d], out2[d], out3[d]
            s0 += v[d] * r0
            s1 += v[d] * r1
            s2 += v[d] * r2
            s3 += v[d] * r3
        scores[at], scores[at + 1], scores[at + 2], scores[at + 3] = s0, s1, s2, s3
        j += 4
    while j < end:
        k0, out0 = keys[j], residuals[j - begin]
        s0 = zero
        for d in range(row.shape[0]):
            if has_exps:
                x = one + row[d] * k0[d]
                out0[d] = one / (cap if cap < x else x)
            else:
                out0[d] = one_residual(row[d], k0[d], one, cap, clamp)
        for d in range(row.shape[0]):
            s0 += v[d] * out0[d]
        scores[j - begin] = s0
        j += 1


@jit
def _score_gradients(scores, grad, delta, lse, values, first, const, grad_values):
    """Replace scores by ds = p (grad . values - delta), add p grad to grad_values, return sum."""
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        value = values[first + j]
        p = exp_nonpositive(scores[j] - lse, half, zero, clamp)
        slope = zero
        for c in range(grad.shape[0]):
            slope += grad[c] * value[c]
        if grad_values.shape[0] > 0:
            target = grad_values[first + j]
            for c in range(grad.shape[0]):
                target[c] += p * grad[c]
        scores[j] = p * (slope - delta)
        total += scores[j]
    return total


@jit
def _add_residual_gradients(residuals, slopes, weights, first, grad_row, grad_keys, grad_v):
    """Add sums of slope r to grad_v, of slope r (1 - r) to grad_row and (weighted) grad_keys."""
    j = 0
    while j + 4 <= slopes.shape[0]:
        n = first + j
        r0, r1, r2, r3 = residuals[j], residuals[j + 1], residuals[j + 2], residuals[j + 3]
        t0, t1, t2, t3 = grad_keys[n], grad_keys[n + 1], grad_keys[n + 2], grad_keys[n + 3]
        e0, e1, e2, e3 = slopes[j], slopes[j + 1], slopes[j + 2], slopes[j + 3]
        for d in range(grad_row.shape[0]):
            u0, u1, u2, u3 = e0 * r0[d], e1 * r1[d], e2 * r2[d], e3 * r3[d]
            grad_v[d] += (u0 + u1) + (u2 + u3)
            u0, u1, u2, u3 = u0 - u0 * r0[d], u1 - u1 * r1[d], u2 - u2 * r2[d], u3 - u3 * r3[d]
            grad_row[d] += (u0 + u1) + (u2 + u3)
            t0[d] += weights[d] * u0
            t1[d] += weights[d] * u1
            t2[d] += weights[d] * u2
            t3[d] += weights[d] * u3
        j += 4
    while j < slopes.shape[0]:
        r0, t0, e0 = residuals[j], grad_keys[first + j], slopes[j]
        for d in range(grad_row.shape[0]):
            u0 = e0 * r0[d]
            grad_v[d] += u0
            u0 -= u0 * r0[d]
            grad_row[d] += u0
            t0[d] += weights[d] * u0
        j += 1


RowBuffers = namedtuple("RowBuffers", "residuals scores v weights total_v exps grad_row grad_v")


@jit
def _backward_row(rules, inputs, grads, slot, b, h, g, i, begin, end, has_exps, is_first, block):
    """Process the keys of one query tile by tile; return the sum of its score gradients.

    is_first: gradients of keys and values are not initialized yet.
    """
    const, grad, out = inputs.const, inputs.grad[b, h, i], inputs.out[b, h, i]
    keys, values, lse = inputs.keys[b, g], inputs.values[b, g], inputs.lse[b, h, i]
    grad_keys = grads.keys[0, b, g]
    grad_values = grads.values[0, b, g] if grads.values.size > 0 else block.residuals[:0]
    row = inputs.query[b, h, i]
    if has_exps:
        exp_table(inputs.query[b, h], i, i + 1, const, block.exps)
        row = block.exps[0]
    delta = total = const[5]
    for c in range(grad.shape[0]):
        delta += grad[c] * out[c]
    if is_first:
        grad_keys[:begin], grad_keys[end:], grad_values[:begin], grad_values[end:] = 0, 0, 0, 0
    for first in range(begin, end, KEYS):
        width = min(KEYS, end - first)
        tile = block.scores[:width]
        if is_first:  # a tile at a time, so that it is still in the cache when something is added
            grad_keys[first : first + width], grad_values[first : first + width] = 0, 0
        _residuals(row, keys, block.v, first, first + width, has_exps, const, block.residuals, tile)
        finish_scores(
            rules, b, h, i, first, 0, width, 0, width, block.total_v[0], -const[0] - const[0], tile
        )
        total += _score_gradients(tile, grad, delta, lse, values, first, const, grad_values)
        add_bias_gradients(rules, grads, slot, b, h, i, first, 0, width, tile)
        _add_residual_gradients(
            block.residuals, tile, block.weights, first, block.grad_row, grad_keys, block.grad_v
        )
    return total


@jit_inline
def _backward_task(rules, inputs, grads, slot, b, g, has_exps):
    """Process every query that reads one key head of one batch entry."""
    heads, num_queries, dim = inputs.query.shape[1:]
    group = heads // inputs.keys.shape[1]
    dtype, const, num_keys = inputs.query.dtype, inputs.const, inputs.keys.shape[2]
    block = RowBuffers(
        residuals=np.empty((KEYS, dim), dtype),
        scores=np.empty(KEYS, dtype),
        v=np.empty(dim, dtype),
        weights=np.empty(dim, dtype),
        total_v=np.empty(1, dtype),
        exps=np.empty((1, dim), dtype),
        grad_row=np.empty(dim, dtype),
        grad_v=np.empty(dim, dtype),
    )
    lo, hi = np.empty(1, np.int64), np.empty(1, np.int64)
    is_first = True
    for h in range(g * group, (g + 1) * group):
        v = inputs.v[h]
        total = sum_v = const[5]
        for d in range(dim):
            block.v[d], block.weights[d], block.grad_v[d] = v[d], 4 * v[d], const[5]
        for d in range(dim):
            sum_v += v[d]
        block.total_v[0] = sum_v
        for i in range(num_queries):
            begin, end = key_ranges(rules, b, h, i, i + 1, num_keys, lo, hi)
            block.grad_row[:] = 0
            if begin < end and inputs.lse[b, h, i] > -np.inf:
                total += _backward_row(
                    rules, inputs, grads, slot, b, h, g, i, begin, end, has_exps, is_first, block
                )
                is_first = False
            target = grads.query[b, h, i]
            for d in range(dim):
                target[d] = block.weights[d] * block.grad_row[d]
        grad_v = grads.v[0, b, h]
        for d in range(dim):
            grad_v[d] = total - (block.grad_v[d] + block.grad_v[d])
    if is_first:
        grads.keys[0, b, g] = 0
        if grads.values.size > 0:
            grads.values[0, b, g] = 0


@jit_worker
def forward_steps(dtype):
    """Run forward tasks for few queries: a task is a key head of a batch entry, without parts."""

    def run(address):
        job, slot = open_job(address)
        inputs, rules = input_arrays(job, dtype)
        for b, g, _part in claim_tasks(job, slot):
            _read_task(rules, inputs, b, g, job[AT.has_exps] > 0)

    return run


@jit_worker
def backward_steps(dtype):
    """Run backward tasks for few queries."""

    def run(address):
        job, slot = open_job(address)
        inputs, rules = input_arrays(job, dtype)
        grads = gradient_arrays(job, dtype)
        for b, g, _part in claim_tasks(job, slot):
            _backward_task(rules, inputs, grads, slot, b, g, job[AT.has_exps] > 0)

    return run
