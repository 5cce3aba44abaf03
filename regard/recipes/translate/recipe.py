"""Recipe `translate`: sequence-to-sequence models of the user's own text pairs, scored by BLEU."""

from collections.abc import Sequence
from typing import Any

from regard.data.batches import EncodedPairs
from regard.data.text.pairs import Pairs, add_references, read_split
from regard.data.tokenizer import Tokenizer, train_tokenizers
from regard.errors import UserError
from regard.recipes.base.recipe import Dataset, FileRecipe
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.metrics.text import bleu, further_scores
from regard.recipes.translate.config import TranslateRunConfig


class TranslateRecipe(TextToTextRecipe[TranslateRunConfig], FileRecipe[TranslateRunConfig]):
    """Recipe of sequence-to-sequence models."""

    metric = "bleu"

    def read_split(self, split: Any) -> Pairs:
        data = self.config.data
        pairs = read_split(data, split)
        if split != "test":
            return pairs
        return add_references(pairs, data.references, data.encoding)

    def generate(self, split: str) -> Pairs:
        raise UserError(f"--data.{split} must be a file, a folder or a data set (hf:NAME)")

    def hold_out(self, train: Pairs) -> tuple[Pairs, Pairs]:
        return self.split_off(train, "pairs", groups=train.sources)

    def text_scores(
        self, outputs: Sequence[str], references: Sequence[Sequence[str]], *, is_test: bool
    ) -> dict[str, Any]:
        scores = bleu(outputs, references, self.config.bleu)
        return scores | further_scores(outputs, references) if is_test else scores

    def fit_tokenizers(self, train: Dataset[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        pairs, config = train.data, self.config.tokenizer
        return train_tokenizers(pairs.sources, pairs.targets, config, origin=pairs.origin)

    def training_pairs(self) -> tuple[EncodedPairs, str]:
        return self.read_encoded(self.train).targets, self.train.origin
