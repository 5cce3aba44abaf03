"""How outputs are searched for; holds no tensors, so that the command line can explain it quickly."""

from dataclasses import dataclass

__all__ = ["DecodeConfig", "DrawingConfig", "SampleConfig"]


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Settings of a search.

    Raises: ValueError if a value is out of range, with its name.
    """

    beam: int = 5
    """Hypotheses kept of each sentence at every step; 1 is greedy search."""
    length_penalty: float = 1.0
    """alpha of score = log-probability / length^alpha, from 0 to 5; a higher one favours longer outputs."""
    n_best: int = 1
    """Outputs given for each sentence, best first; at most `beam`."""
    max_ratio: float = 2.0
    """Longest output, in tokens for each token of the input; `max_extra` is added and EOS is counted."""
    max_extra: int = 10
    """Tokens that an output may have beyond `max_ratio` times its input."""
    max_length: int = 512
    """Longest output in tokens whatever the input, EOS counted."""
    batch_tokens: int = 8192
    """Source tokens searched at once, padding and every hypothesis of the beam counted; a memory limit."""

    def __post_init__(self) -> None:
        for name in ("beam", "n_best", "max_length", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.n_best > self.beam:
            raise ValueError(f"n_best must be at most beam ({self.beam}), got {self.n_best}")
        if not 0 <= self.length_penalty <= 5:
            raise ValueError(f"length_penalty must be from 0 to 5, got {self.length_penalty}")
        if not 0 <= self.max_ratio < float("inf"):
            raise ValueError(f"max_ratio must not be negative or infinite, got {self.max_ratio}")
        if self.max_extra < 0:
            raise ValueError(f"max_extra must not be negative, got {self.max_extra}")

    def limit(self, source_length: int) -> int:
        """Longest output: min(max_length, max_ratio * source_length + max_extra), at least 1."""
        return max(1, min(self.max_length, int(self.max_ratio * source_length) + self.max_extra))


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a text is gone on with: each next token is drawn from what the model expects.

    Raises: ValueError if a value is out of range, with its name.
    """

    length: int = 200
    """Tokens that are added to each text."""
    temperature: float = 0.8
    """Below 1 the likely becomes more likely; 0 always takes the likeliest."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens; from all if not given."""
    top_p: float = 1.0
    """Draw from the fewest tokens that have this share of the probability together."""
    draws: int = 1
    """Which of many possible texts: another number gives another one."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must not be negative or infinite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.draws < 0:
            raise ValueError(f"draws must not be negative, got {self.draws}")


@dataclass(frozen=True, kw_only=True)
class DrawingConfig:
    """How an image is drawn: each next code is taken from what the model expects after the text and the codes so far.

    Raises: ValueError if a value is out of range, with its name.
    """

    guidance: float = 2.0
    """How much more the text counts than in training: log p = log p(without) + guidance (log p(with) - log p(without));
    1 is the model as it is."""
    temperature: float = 0.3
    """Below 1 the likely becomes more likely; 0 always takes the likeliest."""
    top_k: int | None = None
    """Draw from so many of the likeliest codes; from all if not given."""
    top_p: float = 1.0
    """Draw from the fewest codes that have this share of the probability together."""
    draws: int = 1
    """Which of many possible images: another number gives another one."""

    def __post_init__(self) -> None:
        if not 0 <= self.guidance < float("inf"):
            raise ValueError(f"guidance must not be negative or infinite, got {self.guidance}")
        self.choosing  # noqa: B018  # its own checks

    @property
    def choosing(self) -> SampleConfig:
        """How each code is chosen."""
        return SampleConfig(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, draws=self.draws)
