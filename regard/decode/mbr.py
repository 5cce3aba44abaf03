"""Minimum Bayes risk decoding: the output with the highest expected utility, estimated by samples.

    y* = argmax_{h in S} 1 / |S| sum_{s in S} u(h, s)        S: samples of p(y | x)

Source: eikema2020, section 5.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.decode.guidance import sample_inverse_cdf
from regard.decode.hypothesis import Hypothesis
from regard.decode.rules import TokenRules


@dataclass(frozen=True, kw_only=True)
class SamplingRules(TokenRules):
    """Rules by which a greedy search draws samples: all tokens but a random one are forbidden."""

    generator: torch.Generator

    @property
    def active(self) -> dict[str, object]:
        return super().active | {"method mbr": True}

    def apply(self, log_probs: Tensor, logits: Tensor, past: Tensor) -> None:
        super().apply(log_probs, logits, past)
        uniform = torch.rand(len(past), generator=self.generator, device="cpu")
        drawn = sample_inverse_cdf(log_probs.softmax(-1), uniform.to(past.device))[:, None]
        drawn = drawn.clamp(max=log_probs.shape[1] - 1)  # if no token has a probability
        kept = log_probs.gather(1, drawn)
        log_probs.fill_(-math.inf).scatter_(1, drawn, kept)


def rank_by_utility(
    samples: Sequence[Hypothesis], texts: Sequence[str], utility: Callable[[str, str], float]
) -> list[Hypothesis]:
    """Return a sample of each text with its expected utility as its score, best first."""
    counts, ranked = Counter(texts), []
    for text, sample in dict(zip(texts, samples, strict=True)).items():
        total = sum(count * utility(text, other) for other, count in counts.items())
        ranked.append(replace(sample, score=total / len(texts)))
    return sorted(ranked, key=lambda sample: -sample.score)
