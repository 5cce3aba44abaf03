"""What a recipe gives to a text-to-text run: texts to learn from, to be tested on, and their metric."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from regard.data.batches import Encoded
from regard.data.config import OnBad
from regard.data.pairs import Pairs, limit_length
from regard.data.tokenize import Tokenizer
from regard.errors import UserError
from regard.recipes.metrics import Metric

_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class Texts(NamedTuple):
    """Sources and the targets that are right for them."""

    sources: Sequence[str]
    targets: Sequence[str]
    origin: str
    """Where they are from, for reports."""


class Codec(NamedTuple):
    """The tokenizers of both sides; one and the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    def encoded(self, texts: Texts) -> Encoded:
        """The ids of both sides."""
        return Encoded.of(self.source.encode_batch(texts.sources), self.target.encode_batch(texts.targets))

    def save(self, folder: Path) -> None:
        """Write one file if the vocabulary is shared, else two."""
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
        both = Tokenizer.load(folder / _JOINT)
        return cls(both, both)


@runtime_checkable
class Material(Protocol):
    """A recipe's data and metric."""

    def origin(self) -> str:
        """Where the training texts are from, for messages."""
        ...

    @property
    def metric(self) -> Metric:
        """How outputs are compared with references."""
        ...

    def check(self) -> None:
        """Open all that the run will need, so that a missing file is told before hours of training."""
        ...

    def codec(self) -> Codec:
        """Tokenizers learned from the training texts."""
        ...

    def training(self, codec: Codec) -> Encoded | Callable[[int], Encoded]:
        """The pairs to learn from, or for each epoch its pairs."""
        ...

    def held_out(self, split: Literal["val", "test"], codec: Codec) -> Texts | None:
        """Pairs that are not learned from; None if there are none (test only)."""
        ...

    def ceiling(self) -> float | None:
        """The best score that any model can have, where the data tells; seconds."""
        ...


def within(
    pairs: Pairs, codec: Codec, *, max_length: int, on_bad: OnBad, tell: Callable[[str], None]
) -> tuple[Texts, Encoded]:
    """The pairs of at most `max_length` tokens a side, as texts and ids; what was left out is told.

    Raises UserError naming the first longer pair, unless on_bad is skip.
    """
    encoded = codec.encoded(Texts(pairs.sources, pairs.targets, pairs.origin))
    lengths = list(zip(encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist(), strict=True))
    keep, skipped = limit_length(pairs, lengths, max_length=max_length, on_bad=on_bad)
    if skipped.total:
        tell(f"{pairs.origin}: {skipped.describe()}")
    if not keep:
        raise UserError(f"{pairs.origin}: no pair is left")
    texts = Texts([pairs.sources[i] for i in keep], [pairs.targets[i] for i in keep], pairs.origin)
    if len(keep) == len(pairs):
        return texts, encoded
    sources = (encoded.sources[i].tolist() for i in keep)
    return texts, Encoded.of(sources, (encoded.targets[i].tolist() for i in keep))
