"""Hypotheses, and the constraints and scores that greedy and beam search share.

    score(y) = log p(y | x) / |y|^alpha          |y| counts EOS

CTranslate2, Transformers and fairseq use the same score and call alpha the length penalty: 0
compares log-probabilities and so favors short outputs, 1 compares mean log-probabilities per token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.rules import NO_RULES, TokenRules
from regard.ops.constants import constant, tensor_of


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Generated ids, without BOS and EOS."""
    score: float
    """log_prob / length^length_penalty; hypotheses are ranked by it."""
    log_prob: float
    """Log-probability of the tokens, EOS included if finished, with the amounts of a penalty."""
    finished: bool
    """True if it ends with EOS, False if it was cut at the maximum length."""

    @property
    def length(self) -> int:
        """Number of generated tokens, including EOS."""
        return len(self.tokens) + self.finished


def make_hypothesis(ids: Sequence[int], *, eos: int, score: float, log_prob: float) -> Hypothesis:
    """Return the hypothesis of generated ids, of which EOS is the last if it is finished."""
    finished = ids[-1] == eos
    tokens = list(ids[:-1] if finished else ids)
    return Hypothesis(tokens=tokens, score=score, log_prob=log_prob, finished=finished)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Special ids, banned ids and length penalty of a search.

    Raises: ValueError if EOS is banned, or length_penalty is outside 0 to 5.
    """

    bos: int
    """Input of the first step."""
    eos: int
    """Id that ends a hypothesis."""
    banned: tuple[int, ...] = ()
    """Ids that are never generated. The probabilities of the other ids are not renormalized."""
    length_penalty: float = 1.0
    """alpha of the score."""
    tokens: TokenRules = NO_RULES
    """Rules that depend on the tokens so far."""

    def __post_init__(self) -> None:
        if self.eos in self.banned:
            raise ValueError(f"banned must not hold eos ({self.eos}), got {list(self.banned)}")
        if not 0 <= self.length_penalty <= 5:
            raise ValueError(f"length_penalty must be from 0 to 5, got {self.length_penalty}")

    def log_probs(
        self, logits: Float[Tensor, "rows vocab"], past: Int[Tensor, "rows time"] | None = None
    ) -> Float[Tensor, "rows vocab"]:
        """Return the log-softmax in float32, with -inf at the banned ids; a new tensor.

        past: tokens so far of each row, by which the rules of tokens are applied.
        Raises: ValueError if EOS or a banned id is outside the vocabulary.
        """
        vocab, ids = logits.shape[-1], sorted((self.eos, *self.banned))
        if ids[0] < 0 or ids[-1] >= vocab:
            raise ValueError(f"eos and banned must be ids of the vocabulary of {vocab}, got {ids}")
        result = logits.log_softmax(-1, dtype=torch.float32)
        if self.banned:
            ids = constant(tensor_of, self.banned, device=logits.device, dtype=torch.int64)
            result.index_fill_(1, ids, -math.inf)
        if past is not None:
            self.tokens.apply(result, logits, past)
        return result


def expand_max_length(max_length: int | Sequence[int], count: int) -> list[int]:
    """Return one maximum length for each of `count` sentences, from a single number or a sequence.

    Raises: ValueError if a sequence has not `count` entries, or if a length is below 1.
    """
    lengths = [max_length] * count if isinstance(max_length, int) else list(max_length)
    if len(lengths) != count:
        raise ValueError(
            f"max_length must be one number or {count} (one per sentence), got {len(lengths)}"
        )
    if min(lengths, default=1) < 1:
        raise ValueError(f"max_length must be at least 1, got {min(lengths)}")
    return lengths
