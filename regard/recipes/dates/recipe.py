"""Recipe `dates`: written dates to ISO 8601, on synthetic examples, new in every epoch."""

from collections.abc import Callable, Sequence
from typing import Any

from regard.data.batches import EncodedPairs
from regard.data.embedded import dates
from regard.data.text.pairs import Pairs, read_pairs
from regard.data.tokenizer import Tokenizer, TrainedTokenizer
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import Dataset
from regard.recipes.base.run import Run
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.metrics.text import exact_match


class DatesRecipe(TextToTextRecipe[DatesRunConfig]):
    """Recipe of date normalization."""

    metric = "exact_match"

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        self._dates = dates.DatesDataset(self.config.data, seed=run.seed)

    def load(self, split: str) -> Dataset[Pairs]:
        """Return examples of dates that occur in no other split, or the pairs of a file."""
        if split == "test" and self.config.data.test is not None:
            return self.to_dataset(read_pairs(self.config.data.test))
        return self.to_dataset(self._generate(split, f"dates, {split}"))

    def check(self) -> None:
        for split in ("train", "val", "test"):  # unknown languages are reported
            self._dates.example(split, index=0)

    def text_scores(
        self, outputs: Sequence[str], references: Sequence[Sequence[str]], *, is_test: bool
    ) -> dict[str, Any]:
        signature = "% equal to the reference, character by character"
        return {"exact_match": exact_match(outputs, references), "signature": signature}

    def fit_tokenizers(self, train: Dataset[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        source = TrainedTokenizer.train(train.data.sources, self.config.source_tokenizer)
        return source, TrainedTokenizer.train(train.data.targets, self.config.target_tokenizer)

    def training_pairs(self) -> tuple[Callable[[int], EncodedPairs], str]:
        def generate(epoch: int) -> EncodedPairs:
            return self.encode_pairs(self._generate("train", "dates", epoch=epoch))

        return generate, "dates"

    def _generate(self, split: Any, origin: str, **options: int) -> Pairs:
        examples = [*self._dates.examples(split, **options)]
        texts, targets = [one.text for one in examples], [one.iso for one in examples]
        return Pairs(texts, targets, [*range(1, len(examples) + 1)], origin)
