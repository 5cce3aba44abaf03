"""Terms that must occur in outputs: beam search with dynamic beam allocation.

A hypothesis lacks terms (sequences of ids); its bank is the number of tokens that it lacks. The
candidates of a sentence are the most likely continuations of all of its hypotheses and of each, and
the tokens that begin or continue a term that is lacking. Each bank has an equal share of the beam
for its most likely candidates; the rest of the division goes to the bank that lacks the fewest
tokens, and what a bank leaves to the most likely of the others. EOS, or the maximum length, ends
only what lacks nothing.

Source: postvilar2018, section 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.finished import Candidates

Term = tuple[int, ...]
Lacking = tuple[tuple[Term, int], ...]
"""Terms that a hypothesis lacks, and the number of tokens of each that it ends with."""
_Banked = tuple[float, int, int, int]
"""Minus the log-probability of a candidate, its row and token, and its bank."""


class RequiredTerms:
    """Terms of each sentence of a batch."""

    def __init__(self, terms: Sequence[Sequence[Term]], eos: int):
        self._eos = eos
        self._lacking: dict[tuple[int, Term], Lacking] = {}
        for sentence, own in enumerate(terms):
            self._lacking[sentence, ()] = tuple((term, 0) for term in own)

    def allocate(
        self, likely: Candidates, log_probs: Tensor, past: Tensor, sentences: Tensor, last: Tensor
    ) -> Candidates:
        """Return n candidates of each sentence, allocated n/2 at a time.

        likely:    the n most likely candidates of each sentence.
        log_probs: of the hypotheses (rows) with each next token (vocab).
        sentences: number of each sentence; last: True if this step is its last one.
        """
        numbers, are_last, width = sentences.tolist(), last.tolist(), likely.token.shape[1]
        rows, tokens = len(past) // len(numbers), past.tolist()
        pairs = zip(likely.row.flatten().tolist(), likely.token.flatten().tolist(), strict=True)
        found, best = set(pairs), log_probs.topk(2, dim=1).indices.tolist()
        lacking = [self._find(numbers[row // rows], tuple(own)) for row, own in enumerate(tokens)]
        for row, own in enumerate(lacking):
            following = [*best[row], *(term[begun] for term, begun in own)]
            found.update((row, token) for token in following)
        index = sorted(found)
        chosen = torch.tensor(index, device=log_probs.device)
        banked: list[list[_Banked]] = [[] for _ in numbers]
        values = log_probs[chosen[:, 0], chosen[:, 1]].tolist()
        for (row, token), value in zip(index, values, strict=True):
            number, bank = row // rows, _count(advance(lacking[row], token))
            is_end = token == self._eos or are_last[number]
            if value > -torch.inf and not (is_end and bank):
                banked[number].append((-value, row, token, bank))
        table = []
        for number, sentence in enumerate(numbers):
            banks = 1 + _count(self._lacking[sentence, ()])
            first, rest = _share(sorted(banked[number]), width // 2, banks)
            first += _share(rest, width - width // 2, banks)[0]
            missing = torch.inf, number * rows, 0, 0
            table.append([*first, *[missing] * (width - len(first))])
        fields = torch.tensor(table, dtype=torch.float64, device="cpu").to(past.device)
        return Candidates(-fields[..., 0].float(), fields[..., 1].long(), fields[..., 2].long())

    def _find(self, sentence: int, tokens: Term) -> Lacking:
        key = sentence, tokens
        if key not in self._lacking:
            self._lacking[key] = advance(self._find(sentence, tokens[:-1]), tokens[-1])
        return self._lacking[key]


def advance(lacking: Lacking, token: int) -> Lacking:
    """Return what a hypothesis lacks after one more token."""
    found = []
    for term, begun in lacking:
        last = (*term[:begun], token)
        while last != term[: len(last)]:
            last = last[1:]
        if len(last) < len(term):
            found.append((term, len(last)))
    return tuple(found)


def _count(lacking: Lacking) -> int:
    """Return the number of tokens that are lacking, but for those of a term that is begun."""
    longest = max((begun for _, begun in lacking), default=0)
    return sum(len(term) for term, _ in lacking) - longest


def _share(
    candidates: list[_Banked], count: int, banks: int
) -> tuple[list[_Banked], list[_Banked]]:
    """Return `count` candidates by shares of the banks, and the others, most likely first."""
    places, first, rest = [count // banks] * banks, [], []
    if candidates:
        places[min(bank for *_, bank in candidates)] += count % banks
    for own in candidates:
        places[own[-1]] -= 1
        (first if places[own[-1]] >= 0 else rest).append(own)
    spare = count - len(first)
    return sorted(first + rest[:spare]), rest[spare:]
