"""The most likely next tokens of each row, from logits that are computed for a few rows at a time.

    log p_v = z_v - max z - log sum_v e^{z_v - max z}       z = h E^T

Rules of outputs change z after the sum (regard.native.decoder.rules). Of equal log-probabilities,
the lower token comes first.
"""

import math

import numpy as np

from regard.native.compile import jit
from regard.native.decoder.layout import LOGITS, VOCAB, address, floats, table_of
from regard.native.decoder.matmul import PANELS, SET, product
from regard.native.decoder.rules import apply_rules
from regard.native.decoder.simd import row_max, sum_exp
from regard.native.decoder.tiles import PANEL

_NONE = np.float32(-np.inf)


@jit
def compute_logits(context, items, first, rows):
    """Write logits of rows first .. first + rows of `items` to `LOGITS`, -inf after the last."""
    last, logits = table_of(context).shape[0] - 1, floats(context, LOGITS)
    product(context, last, items[first:], rows, logits, _NONE, SET)


@jit
def _row_top_tokens(row_logits, vocab, width, log_prob, banned, past, row, tokens, totals):
    """Select one row's most likely continuations by log p + log_prob, in ties the lower token.

    Returns their number, or -1 if the logits hold NaN.
    """
    start, most = address(row_logits), tokens.shape[0]
    top = row_max(start, width)
    norm = sum_exp(start, top, width)
    if not norm > 0:
        return -1
    apply_rules(past, row, row_logits)
    log_norm, count, least = np.float32(math.log(norm)), 0, _NONE
    for begin in range(0, width, PANEL):
        if ((row_max(start + 4 * begin, PANEL) - top) - log_norm) + log_prob <= least:
            continue
        for token in range(begin, min(begin + PANEL, vocab)):
            total = ((row_logits[token] - top) - log_norm) + log_prob
            if total <= least or banned[token]:
                continue
            at = min(count, most - 1)
            while at > 0 and totals[at - 1] < total:
                totals[at], tokens[at] = totals[at - 1], tokens[at - 1]
                at -= 1
            totals[at], tokens[at] = total, token
            count = min(count + 1, most)
            if count == most:
                least = totals[most - 1]
    return count


@jit
def top_tokens(context, items, rows, log_probs, banned, past, tokens, totals, counts):
    """Set tokens, totals (rows, n) to the top continuations, counts to their number, -1 for NaN."""
    vocab, logits, table = context[VOCAB], floats(context, LOGITS), table_of(context)
    width = table[table.shape[0] - 1, PANELS] * PANEL
    step = logits.shape[0]
    for first in range(0, rows, step):
        count = min(step, rows - first)
        compute_logits(context, items, first, count)
        for row in range(count):
            at = first + row
            counts[at] = _row_top_tokens(
                logits[row], vocab, width, log_probs[at], banned, past, at, tokens[at], totals[at]
            )
