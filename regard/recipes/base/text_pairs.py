"""Data of a text-to-text run: training, validation and test pairs, tokenizers and the metric."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from regard.data.batches import EncodedPairs
from regard.data.config import OnBad
from regard.data.text.pairs import Pairs, limit_length
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.recipes.metrics.text import Metric

_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class Texts(NamedTuple):
    """Source texts and their reference targets."""

    sources: Sequence[str]
    targets: Sequence[str]
    origin: str
    """Name of the data, for reports."""


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


@runtime_checkable
class TextPairsData(Protocol):
    """Data and metric of a text-to-text recipe."""

    def origin(self) -> str:
        """Return the name of the training data, for messages."""
        ...

    @property
    def metric(self) -> Metric:
        """Metric that compares outputs with references."""
        ...

    def check(self) -> None:
        """Read all data, so that a missing or malformed file is reported before training."""
        ...

    def train_codec(self) -> Codec:
        """Train tokenizers on the training texts."""
        ...

    def get_training_pairs(self, codec: Codec) -> EncodedPairs | Callable[[int], EncodedPairs]:
        """Return the training pairs, or a function from an epoch to its pairs."""
        ...

    def get_held_out_pairs(self, split: Literal["val", "test"], codec: Codec) -> Texts | None:
        """Return the validation or test pairs; None if there is no test data."""
        ...

    def upper_bound(self) -> float | None:
        """Return the best score that any model can reach, if the data determines it; takes seconds."""
        ...


def filter_by_length(
    pairs: Pairs, codec: Codec, *, max_length: int, on_bad: OnBad, notify: Callable[[str], None]
) -> tuple[Texts, EncodedPairs]:
    """Return the pairs of at most `max_length` tokens per side, as texts and as ids.

    Raises UserError naming the first longer pair, unless on_bad is skip; `notify` is then called with their number.
    """
    encoded = codec.encode(Texts(pairs.sources, pairs.targets, pairs.origin))
    lengths = list(zip(encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist(), strict=True))
    keep, skipped = limit_length(pairs, lengths, max_length=max_length, on_bad=on_bad)
    if skipped:
        notify(f"{pairs.origin}: {skipped.describe()}")
    if not keep:
        raise UserError(f"{pairs.origin}: no pair is left")
    texts = Texts([pairs.sources[i] for i in keep], [pairs.targets[i] for i in keep], pairs.origin)
    if len(keep) == len(pairs):
        return texts, encoded
    sources = (encoded.sources[i].tolist() for i in keep)
    return texts, EncodedPairs.from_sequences(sources, (encoded.targets[i].tolist() for i in keep))
