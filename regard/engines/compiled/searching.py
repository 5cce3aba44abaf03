"""Beam search and greedy search as one loop of compiled code: what regard.decode's do, without Python between steps.

The rules are those of regard.decode.beam and regard.decode.greedy, which are the reference. Here a hypothesis is a row:
its tokens and the slots of its keys and values are copied when rows are reordered, keys and values never are. A row
whose sentence is done goes, and the others move up.
"""

from collections import namedtuple

import numpy as np

from regard.engines.compiled.blocks import encode, step
from regard.engines.compiled.compiling import compiled
from regard.engines.compiled.likely import likeliest
from regard.engines.compiled.products import PANELS
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import CROSS_KEYS, DECODERS, ENCODER_PRODUCTS, ENCODERS, POSITIONS, floats, table_of

FINISHED, IS_NAN, IS_NONE, IS_PAST = 0, 1, 2, 3
"""How a search ended: well; on NaN among the scores; on a sentence that no allowed token can go on; on an output that
goes on past the last learned position."""
_NONE = np.float32(-np.inf)

Batch = namedtuple(
    "Batch",
    [
        "ids",  # (tokens,): the sentences behind one another
        "starts",  # (sentences + 1,): where each begins, and the end
        "groups",  # (groups + 1,): which sentences are encoded together: groups[g] .. groups[g + 1] - 1
        "limits",  # (sentences,): most tokens of each output, EOS counted
    ],
)
Rules = namedtuple(
    "Rules",
    [
        "width",  # hypotheses of each sentence; 1 is greedy search, which ends at the first EOS
        "powers",  # (tokens,): length^alpha of each length
        "bos",
        "eos",
        "banned",  # (vocab,)
    ],
)
Found = namedtuple(
    "Found",
    [
        "scores",  # (sentences, n_best): best first; minus infinity where there is nothing
        "log_probs",  # the same
        "lengths",  # the same: tokens, EOS counted
        "tokens",  # (sentences, n_best, tokens)
    ],
)
_Live = namedtuple(
    "_Live",
    [
        "log_probs",  # (rows,): what beams are compared by, in single precision as in the reference
        "sums",  # (rows,): the same in double precision, for greedy search
        "said",  # (rows, tokens)
        "slots",  # (rows, tokens): where keys and values of each token are
    ],
)
_Moves = namedtuple("_Moves", ["rows", "words", "totals"])


@compiled
def _live(rows, steps):
    return _Live(np.zeros(rows, np.float32), np.zeros(rows, np.float64), np.zeros((rows, steps), np.int32),
                 np.zeros((rows, steps), np.int32))  # fmt: skip


@compiled
def _keep(found, sentence, score, log_prob, tokens, length, last):
    """Put an ended hypothesis among the best of its sentence, behind those of the same score."""
    most, at = found.scores.shape[1], found.scores.shape[1]
    while at > 0 and found.scores[sentence, at - 1] < score:
        at -= 1
    if at == most:
        return
    for place in range(most - 1, at, -1):
        found.scores[sentence, place] = found.scores[sentence, place - 1]
        found.log_probs[sentence, place] = found.log_probs[sentence, place - 1]
        found.lengths[sentence, place] = found.lengths[sentence, place - 1]
        for word in range(found.tokens.shape[2]):
            found.tokens[sentence, place, word] = found.tokens[sentence, place - 1, word]
    found.scores[sentence, at], found.log_probs[sentence, at] = score, log_prob
    found.lengths[sentence, at] = length
    for place in range(length - 1):
        found.tokens[sentence, at, place] = tokens[place]
    found.tokens[sentence, at, length - 1] = last


@compiled
def _merge(first, last, tokens, totals, counts, heads, moves):
    """The likeliest of the continuations of rows first .. last - 1, of equals those of the earlier row; how many.

    Each row's are sorted; heads: room for how many of each row are taken.
    """
    for row in range(first, last):
        heads[row] = 0
    taken = 0
    while taken < len(moves.rows):
        best, highest = -1, _NONE
        for row in range(first, last):
            if heads[row] < counts[row] and totals[row, heads[row]] > highest:
                best, highest = row, totals[row, heads[row]]
        if best < 0:
            break
        moves.rows[taken], moves.words[taken], moves.totals[taken] = best, tokens[best, heads[best]], highest
        heads[best] += 1
        taken += 1
    return taken


@compiled
def _go_on(rules, limit, now, sentence, moves, taken, old, new, at, found):
    """The best moves of a sentence: those that end are kept, others become rows `at` and on; where those end."""
    first = at
    for move in range(taken):
        row, word, total = moves.rows[move], moves.words[move], moves.totals[move]
        exact = old.sums[row] + total if rules.width == 1 else np.float64(total)
        if word == rules.eos or now == limit:
            if move < rules.width:
                score = np.float32(exact) / rules.powers[now]
                _keep(found, sentence, score, exact, old.said[row], now, word)
        elif at - first < rules.width:
            new.log_probs[at], new.sums[at] = total, exact
            for before in range(now):
                new.said[at, before] = old.said[row, before]
                new.slots[at, before] = old.slots[row, before]
            new.said[at, now - 1] = word
            at += 1
    # No continuation is likelier than what it continues: the best one's bound is what it scores when it is longest.
    if rules.width > 1 and at > first:
        bound = new.log_probs[first] / rules.powers[limit]
        if bound <= found.scores[sentence, found.scores.shape[1] - 1]:
            return first
    return at


@compiled
def search(work, batch, rules, keys, values, found, place):
    """Search for the outputs of all sentences of a batch; how it ended, and in `place` at which (step, sentence).

    keys, values (blocks, slots, ...): room for those of every row at every step.
    """
    count, steps, width = len(batch.limits), found.tokens.shape[2], rules.width
    wide = table_of(work)[ENCODER_PRODUCTS * work[ENCODERS] + CROSS_KEYS, PANELS] * PANEL
    sources = np.empty((work[DECODERS], batch.starts[count], wide), np.float32)
    for group in range(len(batch.groups) - 1):
        encode(work, batch.ids, batch.starts, batch.groups[group], batch.groups[group + 1], sources)
    most, takes = count * width, 2 * width if width > 1 else 1
    old, new = _live(most, steps), _live(most, steps)
    # Sentences that go on; the rows of number n are first_of[n] .. first_of[n + 1] - 1.
    live, sentence_of, first_of = count, np.arange(count), np.arange(count + 1)
    tokens, places, heads = np.full(most, rules.bos), np.zeros(most, np.int64), np.zeros(most, np.int64)
    begins, ends = np.zeros(most, np.int64), np.zeros(most, np.int64)
    for row in range(count):
        begins[row], ends[row] = batch.starts[row], batch.starts[row + 1]
    words, totals, counts = np.zeros((most, takes), np.int64), np.zeros((most, takes), np.float32), np.zeros_like(heads)
    moves = _Moves(np.zeros(takes, np.int64), np.zeros(takes, np.int64), np.zeros(takes, np.float32))
    nothing, positions = np.zeros(most, np.float32), floats(work, POSITIONS).shape[0]
    for now in range(1, steps + 1):
        place[0], rows = now, first_of[live]
        if 0 < positions < now:
            return IS_PAST
        for row in range(rows):
            old.slots[row, now - 1], places[row] = (now - 1) * most + row, now - 1
        given = step(work, tokens, places, rows, old.slots, keys, values, sources, begins, ends)
        likeliest(work, given, rows, old.log_probs if width > 1 else nothing, rules.banned, words, totals, counts)
        still, at, begin = 0, first_of[0], first_of[0]
        for number in range(live):
            sentence, end, first = sentence_of[number], first_of[number + 1], at
            place[1] = sentence
            if counts[begin:end].min() < 0:
                return IS_NAN
            taken = _merge(begin, end, words, totals, counts, heads, moves)
            begin = end
            if taken == 0 and width == 1:
                return IS_NONE
            at = _go_on(rules, batch.limits[sentence], now, sentence, moves, taken, old, new, at, found)
            for row in range(first, at):
                tokens[row] = new.said[row, now - 1]
                begins[row], ends[row] = batch.starts[sentence], batch.starts[sentence + 1]
            if at > first:
                sentence_of[still] = sentence
                still += 1
                first_of[still] = at
        if still == 0:
            break
        live, old, new = still, new, old
    return FINISHED
