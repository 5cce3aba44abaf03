"""Settings of metrics. Importing them needs no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BleuConfig:
    """Settings of BLEU (sacrebleu), which are part of its signature."""

    tokenize: Literal["13a", "none", "intl", "char"] = "13a"
    """Tokenization: 13a, the standard one; none, for texts that are tokenized already; intl; char,
    for languages without spaces."""
    lowercase: bool = False
    """Lowercase both sides first."""
