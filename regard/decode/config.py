"""Settings of decoding. Imports no torch, so that the command line shows its help quickly."""

from typing import Annotated, Literal

from regard.settings.declare import settings
from regard.settings.ranges import Count, Length, Range, Seed

_LEAST_TEMPERATURE = 0.001
"""Dividing logits by a smaller temperature overflows float32."""


@settings
class DecodeConfig:
    """Settings of beam search."""

    beam: Annotated[int, Range(1, 1_000)] = 5
    """Number of hypotheses kept per sentence at every step; 1 is greedy search."""
    length_penalty: Annotated[float, Range(0, 5)] = 1.0
    """alpha of score = log-probability / length^alpha; a higher value favors longer outputs."""
    n_best: Annotated[int, Range(1, 1_000)] = 1
    """Number of outputs per sentence, best first; at most `beam`."""
    max_ratio: Annotated[float, Range(0, 1_000)] = 2.0
    """Maximum output length as a multiple of the input length, besides `max_extra`."""
    max_extra: Annotated[int, Range(0, 1_000_000)] = 10
    """Number of tokens added to `max_ratio` times the input length."""
    max_length: Length = 512
    """Maximum output length in tokens for any input; EOS counts."""
    batch_tokens: Annotated[int, Range(1, 10_000_000)] = 8192
    """Source tokens per batch, counting padding and every hypothesis of the beam; limits memory."""

    def __post_init__(self) -> None:
        if self.n_best > self.beam:
            raise ValueError(
                f"n_best must be at most beam ({self.beam}), got {self.n_best}; a wider beam may "
                f"change the best output"
            )

    def limit(self, source_length: int) -> int:
        """Return min(max_length, max_ratio * source_length + max_extra), at least 1."""
        return max(1, min(self.max_length, int(self.max_ratio * source_length) + self.max_extra))


@settings
class SamplingConfig:
    """Distribution of a next token, given the model's."""

    temperature: Annotated[float, Range(0, 1_000)] = 0.8
    """Values below 1 sharpen the distribution; 0: the most likely token; else at least 0.001."""
    top_k: Count | None = None
    """Sample from the k most likely tokens only; from all if not given."""
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0
    """Sample from the smallest set of most likely tokens with this total probability."""
    seed: Seed = 1
    """Seed of sampling: another number gives another output."""

    def __post_init__(self) -> None:
        if 0 < self.temperature < _LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 or at least {_LEAST_TEMPERATURE}, got {self.temperature}"
            )


@settings
class SampleConfig(SamplingConfig):
    """Settings of sampling: each next token is drawn from the model's distribution."""

    length: Length = 200
    """Number of tokens generated for each prompt."""
    context: Literal["restart", "slide", "last"] = "restart"
    """Context of a token once the text is longer than the model's context of k tokens. restart: the
    last k/2 to k tokens: a full context is cut to its last half, which is read again in one pass.
    last: exactly the last k tokens, as GPT is defined; each token costs a
    pass over all k. slide: the keys and values of the last k tokens, which also depend on earlier
    ones; each token costs one step. Not with learned or sinusoidal positions."""


@settings
class DrawingConfig(SamplingConfig):
    """Settings of image generation: each next code is drawn given the text and the codes so far."""

    guidance: Annotated[float, Range(0, 1_000)] = 2.0
    """Scale of classifier-free guidance: log p = log p(without text) + guidance (log p(with text) -
    log p(without text)); 1 is no guidance."""
    temperature: Annotated[float, Range(0, 1_000)] = 0.3
    """Values below 1 sharpen the distribution; 0: the most likely code; else at least 0.001."""
