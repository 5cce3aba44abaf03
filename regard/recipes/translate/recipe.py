"""Recipe `translate`: sequence-to-sequence models of the user's own text pairs, scored by BLEU."""

from collections.abc import Callable
from functools import cached_property
from typing import Literal

from regard.data.batches import EncodedPairs
from regard.data.text.pairs import Pairs, read_split
from regard.data.tokenizer import train_tokenizers
from regard.recipes.base.run import Run
from regard.recipes.base.text_pairs import Codec, Texts, filter_by_length
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.metrics.text import Bleu
from regard.recipes.translate.config import TranslateRunConfig
from regard.system.fingerprints import record_digests


class TranslateData:
    """Text pairs from files or data sets, each split read when first needed."""

    def __init__(self, config: TranslateRunConfig, notify: Callable[[str], None]):
        self.config = config
        self.metric = Bleu(config.bleu)
        self._notify = notify

    def origin(self) -> str:
        """Return the name of the training files."""
        return self._train.origin

    def check(self) -> None:
        """Read all splits, small ones first."""
        pairs = self._val
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                read_split(self.config.data, "test")
        if self.config.bleu.tokenize != "none" and _is_tokenized(pairs):
            self._notify(
                "the validation targets look tokenized (they end in ` .`): scores of tokenized text are usually "
                "computed with --bleu.tokenize none"
            )
        _ = self._train

    def train_codec(self) -> Codec:
        """Train the tokenizers on the training pairs."""
        return Codec(
            *train_tokenizers(
                self._train.sources, self._train.targets, self.config.tokenizer, origin=self._train.origin
            )
        )

    def get_training_pairs(self, codec: Codec) -> EncodedPairs:
        """Return the training pairs, the same in every epoch."""
        return self._filter(self._train, codec)[1]

    def get_held_out_pairs(self, split: Literal["val", "test"], codec: Codec) -> Texts | None:
        """Return the validation or test pairs."""
        if split == "test" and self.config.data.test is None:
            return None
        return self._filter(self._val if split == "val" else read_split(self.config.data, "test"), codec)[0]

    def upper_bound(self) -> None:
        """Return None: the best possible score is unknown."""
        return None

    @cached_property
    def _train(self) -> Pairs:
        return read_split(self.config.data, "train")

    @cached_property
    def _val(self) -> Pairs:
        return read_split(self.config.data, "val")

    def _filter(self, pairs: Pairs, codec: Codec) -> tuple[Texts, EncodedPairs]:
        limits = {"max_length": self.config.input_limit, "on_bad": self.config.data.on_bad}
        return filter_by_length(pairs, codec, notify=self._notify, **limits)


def create_recipe(run: Run, notify: Callable[[str], None]) -> TextToTextRecipe:
    """Create the recipe of a run."""
    assert isinstance(run.config, TranslateRunConfig)
    return TextToTextRecipe(run, notify, TranslateData(run.config, notify))


def _is_tokenized(pairs: Pairs) -> bool:
    ends = [target.endswith(" .") for target in pairs.targets[:200]]
    return sum(ends) > len(ends) / 2
