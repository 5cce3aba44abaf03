"""How outputs are searched for; holds no tensors, so that the command line can explain it quickly."""

from dataclasses import dataclass

__all__ = ["DecodeConfig"]


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
