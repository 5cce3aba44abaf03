"""The recipe `dates`: its texts are made, anew for every epoch, so nothing has to be read."""

from collections.abc import Callable, Sequence
from typing import Literal

from regard.data import dates
from regard.data.batches import Encoded
from regard.data.tokenize import Tokenizer
from regard.recipes.config import Dates
from regard.recipes.folder import Run
from regard.recipes.material import Codec, Texts
from regard.recipes.metrics import Exact
from regard.recipes.text_to_text import TextTask


class DatesMaterial:
    """Dates in many languages and their ISO form."""

    def __init__(self, config: Dates, seed: int):
        self.config = config
        self.metric = Exact()
        self._dates = dates.Dates(config.data, seed=seed)

    def origin(self) -> str:
        """They are from no file."""
        return "dates"

    def check(self) -> None:
        """Write one date in each split, which finds unknown languages."""
        for split in ("train", "val", "test"):
            self._dates.example(split, index=0)

    def codec(self) -> Codec:
        """One tokenizer a side, from the first epoch's texts."""
        texts = _texts(self._dates.examples("train"), "dates")
        source = Tokenizer.train(texts.sources, self.config.source_tokenizer)
        return Codec(source, Tokenizer.train(texts.targets, self.config.target_tokenizer))

    def training(self, codec: Codec) -> Callable[[int], Encoded]:
        """Fresh examples for each epoch."""
        return lambda epoch: codec.encoded(_texts(self._dates.examples("train", epoch=epoch), "dates"))

    def held_out(self, split: Literal["val", "test"], codec: Codec) -> Texts:
        """Examples of dates that no other split holds."""
        return _texts(self._dates.examples(split), f"dates, {split}")

    def ceiling(self) -> float:
        """Exact match, in percent, of a perfect reader who is not told the language: some months are ambiguous."""
        return 100 * self._dates.ceiling().accuracy


def task(run: Run, tell: Callable[[str], None]) -> TextTask:
    """This recipe at work."""
    assert isinstance(run.config, Dates)
    return TextTask(run, tell, DatesMaterial(run.config, run.seed))


def _texts(examples: Sequence[dates.DateExample], origin: str) -> Texts:
    return Texts([one.text for one in examples], [one.iso for one in examples], origin)
