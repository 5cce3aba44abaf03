"""What a search may produce, and how what it produced is scored: the rules that greedy and beam share.

    score(y) = log p(y | x) / |y|^alpha          |y| counts EOS

This is the rule of CTranslate2, Transformers and fairseq, where alpha is named length penalty: 0 compares
plain probabilities and so favors short outputs, 1 compares the mean of the tokens' log-probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """The ids produced, without BOS and EOS."""
    score: float
    """log_prob / length^length_penalty: what hypotheses are ranked by."""
    log_prob: float
    """The model's log-probability of the tokens, and of EOS where it is finished."""
    finished: bool
    """True if it ended with EOS, False if it was cut at its maximal length."""

    @property
    def length(self) -> int:
        """Tokens produced, EOS counted."""
        return len(self.tokens) + self.finished


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which ids may be produced, which one ends, and how length is paid for.

    Raises: ValueError if an id is negative, EOS is banned, or length_penalty is outside 0 to 5.
    """

    bos: int
    """The id that the first step reads."""
    eos: int
    """The id that ends a hypothesis."""
    banned: tuple[int, ...] = ()
    """Ids that are never produced. The others keep the probabilities that the model gives them."""
    length_penalty: float = 1.0
    """alpha of the score."""

    def __post_init__(self) -> None:
        for name, ids in (("bos", (self.bos,)), ("eos", (self.eos,)), ("banned", self.banned)):
            if any(token < 0 for token in ids):
                raise ValueError(f"{name} must not be negative, got {min(ids)}")
        if self.eos in self.banned:
            raise ValueError(f"banned must not hold eos ({self.eos}), got {list(self.banned)}")
        if not 0 <= self.length_penalty <= 5:
            raise ValueError(f"length_penalty must be from 0 to 5, got {self.length_penalty}")

    def log_probs(self, logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
        """Log-softmax in float32, then -inf at the banned ids; a new tensor.

        Raises: ValueError if EOS or a banned id is outside the vocabulary.
        """
        vocab = logits.shape[-1]
        highest = max(self.eos, *self.banned, 0)
        if highest >= vocab:
            raise ValueError(f"eos and banned must be ids of the vocabulary of {vocab}, got {highest}")
        result = logits.log_softmax(-1, dtype=torch.float32)
        if self.banned:
            result[:, list(self.banned)] = -math.inf
        return result

    def score(self, log_prob: float, length: int) -> float:
        """log_prob / length^alpha."""
        return log_prob / length**self.length_penalty


def limits(max_length: int | Sequence[int] | Int[Tensor, " batch"], count: int) -> list[int]:
    """The most tokens that each of `count` sentences may produce, EOS counted, from one number or one each.

    Raises: ValueError if there are not `count` of them or one is below 1.
    """
    if isinstance(max_length, int):
        result = [max_length] * count
        smallest = max_length
    else:
        result = max_length.tolist() if isinstance(max_length, Tensor) else list(max_length)
        smallest = min(result, default=1)
    if len(result) != count:
        raise ValueError(f"max_length must be one number or {count} (one a sentence), got {len(result)}")
    if smallest < 1:
        raise ValueError(f"max_length must be at least 1, got {smallest}")
    return result
