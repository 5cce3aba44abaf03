"""Generation of the most likely tokens, or of the scores of the next ones, in one compiled loop."""

import numpy as np

from regard.native.compile import jit_entry
from regard.native.decoder.blocks import step
from regard.native.decoder.layout import LOGITS, floats
from regard.native.decoder.rules import apply_rules
from regard.native.decoder.search import FINISHED, IS_NAN, IS_NONE
from regard.native.decoder.top_tokens import compute_logits, top_tokens


@jit_entry
def generate(
    context, tokens, positions, slots, keys, values, states, banned, past, out, scores, first, last
):
    """Write the most likely tokens of every row to columns first .. last - 1 of out, in turn.

    tokens, positions: last token of each row and its position; updated to those of the last
    token written. Another thread may read out (rows, tokens) meanwhile.
    past: a Past, with the tokens of prompts; updated to the last token written.
    scores (rows, vocab): if it has rows, no tokens are chosen, and the scores of the next
    tokens are written to it, changed by the rules. Returns FINISHED, or the outcome that prevented
    a choice.
    """
    rows, logits, zeros = len(tokens), floats(context, LOGITS), np.zeros(len(tokens), np.int64)
    log_probs, counts = np.zeros(rows, np.float32), np.zeros(rows, np.int64)
    sources = np.zeros((keys.shape[0], 0, 1), np.float32)
    top, totals = np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.float32)
    for index in range(first, last):
        items = step(context, tokens, positions, rows, slots, keys, values, states, zeros, sources,
                     zeros, zeros)  # fmt: skip
        if len(scores) > 0:
            for begin in range(0, rows, logits.shape[0]):
                count = min(logits.shape[0], rows - begin)
                compute_logits(context, items, begin, count)
                for row in range(count):
                    apply_rules(past, begin + row, logits[row])
                    for token in range(scores.shape[1]):
                        scores[begin + row, token] = logits[row, token]
            return FINISHED
        top_tokens(context, items, rows, log_probs, banned, past, top, totals, counts)
        for row in range(rows):
            if counts[row] < 1:
                return IS_NAN if counts[row] < 0 else IS_NONE
            tokens[row] = out[row, index] = top[row, 0]
            positions[row] += 1
            past.tokens[row, past.lengths[row]] = top[row, 0]
            past.lengths[row] += 1
    return FINISHED
