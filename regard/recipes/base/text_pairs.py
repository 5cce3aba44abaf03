"""Tokenizers of a text-to-text run."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.batches import EncodedPairs
from regard.data.tokenizer import Tokenizer

_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class Codec(NamedTuple):
    """Source and target tokenizer; the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> EncodedPairs:
        return EncodedPairs.from_sequences(
            self.source.encode_batch(sources), self.target.encode_batch(targets)
        )

    def artifacts(self) -> dict[str, Tokenizer]:
        if self.source is self.target:
            return {_JOINT: self.source}
        return {_SOURCE: self.source, _TARGET: self.target}

    @classmethod
    def load(cls, folder: Path) -> "Codec":
        if (folder / _SOURCE).exists() or (folder / _TARGET).exists():
            return cls(Tokenizer.load(folder / _SOURCE), Tokenizer.load(folder / _TARGET))
        joint = Tokenizer.load(folder / _JOINT)
        return cls(joint, joint)
