"""The recipe `translate`: the user's own pairs of texts, scored by BLEU."""

from collections.abc import Callable
from functools import cached_property
from typing import Literal

from regard.data.batches import Encoded
from regard.data.pairs import Pairs, read_split
from regard.data.tokenize import train_tokenizers
from regard.digests import recorded
from regard.recipes.config import Translate
from regard.recipes.folder import Run
from regard.recipes.material import Codec, Texts, within
from regard.recipes.metrics import Bleu
from regard.recipes.text_to_text import TextTask


class TranslateMaterial:
    """Pairs from files or data sets, each read when first needed."""

    def __init__(self, config: Translate, tell: Callable[[str], None]):
        self.config = config
        self.metric = Bleu(config.bleu)
        self._tell = tell

    def origin(self) -> str:
        """The training files."""
        return self._train.origin

    def check(self) -> None:
        """Read all splits, the small ones first."""
        pairs = self._val
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                read_split(self.config.data, "test")
        if self.config.bleu.tokenize != "none" and _look_tokenized(pairs):
            self._tell(
                "the validation targets look tokenized (they end in ` .`): `--bleu.tokenize none` compares "
                "them as they are, which is how scores on tokenized text are usually given"
            )
        _ = self._train

    def codec(self) -> Codec:
        """Tokenizers of the training pairs."""
        return Codec(
            *train_tokenizers(
                self._train.sources, self._train.targets, self.config.tokenizer, origin=self._train.origin
            )
        )

    def training(self, codec: Codec) -> Encoded:
        """The same pairs in every epoch."""
        return self._within(self._train, codec)[1]

    def held_out(self, split: Literal["val", "test"], codec: Codec) -> Texts | None:
        """The validation or test pairs."""
        if split == "test" and self.config.data.test is None:
            return None
        return self._within(self._val if split == "val" else read_split(self.config.data, "test"), codec)[0]

    def ceiling(self) -> None:
        """Nobody knows."""
        return None

    @cached_property
    def _train(self) -> Pairs:
        return read_split(self.config.data, "train")

    @cached_property
    def _val(self) -> Pairs:
        return read_split(self.config.data, "val")

    def _within(self, pairs: Pairs, codec: Codec) -> tuple[Texts, Encoded]:
        limits = {"max_length": self.config.input_limit, "on_bad": self.config.data.on_bad}
        return within(pairs, codec, tell=self._tell, **limits)


def task(run: Run, tell: Callable[[str], None]) -> TextTask:
    """This recipe at work."""
    assert isinstance(run.config, Translate)
    return TextTask(run, tell, TranslateMaterial(run.config, tell))


def _look_tokenized(pairs: Pairs) -> bool:
    ends = [target.endswith(" .") for target in pairs.targets[:200]]
    return sum(ends) > len(ends) / 2
