"""Beam search and greedy search as one compiled loop, without Python between steps.

The rules are those of regard.decode.beam and regard.decode.greedy, which are the reference. A
hypothesis is a row: its tokens and the slots of its keys and values are copied when rows are
reordered; keys and values are not. States that are written are copied in each step. The rows of a
finished sentence are removed, and later rows move up.
"""

from collections import namedtuple

import numpy as np

from regard.native.compile import jit, jit_entry
from regard.native.decoder import layout
from regard.native.decoder.blocks import encode, step
from regard.native.decoder.layout import floats, table_of
from regard.native.decoder.matmul import PANELS
from regard.native.decoder.rules import Past
from regard.native.decoder.tiles import PANEL
from regard.native.decoder.top_tokens import top_tokens

FINISHED, IS_NAN, IS_NONE, IS_PAST = 0, 1, 2, 3
"""Outcomes of a search: finished; NaN among the scores; no allowed token to continue a sentence
with; output longer than the learned positions."""
_NONE = np.float32(-np.inf)

# numba supports named tuples of collections alone.
# ids (tokens,): concatenated sentences. starts (sentences + 1,): offset of each, and the end.
# groups (groups + 1,): sentences groups[g] .. groups[g + 1] - 1 are encoded together.
# limits (sentences,): maximum number of tokens of each output, including EOS.
SearchBatch = namedtuple("SearchBatch", "ids starts groups limits")
# width: hypotheses per sentence; 1 is greedy search, which ends at the first EOS.
# powers (tokens,): length^alpha of each length. banned (vocab,). tokens: PackedRules.
SearchRules = namedtuple("SearchRules", "width powers bos eos banned tokens")
# scores (sentences, n_best): best first; minus infinity for missing hypotheses.
# log_probs and lengths as scores, lengths with EOS. tokens (sentences, n_best, tokens): those of
# greedy search are written at each step, so that another thread may read them.
SearchResults = namedtuple("SearchResults", "scores log_probs lengths tokens")
# log_probs (rows,): to compare beams, in single precision as in the reference.
# sums (rows,): the same in double precision, for greedy search.
# tokens and slots (rows, tokens): slots of the keys and values of each token.
_Hypotheses = namedtuple("_Hypotheses", "log_probs sums tokens slots")
_Candidates = namedtuple("_Candidates", "rows tokens totals")


@jit
def _allocate_hypotheses(rows, steps):
    log_probs, sums = np.zeros(rows, np.float32), np.zeros(rows, np.float64)
    tokens, slots = np.zeros((rows, steps), np.int32), np.zeros((rows, steps), np.int32)
    return _Hypotheses(log_probs, sums, tokens, slots)


@jit
def _insert_finished(results, sentence, score, log_prob, tokens, length, last):
    """Insert a finished hypothesis among the best of its sentence, after those of equal score."""
    most, at = results.scores.shape[1], results.scores.shape[1]
    while at > 0 and results.scores[sentence, at - 1] < score:
        at -= 1
    if at == most:
        return
    for rank in range(most - 1, at, -1):
        results.scores[sentence, rank] = results.scores[sentence, rank - 1]
        results.log_probs[sentence, rank] = results.log_probs[sentence, rank - 1]
        results.lengths[sentence, rank] = results.lengths[sentence, rank - 1]
        for index in range(results.tokens.shape[2]):
            results.tokens[sentence, rank, index] = results.tokens[sentence, rank - 1, index]
    results.scores[sentence, at], results.log_probs[sentence, at] = score, log_prob
    results.lengths[sentence, at] = length
    for index in range(length - 1):
        results.tokens[sentence, at, index] = tokens[index]
    results.tokens[sentence, at, length - 1] = last


@jit
def _merge_candidates(first, last, tokens, totals, counts, cursors, candidates):
    """Merge sorted continuations of rows first .. last - 1, ties by row; return their number.

    cursors: buffer for the number of continuations taken from each row.
    """
    for row in range(first, last):
        cursors[row] = 0
    taken = 0
    while taken < len(candidates.rows):
        best, highest = -1, _NONE
        for row in range(first, last):
            if cursors[row] < counts[row] and totals[row, cursors[row]] > highest:
                best, highest = row, totals[row, cursors[row]]
        if best < 0:
            break
        candidates.rows[taken], candidates.tokens[taken] = best, tokens[best, cursors[best]]
        candidates.totals[taken] = highest
        cursors[best] += 1
        taken += 1
    return taken


@jit
def _expand(rules, limit, length, sentence, candidates, num_candidates, old, new, at, results):
    """Add a sentence's finished candidates to the results, others as rows from `at`; return end."""
    first = at
    for rank in range(num_candidates):
        row, token, total = candidates.rows[rank], candidates.tokens[rank], candidates.totals[rank]
        exact = old.sums[row] + total if rules.width == 1 else np.float64(total)
        if token == rules.eos or length == limit:
            if rank < rules.width:
                score = np.float32(exact) / rules.powers[length]
                _insert_finished(results, sentence, score, exact, old.tokens[row], length, token)
        elif at - first < rules.width:
            new.log_probs[at], new.sums[at] = total, exact
            for index in range(length):
                new.tokens[at, index] = old.tokens[row, index]
                new.slots[at, index] = old.slots[row, index]
            new.tokens[at, length - 1] = token
            if rules.width == 1:
                results.tokens[sentence, 0, length - 1] = token
            at += 1
    # The best row is bounded by its score at the maximum length: continuations are no likelier.
    if rules.width > 1 and at > first:
        bound = new.log_probs[first] / rules.powers[limit]
        if bound <= results.scores[sentence, results.scores.shape[1] - 1]:
            return first
    return at


@jit_entry
def search(context, batch, rules, keys, values, states, results, location):
    """Search for the outputs of a batch; return the outcome, with step and sentence in `location`.

    keys, values (blocks, slots, ...): buffers for all rows and steps. states: see begin_state.
    """
    count, steps, width = len(batch.limits), results.tokens.shape[2], rules.width
    cross_keys = layout.ENCODER_PRODUCTS * context[layout.ENCODERS] + layout.CROSS_KEYS
    source_width = table_of(context)[cross_keys, PANELS] * PANEL
    shape = context[layout.DECODERS], batch.starts[count], source_width
    sources = np.empty(shape, np.float32)
    for group in range(len(batch.groups) - 1):
        first, last = batch.groups[group], batch.groups[group + 1]
        encode(context, batch.ids, batch.starts, first, last, sources)
    most, branching = count * width, 2 * width if width > 1 else 1
    old, new = _allocate_hypotheses(most, steps), _allocate_hypotheses(most, steps)
    # Unfinished sentences; the rows of number n are first_of[n] .. first_of[n + 1] - 1.
    live, sentence_of, first_of = count, np.arange(count), np.arange(count + 1)
    tokens = np.full(most, rules.bos)
    positions = np.zeros(most, np.int64)
    cursors, parents = np.zeros(most, np.int64), np.zeros(most, np.int64)
    begins, ends = np.zeros(most, np.int64), np.zeros(most, np.int64)
    for row in range(count):
        begins[row], ends[row] = batch.starts[row], batch.starts[row + 1]
    top, totals = np.zeros((most, branching), np.int64), np.zeros((most, branching), np.float32)
    counts, lengths = np.zeros_like(cursors), np.zeros_like(cursors)
    candidates = _Candidates(np.zeros(branching, np.int64), np.zeros(branching, np.int64),
                             np.zeros(branching, np.float32))  # fmt: skip
    zeros, num_positions = (
        np.zeros(most, np.float32),
        floats(context, layout.TARGET_POSITIONS).shape[0],
    )
    for length in range(1, steps + 1):
        location[0], rows = length, first_of[live]
        if 0 < num_positions < length:
            return IS_PAST
        for row in range(rows):
            old.slots[row, length - 1], positions[row] = (length - 1) * most + row, length - 1
        outputs = step(
            context, tokens, positions, rows, old.slots, keys, values, states, parents, sources,
            begins, ends
        )  # fmt: skip
        log_probs = old.log_probs if width > 1 else zeros
        lengths[:] = length - 1
        past = Past(rules.tokens, old.tokens, lengths)
        top_tokens(context, outputs, rows, log_probs, rules.banned, past, top, totals, counts)
        remaining, at, begin = 0, first_of[0], first_of[0]
        for number in range(live):
            sentence, end, first = sentence_of[number], first_of[number + 1], at
            location[1] = sentence
            if counts[begin:end].min() < 0:
                return IS_NAN
            taken = _merge_candidates(begin, end, top, totals, counts, cursors, candidates)
            begin = end
            if taken == 0 and width == 1:
                return IS_NONE
            limit = batch.limits[sentence]
            at = _expand(rules, limit, length, sentence, candidates, taken, old, new, at, results)
            for row in range(first, at):
                tokens[row] = new.tokens[row, length - 1]
                parents[row] = new.slots[row, length - 1] % most
                begins[row], ends[row] = batch.starts[sentence], batch.starts[sentence + 1]
            if at > first:
                sentence_of[remaining] = sentence
                remaining += 1
                first_of[remaining] = at
        if remaining == 0:
            break
        live, old, new = remaining, new, old
    return FINISHED
