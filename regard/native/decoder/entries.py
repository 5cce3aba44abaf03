"""Entry points of the compiled code, compiled at their first call on a machine, cached on disk."""

from collections.abc import Callable

import numpy as np

from regard.native.compile import jit_entry
from regard.native.decoder.blocks import prefill as prefill_blocks
from regard.native.decoder.blocks import step
from regard.native.decoder.layout import LOGITS, floats
from regard.native.decoder.search import FINISHED, IS_NAN, IS_NONE
from regard.native.decoder.search import search as search_batch
from regard.native.decoder.top_tokens import compute_logits, top_tokens


def _search(stamp: str) -> Callable:
    def run(context, batch, rules, keys, values, results, location):
        _ = stamp
        return search_batch(context, batch, rules, keys, values, results, location)

    return run


def _prefill(stamp: str) -> Callable:
    def run(context, tokens, slots, keys, values):
        _ = stamp
        prefill_blocks(context, tokens, slots, keys, values)

    return run


def _generate(stamp: str) -> Callable:
    def run(context, tokens, positions, slots, keys, values, banned, out, scores):
        """Write the most likely tokens of every row to out (rows, count), one after the other.

        tokens, positions: last token of each row and its position; updated to those of the last
        token written.
        scores (rows, vocab): if it has rows, no tokens are chosen, and the scores of the next
        tokens are written to it. Returns FINISHED, or the outcome that prevented a choice.
        """
        _ = stamp
        rows, logits, zeros = len(tokens), floats(context, LOGITS), np.zeros(len(tokens), np.int64)
        log_probs, counts = np.zeros(rows, np.float32), np.zeros(rows, np.int64)
        sources = np.zeros((keys.shape[0], 0, 1), np.float32)
        top, totals = np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.float32)
        for index in range(max(out.shape[1], len(scores))):
            items = step(
                context, tokens, positions, rows, slots, keys, values, sources, zeros, zeros
            )
            if len(scores) > 0:
                for first in range(0, rows, logits.shape[0]):
                    count = min(logits.shape[0], rows - first)
                    compute_logits(context, items, first, count)
                    for row in range(count):
                        for token in range(scores.shape[1]):
                            scores[first + row, token] = logits[row, token]
                return FINISHED
            top_tokens(context, items, rows, log_probs, banned, top, totals, counts)
            for row in range(rows):
                if counts[row] < 1:
                    return IS_NAN if counts[row] < 0 else IS_NONE
                tokens[row] = out[row, index] = top[row, 0]
                positions[row] += 1
        return FINISHED

    return run


search = jit_entry(_search)
prefill = jit_entry(_prefill)
generate = jit_entry(_generate)
