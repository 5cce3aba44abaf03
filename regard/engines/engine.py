"""What every engine does: decode with a trained model.

    hypotheses = engine.search(sentences, config=..., bos=..., eos=..., pad=...)          an encoder-decoder
    tokens     = engine.generate(prompts, sampling, window=..., seeds=..., banned=...)    a language model

`search` has the contract of `regard.decode.search.search`, and `generate` that of `regard.decode.sample.sample`, for
several prompts at once. The torch engine is these functions; what another engine answers is tested against them.
"""

from abc import ABC
from collections.abc import Sequence
from typing import Any

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis

__all__ = ["Engine"]


class Engine(ABC):
    """A trained model, ready to decode; made by `regard.engines.registry.prepare`. It follows changes of the model."""

    name: str
    """As in `regard.engines.config.ENGINES`."""
    compute_type: str
    """Numbers that it computes in."""
    falls_back = False
    """Whether torch answers once the model has become one that the engine cannot run: where `auto` chose it."""

    alone = False
    """Whether nobody else has the model, so that its weights and modules stay what they are."""
    _model: Any

    @property
    def model(self) -> Any:
        """The model, which whoever asks may change."""
        self.alone = False
        return self._model

    def search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence (ids as the model reads them), best first, in the order given.

        PAD and BOS are never produced.
        Raises: ValueError if a sentence holds no ids, or one that is not in the vocabulary; TypeError if the model is
                no encoder-decoder; UserError if it has become one that the engine cannot run.
        """
        raise TypeError(f"this model reads no source: engine {self.name} can only go on with its texts")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """The config.length tokens that go on from each prompt.

        window: most tokens that the model sees; beyond them it goes on from the last half of them.
        seeds:  one a prompt. Equal seeds draw equal tokens in the same engine; two engines draw differently, but at
                temperature 0, where nothing is drawn.
        banned: tokens that are never drawn.
        Raises: ValueError if a prompt is empty, or holds what is not in the vocabulary; TypeError if the model is no
                language model; UserError if it has become one that the engine cannot run.
        """
        raise TypeError(f"this model is no language model: engine {self.name} can only search for its outputs")
