"""Text pairs of a text-to-text run, and their tokenizers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.batches import EncodedPairs
from regard.data.config import OnBad
from regard.data.text.pairs import Pairs, add_references, limit_length, read_pairs
from regard.data.tokenizer import Tokenizer
from regard.recipes.base.config import OtherPairs
from regard.recipes.base.recipe import Examples

_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class Texts(NamedTuple):
    """Source texts and their reference targets."""

    sources: Sequence[str]
    targets: Sequence[str]
    origin: str
    """Name of the data, for reports."""
    references: Sequence[Sequence[str]] = ()
    """All reference targets of each text; empty if there is one of each, in `targets`."""

    def all_references(self) -> Sequence[Sequence[str]]:
        """Return the reference targets of each text."""
        return self.references or [[target] for target in self.targets]


class Codec(NamedTuple):
    """Source and target tokenizer; the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    def encode(self, texts: Texts) -> EncodedPairs:
        """Return the ids of both sides."""
        return EncodedPairs.from_sequences(
            self.source.encode_batch(texts.sources), self.target.encode_batch(texts.targets)
        )

    def save(self, folder: Path) -> None:
        """Write one file for a joint vocabulary, else two."""
        if self.source is self.target:
            self.source.save(folder / _JOINT)
            return
        self.source.save(folder / _SOURCE)
        self.target.save(folder / _TARGET)

    @classmethod
    def load(cls, folder: Path) -> "Codec":
        """Read what `save` wrote. Raises UserError naming the file that is missing or damaged."""
        if (folder / _SOURCE).exists() or (folder / _TARGET).exists():
            return cls(Tokenizer.load(folder / _SOURCE), Tokenizer.load(folder / _TARGET))
        joint = Tokenizer.load(folder / _JOINT)
        return cls(joint, joint)


def filter_by_length(
    pairs: Pairs, codec: Codec, *, max_length: int, on_bad: OnBad
) -> tuple[Texts, EncodedPairs, tuple[str, ...]]:
    """Return the pairs of at most `max_length` tokens per side, as texts and as ids, and a note on
    longer ones.

    Raises UserError naming the first longer pair, unless on_bad is skip.
    """
    encoded = codec.encode(Texts(pairs.sources, pairs.targets, pairs.origin))
    lengths = list(
        zip(encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist(), strict=True)
    )
    keep, skipped = limit_length(pairs, lengths, max_length=max_length, on_bad=on_bad)
    notes = (f"{pairs.origin}: {skipped.describe()}",) if skipped else ()
    if len(keep) == len(pairs):
        return Texts(pairs.sources, pairs.targets, pairs.origin, pairs.references), encoded, notes
    kept = pairs.take(keep, skipped)
    texts = Texts(kept.sources, kept.targets, kept.origin, kept.references)
    sources = (encoded.sources[i].tolist() for i in keep)
    return (
        texts,
        EncodedPairs.from_sequences(sources, (encoded.targets[i].tolist() for i in keep)),
        notes,
    )


def read_other_pairs(other: OtherPairs) -> Examples[Pairs]:
    """Return the pairs of one file."""
    columns = {
        "source_column": other.source_column,
        "target_column": other.target_column,
        "header": other.header,
    }
    target = other.test_target[0] if other.test_target else None
    options = {"format": other.format, "on_bad": other.on_bad, "split": "test", **columns}
    pairs = read_pairs(other.test[0], target=target, **options)
    return to_examples(add_references(pairs, other.references), other.on_bad)


def to_examples(
    texts: Pairs | Texts, on_bad: OnBad = "error", notes: tuple[str, ...] = ()
) -> Examples[Any]:
    """Return texts as examples."""
    own = {"input": texts.sources.__getitem__, "on_bad": on_bad, "skipped": notes}
    return Examples(texts, texts.origin, len(texts.sources), **own)
