"""Beam search and greedy search as one loop of compiled code: what regard.decode's do, without Python between steps.

The rules are those of regard.decode.beam and regard.decode.greedy, which are the reference. Here a hypothesis is a row:
its tokens and the slots of its keys and values are copied when rows are reordered, keys and values never are. A row
whose sentence is done goes, and the others move up.
"""

import numpy as np

from regard.engines.compiled.blocks import encode, step
from regard.engines.compiled.compiling import compiled
from regard.engines.compiled.likely import likeliest
from regard.engines.compiled.products import PANELS
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import CROSS_KEYS, DECODERS, ENCODER_PRODUCTS, ENCODERS

__all__ = ["FINISHED", "IS_NAN", "IS_NONE", "search"]

FINISHED, IS_NAN, IS_NONE = 0, 1, 2
"""How a search ended: well; on NaN among the scores; on a sentence that no allowed token can go on."""
_NONE = np.float32(-np.inf)


@compiled
def _is_over(log_prob, powers, limit, least):
    """Whether no continuation of a hypothesis can be better than one that ended so."""
    return log_prob / powers[limit] <= least


@compiled
def _pool(sentence, score, log_prob, tokens, length, last, out_scores, out_log_probs, out_lengths, out_tokens):
    """Put an ended hypothesis among the best of its sentence, behind those of the same score."""
    scores = out_scores[sentence]
    most = len(scores)
    at = most
    while at > 0 and scores[at - 1] < score:
        at -= 1
    if at == most:
        return
    for place in range(most - 1, at, -1):
        scores[place] = scores[place - 1]
        out_log_probs[sentence, place] = out_log_probs[sentence, place - 1]
        out_lengths[sentence, place] = out_lengths[sentence, place - 1]
        for word in range(out_tokens.shape[2]):
            out_tokens[sentence, place, word] = out_tokens[sentence, place - 1, word]
    scores[at], out_log_probs[sentence, at] = score, log_prob
    out_lengths[sentence, at] = length
    for place in range(length - 1):
        out_tokens[sentence, at, place] = tokens[place]
    out_tokens[sentence, at, length - 1] = last


@compiled
def _merge(first, count, tokens, totals, found, most, rows, words, values):
    """The `most` likeliest of the continuations of rows first .. first + count, of equals those of the earlier row."""
    heads = np.zeros(count, np.int64)
    taken = 0
    while taken < most:
        best, highest = -1, _NONE
        for row in range(count):
            at = heads[row]
            if at < found[first + row] and totals[first + row, at] > highest:
                best, highest = row, totals[first + row, at]
        if best < 0:
            break
        rows[taken], words[taken], values[taken] = first + best, tokens[first + best, heads[best]], highest
        heads[best] += 1
        taken += 1
    return taken


@compiled
def search(work, ids, starts, groups, limits, powers, width, bos, eos, banned, past_keys, past_values,
           out_scores, out_log_probs, out_lengths, out_tokens, place):  # fmt: skip
    """Search for the outputs of all sentences of a batch; returns how it ended, and at which (step, sentence).

    ids, starts: the sentences behind one another, and where each begins (one more for the end).
    groups:      which sentences are encoded together: groups[g] .. groups[g + 1] - 1.
    limits:      most tokens of each output, EOS counted; powers[length] = length^alpha.
    width:       hypotheses of each sentence; 1 is greedy search, which ends at the first EOS.
    past_keys, past_values (blocks, slots, ...): room for keys and values of every row of every step.
    out_*:       (sentences, n_best[, tokens]): what was found, best first; a score of minus infinity: nothing.
    """
    count, steps = len(limits), out_tokens.shape[2]
    wide = work.table[ENCODER_PRODUCTS * work.sizes[ENCODERS] + CROSS_KEYS, PANELS] * PANEL
    sources = np.empty((work.sizes[DECODERS], starts[count], wide), np.float32)
    for group in range(len(groups) - 1):
        encode(work, ids, starts, groups[group], groups[group + 1], sources)
    most = count * width
    takes = 2 * width if width > 1 else 1
    sentence_of, first_of = np.arange(count), np.arange(count + 1)
    live, tokens, places = count, np.full(most, bos), np.zeros(most, np.int64)
    log_probs, sums = np.zeros(most, np.float32), np.zeros(most, np.float64)
    new_log_probs, new_sums = np.zeros(most, np.float32), np.zeros(most, np.float64)
    said, new_said = np.zeros((most, steps), np.int32), np.zeros((most, steps), np.int32)
    slots, new_slots = np.zeros((most, steps), np.int32), np.zeros((most, steps), np.int32)
    begins, ends = np.zeros(most, np.int64), np.zeros(most, np.int64)
    for row in range(count):
        begins[row], ends[row] = starts[row], starts[row + 1]
    words, totals = np.zeros((most, takes), np.int64), np.zeros((most, takes), np.float32)
    found, none_before = np.zeros(most, np.int64), np.zeros(most, np.float32)
    move_rows, move_words = np.zeros(takes, np.int64), np.zeros(takes, np.int64)
    move_totals = np.zeros(takes, np.float32)
    for now in range(1, steps + 1):
        rows = first_of[live]
        for row in range(rows):
            slots[row, now - 1], places[row] = (now - 1) * most + row, now - 1
        given = step(work, tokens, places, rows, slots, past_keys, past_values, sources, begins, ends)
        likeliest(work, given, rows, log_probs if width > 1 else none_before, banned, words, totals, found)
        still, new_rows = 0, 0
        begin = first_of[0]
        for number in range(live):
            sentence, end = sentence_of[number], first_of[number + 1]
            limit, went_on = limits[sentence], new_rows
            for row in range(begin, end):
                if found[row] < 0:
                    place[0], place[1] = now, sentence
                    return IS_NAN
            taken = _merge(begin, end - begin, words, totals, found, takes, move_rows, move_words, move_totals)
            begin = end
            if taken == 0 and width == 1:
                place[0], place[1] = now, sentence
                return IS_NONE
            for move in range(taken):
                row, word, total = move_rows[move], move_words[move], move_totals[move]
                exact = sums[row] + total if width == 1 else np.float64(total)
                if word == eos or now == limit:
                    if move < width:
                        _pool(sentence, np.float32(exact) / powers[now], exact, said[row], now, word,
                              out_scores, out_log_probs, out_lengths, out_tokens)  # fmt: skip
                elif new_rows - went_on < width:
                    new_log_probs[new_rows], new_sums[new_rows] = total, exact
                    for before in range(now):
                        new_said[new_rows, before] = said[row, before]
                        new_slots[new_rows, before] = slots[row, before]
                    new_said[new_rows, now - 1] = word
                    new_rows += 1
            if new_rows == went_on:
                continue
            if width > 1 and _is_over(new_log_probs[went_on], powers, limit, out_scores[sentence, -1]):
                new_rows = went_on
                continue
            for row in range(went_on, new_rows):
                # Only rows before this one were written: what they were is no longer needed.
                tokens[row] = new_said[row, now - 1]
                begins[row], ends[row] = starts[sentence], starts[sentence + 1]
            sentence_of[still] = sentence
            still += 1
            first_of[still] = new_rows
        if still == 0:
            break
        live = still
        log_probs, new_log_probs = new_log_probs, log_probs
        sums, new_sums = new_sums, sums
        said, new_said = new_said, said
        slots, new_slots = new_slots, slots
    return FINISHED
