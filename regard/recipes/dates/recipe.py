"""Recipe `dates`: normalization of written dates to ISO 8601, on synthetic examples generated anew in every epoch."""

from collections.abc import Callable, Sequence
from typing import Literal

from regard.data.batches import EncodedPairs
from regard.data.embedded import dates
from regard.data.tokenizer import Tokenizer
from regard.recipes.base.run import Run
from regard.recipes.base.text_pairs import Codec, Texts
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.metrics.text import ExactMatch


class DatesData:
    """Dates written in many languages, and their ISO form."""

    def __init__(self, config: DatesRunConfig, seed: int):
        self.config = config
        self.metric = ExactMatch()
        self._dates = dates.DatesDataset(config.data, seed=seed)

    def origin(self) -> str:
        """Return `dates`: the texts are not from a file."""
        return "dates"

    def check(self) -> None:
        """Generate one example of each split, so that unknown languages are reported."""
        for split in ("train", "val", "test"):
            self._dates.example(split, index=0)

    def train_codec(self) -> Codec:
        """Train a tokenizer for each side on the texts of the first epoch."""
        texts = _texts(self._dates.examples("train"), "dates")
        source = Tokenizer.train(texts.sources, self.config.source_tokenizer)
        return Codec(source, Tokenizer.train(texts.targets, self.config.target_tokenizer))

    def get_training_pairs(self, codec: Codec) -> Callable[[int], EncodedPairs]:
        """Return a function that generates the examples of an epoch."""
        return lambda epoch: codec.encode(_texts(self._dates.examples("train", epoch=epoch), "dates"))

    def get_held_out_pairs(self, split: Literal["val", "test"], codec: Codec) -> Texts:
        """Return examples of dates that occur in no other split."""
        return _texts(self._dates.examples(split), f"dates, {split}")

    def upper_bound(self) -> float:
        """Return the exact match, in percent, of a perfect model: without the language, some months are ambiguous."""
        return 100 * self._dates.compute_ceiling().accuracy


def create_recipe(run: Run, notify: Callable[[str], None]) -> TextToTextRecipe:
    """Create the recipe of a run."""
    assert isinstance(run.config, DatesRunConfig)
    return TextToTextRecipe(run, notify, DatesData(run.config, run.seed))


def _texts(examples: Sequence[dates.DateExample], origin: str) -> Texts:
    return Texts([example.text for example in examples], [example.iso for example in examples], origin)
