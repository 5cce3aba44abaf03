"""How outputs are compared with references: exact match, BLEU.

exact   100 * outputs that equal their reference / all
bleu    corpus BLEU-4 by sacrebleu, with its signature        papineni2002, post2018
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sacrebleu.metrics import BLEU

from regard.recipes.config import BleuConfig


@runtime_checkable
class Metric(Protocol):
    """A score of many outputs; larger is better."""

    name: str
    """Its name in reports."""

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """From 0 to 100."""
        ...

    def signature(self) -> str:
        """What one must know to compare the score with another."""
        ...


class Exact:
    """Share of outputs that are the reference, in percent."""

    name = "exact"

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """100 * equal / all."""
        pairs = zip(outputs, references, strict=True)
        return 100 * sum(output == reference for output, reference in pairs) / max(len(references), 1)

    def signature(self) -> str:
        """Nothing is normalized."""
        return "% equal to the reference, character by character"


class Bleu:
    """Corpus BLEU, as sacrebleu computes it."""

    name = "bleu"

    def __init__(self, config: BleuConfig):
        # force: no complaint about texts that are tokenized; whoever says `tokenize` knows.
        self._bleu = BLEU(tokenize=config.tokenize, lowercase=config.lowercase, force=True)

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """BLEU against one reference each."""
        return float(self._bleu.corpus_score(list(outputs), [list(references)]).score)

    def signature(self) -> str:
        """Sacrebleu's own. Raises its error before a first score."""
        return str(self._bleu.get_signature())
