"""Rules of outputs on the logits of one row; regard.decode.rules is the reference.

They are applied once the sum of the softmax is known, which they do not change.
"""

from collections import namedtuple

import numpy as np

from regard.native.compile import jit

_NONE = np.float32(-np.inf)

# numba supports named tuples of collections alone.
# active: False if there are none. penalty: of repetition. ngram: size, 0 for none.
# words (tokens,): concatenated bad words. starts (words + 1,): offset of each, and the end.
PackedRules = namedtuple("PackedRules", "active eos min_length ngram penalty words starts prefix")
# rules: PackedRules. tokens (rows, tokens): those of each row so far, whose number is lengths.
Past = namedtuple("Past", "rules tokens lengths")


@jit
def _ends_with(tokens, count, others, start, size):
    """Return True if the last `size` of `count` tokens are those of others from `start`."""
    if size > count:
        return False
    for index in range(size):
        if others[start + index] != tokens[count - size + index]:
            return False
    return True


@jit
def apply_rules(past, row, logits):
    """Change the logits of a row in place."""
    rules, tokens, count = past.rules, past.tokens[row], past.lengths[row]
    if not rules.active:
        return
    if count < len(rules.prefix):
        forced = rules.prefix[count]
        kept = logits[forced]
        logits[:] = _NONE
        logits[forced] = kept
        return
    if rules.penalty != 1:
        found = np.empty(count, np.float32)
        for index in range(count):
            found[index] = logits[tokens[index]]
        for index in range(count):  # a token that occurs twice is set twice
            logit = found[index]
            logits[tokens[index]] = logit * rules.penalty if logit < 0 else logit / rules.penalty
    if count < rules.min_length:
        logits[rules.eos] = _NONE
    if rules.ngram > 0:
        for start in range(count - rules.ngram + 1):
            if _ends_with(tokens, count, tokens, start, rules.ngram - 1):
                logits[tokens[start + rules.ngram - 1]] = _NONE
    for word in range(len(rules.starts) - 1):
        start, last = rules.starts[word], rules.starts[word + 1] - 1
        if _ends_with(tokens, count, rules.words, start, last - start):
            logits[rules.words[last]] = _NONE
