"""Text-to-text recipes (`dates`, `translate`) and their trained runs.

run = load("runs/dates")
run.predict(["3 maart 2019"])       ["2019-03-03"]

Each recipe provides texts, tokenizers and a metric (regard.recipes.base.text_pairs.TextPairsData).
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.data.batches import TokenBatches, pad
from regard.data.config import OnBad, PairFormat
from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import BOS, EOS, SPECIALS, UNK
from regard.decode.config import DecodeConfig
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.model import Model
from regard.recipes.base.config import clamp_max_length
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import decode_sources, device_of, score_texts
from regard.recipes.base.text_pairs import Codec, TextPairsData, filter_by_length

_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this times the token limit is too long, however it is tokenized."""
_SHOWN = 10


class TextToTextRecipe(Recipe):
    """Text pairs, their tokenizers and an encoder-decoder."""

    codec: Codec

    def __init__(self, run: Run, notify: Callable[[str], None], data: TextPairsData):
        super().__init__(run, notify)
        self.data = data
        self.metric = data.metric.name

    @property
    def config(self) -> Any:
        """All settings of the run."""
        return self.run.config

    def check(self) -> None:
        """Read all data."""
        self.data.check()

    def learn(self, folder: Path) -> None:
        """Train the tokenizers and save them."""
        self.data.train_codec().save(folder)

    def open(self, folder: Path) -> None:
        """Load the tokenizers."""
        self.codec = Codec.load(folder)

    def batches(self) -> TokenBatches:
        """Return batches of pairs of similar length."""
        examples = self.data.get_training_pairs(self.codec)
        settings = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        return TokenBatches(examples, **settings, origin=self.data.origin())

    def model(self) -> Model:
        """Return an encoder-decoder for these vocabularies."""
        return build(
            self.config.model,
            source_vocab=len(self.codec.source),
            target_vocab=len(self.codec.target),
            label_smoothing=self.config.train.label_smoothing,
        )

    def describe(self) -> str:
        """Return the sizes of the vocabularies."""
        if self.codec.source is self.codec.target:
            return f"{len(self.codec.source):,} subwords in a joint vocabulary"
        return f"{len(self.codec.source):,} source and {len(self.codec.target):,} target subwords"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of greedy outputs for `val_sample` pairs, and nll and perplexity of all pairs."""
        assert isinstance(model, Model)
        texts = self.data.get_held_out_pairs("val", self.codec)
        assert texts is not None
        decode = clamp_max_length(dataclasses.replace(self.config.decode, beam=1, n_best=1), self.config.model)
        settings = {"decode": decode, "sample": self.config.val_sample}
        results = score_texts(model, texts, codec=self.codec, metric=self.data.metric, **settings)
        return {name: results[name] for name in (self.metric, "nll", "perplexity")}

    def has_test(self) -> bool:
        """Return True if there are test texts."""
        return self.data.get_held_out_pairs("test", self.codec) is not None

    def upper_bound(self) -> float | None:
        """Return the best score that any model can reach, if the data determines it."""
        return self.data.upper_bound()

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedTexts":
        """Return the trained run of this model."""
        assert isinstance(model, Model)
        return TrainedTexts(self, model, folder, codec=self.codec, data=self.data)


class Prediction(NamedTuple):
    """Output text and its score, log p / length^alpha."""

    text: str
    score: float


class TrainedTexts(TrainedRun):
    """Trained run of a text-to-text recipe."""

    decodes = True

    def __init__(self, recipe: Recipe, model: Model, folder: Path, *, codec: Codec, data: TextPairsData):
        super().__init__(recipe, model, folder)
        self.codec = codec
        self.data = data

    def predict(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
    ) -> list[str] | list[list[Prediction]]:
        """Return the output for each text; with n_best, its best hypotheses with their scores.

        Options that are not given are those of the run; n_best alone raises the beam to n_best. An empty text has an
        empty output, with a warning; tokens unknown to the tokenizer are read as <unk>, with a warning.

        Raises:  UserError if a text is longer than the limit, before anything is computed.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list of texts, got one text: {texts[:40]!r}")
        decode = self.config.decode
        if beam is None:
            beam = max(decode.beam, n_best or 1)
        decode = dataclasses.replace(
            decode,
            beam=beam,
            n_best=1 if n_best is None else n_best,
            length_penalty=decode.length_penalty if length_penalty is None else length_penalty,
        )
        predictions = self.answers(texts, decode=decode)
        return [best.text for best, *_ in predictions] if n_best is None else predictions

    def answers(self, texts: Sequence[str], *, decode: DecodeConfig, first: int = 1) -> list[list[Prediction]]:
        """Return the predictions for each text with these search settings; messages number the texts from `first`."""
        sources = self._encode(texts, first)
        indices = [index for index, ids in enumerate(sources) if ids]
        results = [[Prediction("", 0.0)] for _ in texts]
        decode = clamp_max_length(decode, self.config.model)
        with self._segment(lambda: [self._look_sample(texts[index]) for index in indices]):
            engine = self.engine_for(len(indices))
            decoded = decode_sources(engine, [sources[index] for index in indices], decode, self.trace)
        for index, hypotheses in zip(indices, decoded, strict=True):
            results[index] = [Prediction(self.codec.target.decode(h.tokens), h.score) for h in hypotheses]
        return results

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        target: str | Path | None = None,
        format: PairFormat = "auto",
        source_column: int | str | None = None,
        target_column: int | str | None = None,
        on_bad: OnBad = "error",
        decode: DecodeConfig | None = None,
        notify: Callable[[str], None] = warnings.warn,
    ) -> dict[str, Any]:
        """Score the model on the run's test data, or on the pairs of a file (regard.data.text.pairs.read_pairs).

        Returns the metric with its signature, nll (nats per target token), perplexity, the data and some outputs.
        Raises UserError if neither the run nor the call names test data, and as `read_pairs`.
        """
        if path is None:
            texts = self.data.get_held_out_pairs("test", self.codec)
            if texts is None:
                raise UserError(f"the run {self.folder} has no test data: give it with --data.test")
        else:
            columns = {"source_column": source_column, "target_column": target_column}
            pairs = read_pairs(path, target=target, format=format, on_bad=on_bad, split="test", **columns)
            limits = {"max_length": self.config.input_limit, "on_bad": on_bad}
            texts, _ = filter_by_length(pairs, self.codec, notify=notify, **limits)
        decode = dataclasses.replace(decode or self.config.decode, n_best=1)
        decode = clamp_max_length(decode, self.config.model)
        options = {"metric": self.data.metric, "decode": decode, "engine": self.engine_for(len(texts))}
        return score_texts(self._model, texts, codec=self.codec, **options)

    def test_input(self, index: int) -> str:
        """Return a source text of the test data."""
        texts = self.data.get_held_out_pairs("test", self.codec)
        if texts is None:
            raise UserError(f"the run {self.folder} has no test data: give it with --data.test")
        return get_input(texts.sources, index, texts.origin)

    def likelihood(self, given: str, maps: SampleMaps) -> Tensor:
        """Return log p of the output text, EOS included."""
        device = device_of(self._model)
        source = pad([[*self.codec.source.encode(given.strip()), EOS]]).to(device)
        target = pad([[BOS, *maps.sample.output_ids]]).to(device)
        log_probs = self._model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def _look_sample(self, text: str) -> Sample:
        """Return the sample of a look at this text."""
        labels = (*self.codec.source.tokens(text.strip()), SPECIALS[EOS])
        return Sample(
            title=text.strip(),
            axes={"source": Axis(labels=labels, kind="token")},
            tokens=self.codec.target.tokens,
            text=self.codec.target.decode,
            begin=SPECIALS[BOS],
        )

    def _encode(self, texts: Sequence[str], first: int) -> list[list[int]]:
        """Return the ids of each text; none for an empty one.

        Raises UserError for texts that are too long; warns of empty texts and unknown tokens.
        """
        limit = self.config.input_limit
        sources = []
        for number, text in enumerate(texts, start=first):
            if len(text) > limit * _CHARACTERS_PER_TOKEN:
                raise UserError(_too_long(number, f"{len(text):,} characters", limit))
            ids = self.codec.source.encode(text.strip())
            if len(ids) > limit:
                raise UserError(_too_long(number, f"{len(ids):,} tokens", limit))
            sources.append(ids)
        empty = [number for number, ids in enumerate(sources, start=first) if not ids]
        if empty:
            warnings.warn(f"input {_join_items(empty)} is empty, and so is its output", stacklevel=3)
        indices = [index for index, ids in enumerate(sources) if UNK in ids]
        if indices:
            unknown = dict.fromkeys(piece for i in indices for piece in self.codec.source.unknown(texts[i].strip()))
            numbers = _join_items([i + first for i in indices])
            message = f"{_join_items([repr(piece) for piece in unknown])}, in input {numbers}"
            warnings.warn(f"never seen in training, so read as unknown: {message}", stacklevel=3)
        return sources


def _too_long(number: int, size: str, limit: int) -> str:
    return f"input {number} is too long: {size}; the limit is max_length = {limit} tokens"


def _join_items(items: Sequence[object]) -> str:
    more = f" ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return ", ".join(str(item) for item in items[:_SHOWN]) + more
