"""Settings of decoding. Imports no torch, so that the command line shows its help quickly."""

from pathlib import Path
from typing import Annotated, Literal

from regard.errors import UserError
from regard.settings.declare import check_unused, settings
from regard.settings.ranges import Count, Fraction, Length, Range, Seed

NgramSize = Annotated[int, Range(0, 1_000)]
Penalty = Annotated[float, Range(1, 1_000)]
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
    min_length: Annotated[int, Range(0, 1_000_000)] = 0
    """Minimum number of tokens before EOS."""
    target_prefix: str | None = None
    """Text that all outputs begin with."""
    bad_words: tuple[str, ...] = ()
    """Words and phrases that do not occur, at the beginning of an output and after a space."""
    no_repeat_ngram_size: NgramSize = 0
    """Sequences of n tokens occur once in an output; 0: any number of times."""
    repetition_penalty: Penalty = 1.0
    """Penalty t of tokens that occurred: logits below 0 are multiplied by t, others divided."""
    batch_tokens: Annotated[int, Range(1, 10_000_000)] = 8192
    """Source tokens per batch, counting padding and every hypothesis of the beam; limits memory."""

    def __post_init__(self) -> None:
        if self.n_best > self.beam:
            raise ValueError(
                f"n_best must be at most beam ({self.beam}), got {self.n_best}; a wider beam may "
                f"change the best output"
            )
        if self.min_length >= self.max_length:
            raise ValueError(
                f"min_length must be below max_length ({self.max_length}), got {self.min_length}"
            )

    def limit(self, source_length: int, least: int = 0) -> int:
        """Return min(max_length, max_ratio * source_length + max_extra), above min_length and the
        number of tokens that rules require, which UserError names if max_length is not above."""
        if least >= self.max_length:
            required = f"{least}, the tokens of target_prefix and glossary"
            raise UserError(f"max_length must be above {required}, got {self.max_length}")
        limit = min(self.max_length, int(self.max_ratio * source_length) + self.max_extra)
        return max(self.min_length + 1, least + 1, limit)


@settings
class TranslationDecodeConfig(DecodeConfig):
    """Settings of the search for translations."""

    glossary: Path | None = None
    """Table of source terms and target terms (TSV, CSV ...): where a source contains a term, as
    whole words, its outputs contain the target. By engine torch alone."""
    method: Literal["beam", "mbr"] = "beam"
    """beam: the most likely output by beam search; mbr: minimum Bayes risk, the sample with the
    highest mean chrF to all `num_samples` samples. By engine torch alone."""
    num_samples: Annotated[int, Range(2, 10_000)] = 32
    """Number of samples of `mbr` for each input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = "glossary" if self.method == "mbr" else "num_samples"
        check_unused(self, [unused], f"method {self.method}")


@settings
class SamplingConfig:
    """Distribution of a next token, given the model's."""

    temperature: Annotated[float, Range(0, 1_000)] = 0.8
    """Values below 1 sharpen the distribution; 0: the most likely token; else at least 0.001."""
    top_k: Count | None = None
    """Sample from the k most likely tokens only; from all if not given."""
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0
    """Sample from the smallest set of most likely tokens with this total probability."""
    min_p: Fraction = 0.0
    """Sample from tokens at least as likely as this share of the most likely one's probability."""
    no_repeat_ngram_size: NgramSize = 0
    """Sequences of n tokens occur once, those of a prompt included; 0: any number of times."""
    repetition_penalty: Penalty = 1.0
    """Penalty t of tokens that occurred: logits below 0 are multiplied by t, others divided."""
    seed: Seed = 1
    """Seed of sampling: another number gives another output. So does another text, or number of an
    input (its place in a file), but not what the other inputs are."""

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
    bad_words: tuple[str, ...] = ()
    """Words and phrases that do not occur, at the beginning of a text and after a space."""
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
