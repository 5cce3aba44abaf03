"""Small steppers, to be checked by hand or by listing every output."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.hypothesis import Hypothesis

PAD, BOS, EOS = 0, 2, 3
IDS = {"bos": BOS, "eos": EOS, "banned": (PAD, BOS)}


def padded(sentences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Padded:
    longest = max(map(len, sentences), default=0)
    rows = [[*ids, *[PAD] * (longest - len(ids))] for ids in sentences]
    items = torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(rows), longest)
    lengths = torch.tensor([len(ids) for ids in sentences], dtype=torch.int64, device=device)
    return Padded(items, lengths)


@dataclass(frozen=True)
class Prefixes:
    """State of the steppers: the sentence of each row (its source memory) and the tokens so far."""

    sentence: Tensor
    prefix: Tensor

    def select(self, index: Tensor) -> "Prefixes":
        return Prefixes(self.sentence[index], self.prefix[index])

    def reorder(self, index: Tensor) -> "Prefixes":
        # Keeps the source memory as it is, so the rows must belong to the same sentences.
        assert torch.equal(self.sentence[index], self.sentence)
        return Prefixes(self.sentence, self.prefix[index])


class HashStepper:
    """Stepper with random logits of each (source, prefix); `rows` counts rows of every step."""

    def __init__(self, vocab: int, *, spread: float = 2.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(9973, vocab, generator=generator, dtype=torch.float64) * spread
        self.rows: list[int] = []

    def start(self, source: Padded) -> Prefixes:
        positions = torch.arange(source.items.shape[1], device=source.items.device)
        ids = (source.items + 1).masked_fill(positions >= source.lengths[:, None], 0)
        self.table = self.table.to(source.items.device)
        sentence = (ids * (7 * positions + 11)).sum(1)
        return Prefixes(sentence, ids.new_zeros(len(ids), 0))

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.rows.append(len(tokens))
        prefix = torch.cat((state.prefix, tokens[:, None]), 1)
        index = state.sentence
        for token in prefix.T:
            index = (index * 131 + token * 29 + 17) % 9973
        return self.table[index].float(), Prefixes(state.sentence, prefix)


Chances = dict[int, float]


@dataclass
class TreeStepper:
    """Stepper with given probabilities after prefixes of a tree; elsewhere EOS has 1."""

    tree: dict[tuple[int, ...], Chances]
    vocab: int
    inputs: list[list[int]] = field(default_factory=list)

    def start(self, source: Padded) -> Prefixes:
        rows = len(source.lengths)
        return Prefixes(torch.arange(rows), torch.zeros(rows, 0, dtype=torch.int64))

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.inputs.append(tokens.tolist())
        prefix = torch.cat((state.prefix, tokens[:, None]), 1)
        logits = torch.full((len(tokens), self.vocab), -math.inf)
        for row, tokens_so_far in enumerate(prefix.tolist()):
            assert tokens_so_far[0] == BOS
            for token, chance in self.tree.get(tuple(tokens_so_far[1:]), {EOS: 1.0}).items():
                logits[row, token] = math.log(chance) if chance > 0 else -math.inf
        return logits, Prefixes(state.sentence, prefix)


def score(
    stepper: Any, source: Padded, *, targets: Sequence[Sequence[int]], bos: int = BOS
) -> Tensor:
    """Return the log-probability of given targets, EOS included, by the steps of a search."""
    ids = padded(targets, source.items.device)
    tokens = torch.full_like(ids.lengths, bos)
    total, state = torch.zeros(len(tokens), device=tokens.device), stepper.start(source)
    for time, following in enumerate(ids.items.T):
        logits, state = stepper.step(tokens, state)
        log_probs = logits.log_softmax(-1, dtype=torch.float32).gather(1, following[:, None])[:, 0]
        total, tokens = total + torch.where(time < ids.lengths, log_probs, 0.0), following
    return total


class NoGradStepper(HashStepper):
    """Stepper that checks that gradients are disabled."""

    def start(self, source: Padded) -> Prefixes:
        assert not torch.is_grad_enabled()
        return super().start(source)

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        assert not torch.is_grad_enabled()
        return super().step(tokens, state)


class NanStepper(HashStepper):
    """Stepper with NaN in the second step of sentence 1."""

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        logits, state = super().step(tokens, state)
        if len(self.rows) == 2:
            logits[1, 4] = math.nan
        logits[:, EOS] = -9.0
        return logits, state


def token_lists(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in results]


def generated_ids(hypothesis: Hypothesis) -> list[int]:
    """Return all generated tokens of a hypothesis, including EOS."""
    return [*hypothesis.tokens, EOS] if hypothesis.finished else hypothesis.tokens


def is_equal(first: list[list[Hypothesis]], second: list[list[Hypothesis]]) -> bool:
    """Return True if tokens and `finished` are equal; assert that scores are equal to rounding."""
    assert token_lists(first) == token_lists(second)
    flat = [
        [hypothesis for hypotheses in results for hypothesis in hypotheses]
        for results in (first, second)
    ]
    for left, right in zip(*flat, strict=True):
        assert left.finished == right.finished
        assert math.isclose(left.score, right.score, rel_tol=1e-5)
        assert math.isclose(left.log_prob, right.log_prob, rel_tol=1e-5)
    return True
