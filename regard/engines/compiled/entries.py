"""What Python calls of the compiled code; each is compiled at its first call on a machine and then kept on disk."""

from collections.abc import Callable

import numpy as np

from regard.engines.compiled import blocks, likely, searching
from regard.engines.compiled.compiling import entry

__all__ = ["go_on", "prefill", "scores", "search"]


def _search(stamp: str) -> Callable:
    search = searching.search

    def run(work, ids, starts, groups, limits, powers, width, bos, eos, banned, keys, values, out_scores,
            out_log_probs, out_lengths, out_tokens, place):  # fmt: skip
        stamp  # noqa: B018  # see `entry`
        return search(work, ids, starts, groups, limits, powers, width, bos, eos, banned, keys, values, out_scores,
                      out_log_probs, out_lengths, out_tokens, place)  # fmt: skip

    return run


def _prefill(stamp: str) -> Callable:
    take_in = blocks.prefill

    def run(work, tokens, slots, keys, values):
        stamp  # noqa: B018
        take_in(work, tokens, 0, slots, keys, values)

    return run


def _scores(stamp: str) -> Callable:
    step, scores_of = blocks.step, likely.scores_of

    def run(work, tokens, places, slots, keys, values, out):
        """Scores of the next token of every row, into out (rows, vocab)."""
        stamp  # noqa: B018
        rows, some, nothing = len(tokens), work.logits.shape[0], np.zeros(len(tokens), np.int64)
        sources = np.zeros((keys.shape[0], 0, 1), np.float32)
        given = step(work, tokens, places, rows, slots, keys, values, sources, nothing, nothing)
        for first in range(0, rows, some):
            count = min(some, rows - first)
            scores_of(work, given, first, count)
            out[first : first + count] = work.logits[:count, : out.shape[1]]

    return run


def _go_on(stamp: str) -> Callable:
    step, likeliest = blocks.step, likely.likeliest

    def run(work, tokens, places, slots, keys, values, banned, out):
        """The likeliest tokens of every row, one after the other, as many as out (rows, count) holds.

        tokens, places: the last token of each row and its place; in the end those of the last one written.
        Returns whether there was a likeliest one each time.
        """
        stamp  # noqa: B018
        rows, nothing, before = len(tokens), np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.float32)
        sources = np.zeros((keys.shape[0], 0, 1), np.float32)
        words, totals = np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.float32)
        found = np.zeros(rows, np.int64)
        for time in range(out.shape[1]):
            given = step(work, tokens, places, rows, slots, keys, values, sources, nothing, nothing)
            likeliest(work, given, rows, before, banned, words, totals, found)
            for row in range(rows):
                if found[row] < 1:
                    return False
                tokens[row] = out[row, time] = words[row, 0]
                places[row] += 1
        return True

    return run


search = entry(_search)
prefill = entry(_prefill)
scores = entry(_scores)
go_on = entry(_go_on)
