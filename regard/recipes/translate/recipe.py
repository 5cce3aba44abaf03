"""Recipe `translate`: sequence-to-sequence models of the user's own text pairs, scored by BLEU."""

from functools import cached_property
from typing import Any

from regard.data.batches import EncodedPairs
from regard.data.held_out import split_data
from regard.data.text.pairs import Pairs, add_references, read_split
from regard.data.tokenizer import Tokenizer, train_tokenizers
from regard.recipes.base.recipe import Dataset
from regard.recipes.base.text_to_text import TextToTextRecipe, to_dataset
from regard.recipes.metrics.text import Bleu
from regard.recipes.translate.config import TranslateRunConfig


class TranslateRecipe(TextToTextRecipe[TranslateRunConfig]):
    """Recipe of sequence-to-sequence models."""

    metric = Bleu.name

    def load(self, split: Any) -> Dataset[Pairs]:
        data = self.config.data
        if split == "test":
            return to_dataset(add_references(read_split(data, split), data.references))
        if data.val is not None or data.train is None:
            return to_dataset(read_split(data, split))
        pairs = self._held_out[split == "val"]
        return to_dataset(pairs, pairs.notices)

    @cached_property
    def _held_out(self) -> tuple[Pairs, Pairs]:
        pairs = read_split(self.config.data, "train")
        share, seed = self.config.data.val_share, self.run.seed
        return split_data(pairs, share, "pairs", seed=seed, groups=pairs.sources)

    def scorer(self) -> Bleu:
        return Bleu(self.config.bleu)

    def fit_tokenizers(self, train: Dataset[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        pairs, config = train.data, self.config.tokenizer
        return train_tokenizers(pairs.sources, pairs.targets, config, origin=pairs.origin)

    def training_pairs(self) -> tuple[EncodedPairs, str]:
        return self.read_encoded(self.train).targets, self.train.origin
