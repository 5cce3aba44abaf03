"""How outputs are searched for; holds no tensors, so that the command line can explain it quickly."""

from dataclasses import dataclass
from typing import Annotated

from regard.ranges import Count, Draws, Length, Range, check_ranges

_LEAST_TEMPERATURE = 0.001
"""Scores over a smaller one are beyond the range of float32."""


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Settings of a search.

    Raises: ValueError if a value is out of range, with its name.
    """

    beam: Annotated[int, Range(1, 1_000)] = 5
    """Hypotheses kept of each sentence at every step; 1 is greedy search."""
    length_penalty: Annotated[float, Range(0, 5)] = 1.0
    """alpha of score = log-probability / length^alpha; a higher one favors longer outputs."""
    n_best: Annotated[int, Range(1, 1_000)] = 1
    """Outputs given for each sentence, best first; at most `beam`."""
    max_ratio: Annotated[float, Range(0, 1_000)] = 2.0
    """Longest output, in tokens for each token of the input; `max_extra` is added and EOS is counted."""
    max_extra: Annotated[int, Range(0, 1_000_000)] = 10
    """Tokens that an output may have beyond `max_ratio` times its input."""
    max_length: Length = 512
    """Longest output in tokens whatever the input, EOS counted."""
    batch_tokens: Annotated[int, Range(1, 10_000_000)] = 8192
    """Source tokens searched at once, padding and every hypothesis of the beam counted; a memory limit."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.n_best > self.beam:
            raise ValueError(f"n_best must be at most beam ({self.beam}), got {self.n_best}")

    def limit(self, source_length: int) -> int:
        """Longest output: min(max_length, max_ratio * source_length + max_extra), at least 1."""
        return max(1, min(self.max_length, int(self.max_ratio * source_length) + self.max_extra))


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a text is gone on with: each next token is drawn from what the model expects.

    Raises: ValueError if a value is out of range, with its name.
    """

    length: Length = 200
    """Tokens that are added to each text."""
    temperature: Annotated[float, Range(0, 1_000)] = 0.8
    """Below 1 the likely becomes more likely; 0 always takes the likeliest, and 0.001 is the least beside it."""
    top_k: Count | None = None
    """Draw from so many of the likeliest tokens; from all if not given."""
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0
    """Draw from the fewest tokens that have this share of the probability together."""
    draws: Draws = 1
    """Which of many possible texts: another number gives another one."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if 0 < self.temperature < _LEAST_TEMPERATURE:
            raise ValueError(f"temperature must be 0 or at least {_LEAST_TEMPERATURE}, but is {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class DrawingConfig:
    """How an image is drawn: each next code is taken from what the model expects after the text and the codes so far.

    Raises: ValueError if a value is out of range, with its name.
    """

    guidance: Annotated[float, Range(0, 1_000)] = 2.0
    """How much more the text counts than in training: log p = log p(without) + guidance (log p(with) - log p(without));
    1 is the model as it is."""
    temperature: Annotated[float, Range(0, 1_000)] = 0.3
    """Below 1 the likely becomes more likely; 0 always takes the likeliest, and 0.001 is the least beside it."""
    top_k: Count | None = None
    """Draw from so many of the likeliest codes; from all if not given."""
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0
    """Draw from the fewest codes that have this share of the probability together."""
    draws: Draws = 1
    """Which of many possible images: another number gives another one."""

    def __post_init__(self) -> None:
        check_ranges(self)
        self.choosing  # noqa: B018  # its own checks

    @property
    def choosing(self) -> SampleConfig:
        """How each code is chosen."""
        return SampleConfig(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, draws=self.draws)
