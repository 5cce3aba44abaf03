"""Recipe `translate`: sequence-to-sequence models of the user's own text pairs, scored by BLEU."""

from functools import cached_property
from typing import Any

from regard.data.batches import EncodedPairs
from regard.data.text.pairs import Pairs, read_split
from regard.data.tokenizer import train_tokenizers
from regard.recipes.base.config import PairsEvaluation
from regard.recipes.base.recipe import Examples
from regard.recipes.base.text_pairs import Codec, read_other_pairs, to_examples
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.metrics.text import Bleu
from regard.recipes.translate.config import TranslateEvaluation, TranslateRunConfig


class TranslateRecipe(TextToTextRecipe[TranslateRunConfig]):
    """Recipe of sequence-to-sequence models."""

    metric = Bleu.name

    def read(self, split: Any, other: Any = None) -> Examples[Pairs]:
        if other is not None:
            return read_other_pairs(other)
        data = self.config.data
        if split == "test" or data.val is not None or data.train is None:
            return to_examples(read_split(data, split), data.on_bad)
        train, val, notice = self._held_out
        return (
            to_examples(train, data.on_bad)
            if split == "train"
            else to_examples(val, data.on_bad, (notice,))
        )

    def check_examples(self, split: str, examples: Examples[Pairs]) -> None:
        source, target = self.config.data.source_column, self.config.data.target_column
        if split == "train" and source is not None and source == target:
            self.notify(
                f"--data.source-column and --data.target-column are both {source}: each target is "
                f"its source"
            )
        ends = [target.endswith(" .") for target in examples.data.targets[:200]]
        if split == "val" and self.config.bleu.tokenize != "none" and sum(ends) > len(ends) / 2:
            self.notify(
                "the validation targets look tokenized (they end in ` .`): scores of tokenized "
                "text are usually "
                "computed with --bleu.tokenize none, also in `regard evaluate`"
            )

    @cached_property
    def _held_out(self) -> tuple[Pairs, Pairs, str]:
        """Training and validation pairs from the training file."""
        pairs = read_split(self.config.data, "train")
        return pairs.hold_out(self.config.data.val_share, "pairs", seed=self.run.seed)

    def scorer(self, options: PairsEvaluation | None = None) -> Bleu:
        return Bleu(options.bleu if isinstance(options, TranslateEvaluation) else self.config.bleu)

    def train_codec(self) -> Codec:
        pairs = self.train.data
        return Codec(
            *train_tokenizers(
                pairs.sources, pairs.targets, self.config.tokenizer, origin=pairs.origin
            )
        )

    def training_pairs(self) -> EncodedPairs:
        return self.load_usable(self.train).targets
