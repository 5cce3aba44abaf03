"""Steppers small enough to be checked by hand or by listing every output."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.hypothesis import Hypothesis

__all__ = [
    "BOS",
    "EOS",
    "IDS",
    "PAD",
    "Chances",
    "HashStepper",
    "Prefixes",
    "TreeStepper",
    "padded",
    "produced",
    "same",
    "texts",
]

PAD, BOS, EOS = 0, 2, 3
IDS = {"bos": BOS, "eos": EOS, "banned": (PAD, BOS)}


def padded(sentences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Padded:
    longest = max(map(len, sentences), default=0)
    rows = [[*ids, *[PAD] * (longest - len(ids))] for ids in sentences]
    items = torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(rows), longest)
    return Padded(items, torch.tensor([len(ids) for ids in sentences], dtype=torch.int64, device=device))


@dataclass(frozen=True)
class Prefixes:
    """The sentence of each row (its source memory) and what has been read so far."""

    sentence: Tensor
    prefix: Tensor

    def select(self, index: Tensor) -> "Prefixes":
        return Prefixes(self.sentence[index], self.prefix[index])

    def reorder(self, index: Tensor) -> "Prefixes":
        # As a model that leaves its source memory alone; the rows must then be of the same sentences.
        assert torch.equal(self.sentence[index], self.sentence)
        return Prefixes(self.sentence, self.prefix[index])


class HashStepper:
    """Logits drawn anew for each (source, whole prefix); `rows` counts the rows of every step."""

    def __init__(self, vocab: int, *, spread: float = 2.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(9973, vocab, generator=generator, dtype=torch.float64) * spread
        self.rows: list[int] = []

    def start(self, source: Padded) -> Prefixes:
        places = torch.arange(source.items.shape[1], device=source.items.device)
        ids = (source.items + 1).masked_fill(places >= source.lengths[:, None], 0)
        self.table = self.table.to(source.items.device)
        return Prefixes((ids * (7 * places + 11)).sum(1), torch.zeros(len(ids), 0, dtype=torch.int64).to(ids))

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.rows.append(len(tokens))
        prefix = torch.cat((state.prefix, tokens[:, None]), 1)
        place = state.sentence
        for token in prefix.T:
            place = (place * 131 + token * 29 + 17) % 9973
        return self.table[place].float(), Prefixes(state.sentence, prefix)


Chances = dict[int, float]


@dataclass
class TreeStepper:
    """Probabilities of the next token after each prefix that a tree names; after others, EOS is sure."""

    tree: dict[tuple[int, ...], Chances]
    vocab: int
    fed: list[list[int]] = field(default_factory=list)

    def start(self, source: Padded) -> Prefixes:
        rows = len(source.lengths)
        return Prefixes(torch.arange(rows), torch.zeros(rows, 0, dtype=torch.int64))

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.fed.append(tokens.tolist())
        prefix = torch.cat((state.prefix, tokens[:, None]), 1)
        logits = torch.full((len(tokens), self.vocab), -math.inf)
        for row, read in enumerate(prefix.tolist()):
            assert read[0] == BOS
            for token, chance in self.tree.get(tuple(read[1:]), {EOS: 1.0}).items():
                logits[row, token] = math.log(chance) if chance > 0 else -math.inf
        return logits, Prefixes(state.sentence, prefix)


def texts(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[one.tokens for one in hypotheses] for hypotheses in results]


def produced(one: Hypothesis) -> list[int]:
    """All tokens that a hypothesis took, EOS included."""
    return [*one.tokens, EOS] if one.finished else one.tokens


def same(first: list[list[Hypothesis]], second: list[list[Hypothesis]]) -> bool:
    """Equal tokens and ends, and scores equal within rounding."""
    assert texts(first) == texts(second)
    flat = [[one for hypotheses in results for one in hypotheses] for results in (first, second)]
    for left, right in zip(*flat, strict=True):
        assert left.finished == right.finished
        assert math.isclose(left.score, right.score, rel_tol=1e-5)
        assert math.isclose(left.log_prob, right.log_prob, rel_tol=1e-5)
    return True
