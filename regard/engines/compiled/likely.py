"""The likeliest tokens of each row, from the output layer's scores, which are never all kept.

log p_v = z_v - max z - log sum_v e^{z_v - max z}       z = h E^T, some rows at a time
"""

import math

import numpy as np

from regard.engines.compiled.compiling import compiled
from regard.engines.compiled.lanes import peak, spread
from regard.engines.compiled.products import PANELS, SET, product
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import LOGITS, VOCAB, address, floats, table_of

_NONE = np.float32(-np.inf)
_NO_FLOOR = np.float32(-np.inf)


@compiled
def scores_of(work, given, first, rows):
    """Scores of all tokens of rows first .. first + rows of `given`, into `LOGITS`; minus infinity behind the last."""
    product(work, table_of(work).shape[0] - 1, given[first:], rows, floats(work, LOGITS), _NO_FLOOR, SET)


@compiled
def _best_of(line, vocab, width, before, banned, tokens, totals):
    """The likeliest continuations of one row: log p + before, highest first, of equals the lower token first.

    Returns how many there are, or -1 if scores hold NaN.
    """
    at_line, most = address(line), tokens.shape[0]
    top = peak(at_line, width)
    norm = spread(at_line, top, width)
    if not norm > 0:
        return -1
    log_norm, found, least = np.float32(math.log(norm)), 0, _NONE
    for begin in range(0, width, PANEL):
        if ((peak(at_line + 4 * begin, PANEL) - top) - log_norm) + before <= least:
            continue
        for token in range(begin, min(begin + PANEL, vocab)):
            total = ((line[token] - top) - log_norm) + before
            if total <= least or banned[token]:
                continue
            at = min(found, most - 1)
            while at > 0 and totals[at - 1] < total:
                totals[at], tokens[at] = totals[at - 1], tokens[at - 1]
                at -= 1
            totals[at], tokens[at] = total, token
            found = min(found + 1, most)
            if found == most:
                least = totals[most - 1]
    return found


@compiled
def likeliest(work, given, rows, before, banned, tokens, totals, found):
    """tokens, totals (rows, most): the likeliest continuations of each row; found: how many, -1 where there is NaN."""
    vocab, logits, table = work[VOCAB], floats(work, LOGITS), table_of(work)
    width = table[table.shape[0] - 1, PANELS] * PANEL
    some = logits.shape[0]
    for first in range(0, rows, some):
        count = min(some, rows - first)
        scores_of(work, given, first, count)
        for row in range(count):
            at = first + row
            found[at] = _best_of(logits[row], vocab, width, before[at], banned, tokens[at], totals[at])
