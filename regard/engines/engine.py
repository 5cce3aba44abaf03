"""The interface of engines: decode with a trained model.

    hypotheses = engine.search(sentences, config=..., bos=..., eos=..., pad=...)          an encoder-decoder
    tokens     = engine.generate(prompts, sampling, window=..., seeds=..., banned=...)    a language model

`search` has the contract of `regard.decode.search.search`, and `generate` that of `regard.decode.sample.sample`, for
several prompts at once. The torch engine is these functions; what another engine answers is tested against them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.engines.requests import check_places, check_prompts, check_sentences, check_specials, most_read
from regard.layers.forms import TextForm


@dataclass(frozen=True)
class Limits:
    """Inputs that a model takes. None: unlimited, or not known."""

    searches: bool
    """True for an encoder-decoder, which searches for outputs; False for a language model."""
    source_ids: int | None
    target_ids: int | None
    positions: int | None = None


def limits_of(form: TextForm) -> Limits:
    """Return the limits of a form."""
    target_ids = len(form.writes.output)
    source_ids = target_ids if form.source is None else len(form.source.weight)
    return Limits(form.source is not None, source_ids, target_ids, form.most_places)


class Engine(ABC):
    """A trained model, ready to decode; made by `regard.engines.registry.prepare`.

    An engine other than torch is a snapshot, as an export is: it decodes with a copy of the model that was taken when
    it was made, whatever happens to the model later.
    """

    name: str
    """As in `regard.engines.config.ENGINES`."""
    compute_type: str
    """Type of the numbers it computes in."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """Inputs that the model takes."""

    @abstractmethod
    def _search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """As `search`, for inputs within the limits."""

    @abstractmethod
    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """As `generate`, for at least one prompt, within the limits."""

    def search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence (ids as the model reads them), best first, in the order given.

        PAD and BOS are never produced.
        Raises: ValueError if a sentence holds no ids, or one that is not in the vocabulary; TypeError if the model is
                no encoder-decoder.
        """
        limits = self.limits
        if not limits.searches:
            raise TypeError(f"this model reads no source: engine {self.name} can only continue its texts")
        check_sentences(sentences, limits.source_ids)
        check_specials(bos=bos, eos=eos, pad=pad, vocab=limits.target_ids)
        check_places(max(map(len, sentences), default=0), limits.positions)
        return self._search(sentences, config=config, bos=bos, eos=eos, pad=pad)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """Return the config.length tokens that continue each prompt.

        window: most tokens that the model sees; beyond them it continues from the last half of them.
        seeds:  one a prompt. Equal seeds draw equal tokens in the same engine; two engines draw differently, but at
                temperature 0, where nothing is drawn.
        banned: tokens that are never drawn.
        Raises: ValueError if a prompt is empty, or holds what is not in the vocabulary; TypeError if the model is no
                language model.
        """
        limits = self.limits
        if limits.searches:
            raise TypeError(f"this model is no language model: engine {self.name} can only search for its outputs")
        check_prompts(prompts, seeds=seeds, banned=banned, window=window, vocab=limits.target_ids)
        if not prompts:
            return []
        check_places(most_read(max(map(len, prompts)), config.length, window), limits.positions)
        return self._generate(prompts, config, window=window, seeds=seeds, banned=banned)
