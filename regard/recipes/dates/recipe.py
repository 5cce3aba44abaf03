"""Recipe `dates`: normalization of written dates to ISO 8601, on synthetic examples generated anew
in every epoch."""

from collections.abc import Callable
from typing import Any

from regard.data.batches import EncodedPairs
from regard.data.embedded import dates
from regard.data.tokenizer import Tokenizer
from regard.recipes.base.config import PairsEvaluation
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import Examples
from regard.recipes.base.run import Run
from regard.recipes.base.text_pairs import Codec, Texts, read_other_pairs, to_examples
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.metrics.text import ExactMatch


class DatesRecipe(TextToTextRecipe[DatesRunConfig]):
    """Recipe of date normalization."""

    metric = ExactMatch.name

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        self._dates = dates.DatesDataset(self.config.data, seed=run.seed)

    def read(self, split: Any, other: Any = None) -> Examples[Any]:
        if other is not None:
            return read_other_pairs(other)
        return to_examples(self._texts(split, f"dates, {split}"))

    def check(self) -> None:
        for split in ("train", "val", "test"):
            self._dates.example(split, index=0)

    def scorer(self, options: PairsEvaluation | None = None) -> ExactMatch:
        return ExactMatch()

    def train_codec(self) -> Codec:
        texts = self._texts("train")
        source = Tokenizer.train(texts.sources, self.config.source_tokenizer)
        return Codec(source, Tokenizer.train(texts.targets, self.config.target_tokenizer))

    def training_origin(self) -> str:
        return "dates"

    def training_pairs(self) -> Callable[[int], EncodedPairs]:
        return lambda epoch: self.codec.encode(self._texts("train", epoch=epoch))

    def upper_bound(self) -> float:
        return 100 * self._dates.compute_ceiling().accuracy

    def _texts(self, split: Any, origin: str = "dates", **options: int) -> Texts:
        examples = self._dates.examples(split, **options)
        return Texts(
            [example.text for example in examples], [example.iso for example in examples], origin
        )
