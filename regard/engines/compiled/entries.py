"""What Python calls of the compiled code; each is compiled at its first call on a machine and then kept on disk."""

from collections.abc import Callable

import numpy as np

from regard.engines.compiled.blocks import prefill as take_in
from regard.engines.compiled.blocks import step
from regard.engines.compiled.compiling import entry
from regard.engines.compiled.likely import likeliest, scores_of
from regard.engines.compiled.searching import FINISHED, IS_NAN, IS_NONE
from regard.engines.compiled.searching import search as search_batch
from regard.engines.compiled.work import LOGITS, floats


def _search(stamp: str) -> Callable:
    def run(work, batch, rules, keys, values, found, place):
        stamp  # noqa: B018  # see `entry`
        return search_batch(work, batch, rules, keys, values, found, place)

    return run


def _prefill(stamp: str) -> Callable:
    def run(work, tokens, slots, keys, values):
        stamp  # noqa: B018
        take_in(work, tokens, slots, keys, values)

    return run


def _go_on(stamp: str) -> Callable:
    def run(work, tokens, places, slots, keys, values, banned, out, scores):
        """The likeliest tokens of every row, one after the other, as many as out (rows, count) holds.

        tokens, places: the last token of each row and its place; in the end those of the last one written.
        scores (rows, vocab): if it has rows, nothing is chosen: it gets the scores of the next tokens.
        Returns FINISHED, or what there was instead of a likeliest one.
        """
        stamp  # noqa: B018
        rows, logits, nothing = len(tokens), floats(work, LOGITS), np.zeros(len(tokens), np.int64)
        before, found = np.zeros(rows, np.float32), np.zeros(rows, np.int64)
        sources = np.zeros((keys.shape[0], 0, 1), np.float32)
        words, totals = np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.float32)
        for time in range(max(out.shape[1], len(scores))):
            given = step(work, tokens, places, rows, slots, keys, values, sources, nothing, nothing)
            if len(scores) > 0:
                for first in range(0, rows, logits.shape[0]):
                    count = min(logits.shape[0], rows - first)
                    scores_of(work, given, first, count)
                    for row in range(count):
                        for token in range(scores.shape[1]):
                            scores[first + row, token] = logits[row, token]
                return FINISHED
            likeliest(work, given, rows, before, banned, words, totals, found)
            for row in range(rows):
                if found[row] < 1:
                    return IS_NAN if found[row] < 0 else IS_NONE
                tokens[row] = out[row, time] = words[row, 0]
                places[row] += 1
        return FINISHED

    return run


search = entry(_search)
prefill = entry(_prefill)
go_on = entry(_go_on)
