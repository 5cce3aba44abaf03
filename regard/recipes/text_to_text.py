"""Texts to texts: the task of every recipe that reads a text and writes one, and its model in use.

run = load("runs/dates")
run.predict(["3 maart 2019"])       ["2019-03-03"]

A recipe gives its texts, tokenizers and metric (regard.recipes.material).
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.data.batches import TokenBatches, pad
from regard.data.config import OnBad, PairFormat
from regard.data.pairs import read_pairs
from regard.data.tokenize import BOS, EOS, SPECIALS, UNK
from regard.decode.config import DecodeConfig
from regard.errors import UserError
from regard.look.map import Seen
from regard.look.scene import Axis, Scene
from regard.models.build import build
from regard.models.model import Model
from regard.recipes.config import Dates, Translate, fitting
from regard.recipes.folder import Run
from regard.recipes.material import Codec, Material, within
from regard.recipes.scoring import device_of, outputs, scores
from regard.recipes.task import Task, Trained, numbered
from regard.telling import showing

_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this for each token of the limit is too long, whatever its tokens."""
_SHOWN = 10


class TextTask(Task):
    """Pairs of texts, their tokenizers, and the encoder-decoder that learns them."""

    codec: Codec

    def __init__(self, run: Run, tell: Callable[[str], None], material: Material):
        super().__init__(run, tell)
        self.material = material
        self.metric = material.metric.name

    @property
    def config(self) -> Dates | Translate:
        """All settings of the run."""
        assert isinstance(self.run.config, Dates | Translate)
        return self.run.config

    def check(self) -> None:
        """Open all files."""
        self.material.check()

    def learn(self, folder: Path) -> None:
        """Tokenizers of the training texts."""
        self.material.codec().save(folder)

    def open(self, folder: Path) -> None:
        """The tokenizers."""
        self.codec = Codec.load(folder)

    def batches(self) -> TokenBatches:
        """Pairs of like lengths together, so many tokens a batch."""
        examples = self.material.training(self.codec)
        settings = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        return TokenBatches(examples, **settings, origin=self.material.origin())

    def model(self) -> Model:
        """Encoder and decoder for these vocabularies."""
        return build(
            self.config.model,
            source_vocab=len(self.codec.source),
            target_vocab=len(self.codec.target),
            label_smoothing=self.config.train.label_smoothing,
        )

    def describe(self) -> str:
        """Sizes of the vocabularies."""
        if self.codec.source is self.codec.target:
            return f"{len(self.codec.source):,} pieces in one vocabulary"
        return f"{len(self.codec.source):,} source and {len(self.codec.target):,} target pieces"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Greedy search on a sample, the loss on all."""
        assert isinstance(model, Model)
        texts = self.material.held_out("val", self.codec)
        assert texts is not None
        decode = fitting(dataclasses.replace(self.config.decode, beam=1, n_best=1), self.config.model)
        settings = {"decode": decode, "sample": self.config.val_sample}
        found = scores(model, texts, codec=self.codec, metric=self.material.metric, **settings)
        return {name: found[name] for name in (self.metric, "nll", "perplexity")}

    def has_test(self) -> bool:
        """Whether there are test texts."""
        return self.material.held_out("test", self.codec) is not None

    def ceiling(self) -> float | None:
        """As the recipe's data tells."""
        return self.material.ceiling()

    def trained(self, model: nn.Module, folder: Path) -> "TrainedTexts":
        """The model with its tokenizers."""
        assert isinstance(model, Model)
        return TrainedTexts(self, model, folder, codec=self.codec, material=self.material)


class Prediction(NamedTuple):
    """An output and its score, log p / length^alpha."""

    text: str
    score: float


class TrainedTexts(Trained):
    """A model that writes texts, and its tokenizers."""

    decodes = True

    def __init__(self, task: Task, model: Model, folder: Path, *, codec: Codec, material: Material):
        super().__init__(task, model, folder)
        self.codec = codec
        self.material = material

    def predict(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
    ) -> list[str] | list[list[Prediction]]:
        """What the model says to each text, in their order; with n_best, the best few with their scores.

        What is not given is as in the run's settings; n_best alone raises the beam to it. An empty text has
        an empty output, with a warning; what the tokenizer has never seen is read as unknown, with a warning.

        Raises:  UserError if a text is longer than the limit; nothing is computed then.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list of texts, but is one text: {texts[:40]!r}")
        decode = self.config.decode
        if beam is None:
            beam = max(decode.beam, n_best or 1)
        decode = dataclasses.replace(
            decode,
            beam=beam,
            n_best=1 if n_best is None else n_best,
            length_penalty=decode.length_penalty if length_penalty is None else length_penalty,
        )
        found = self.answers(texts, decode=decode)
        return [best.text for best, *_ in found] if n_best is None else found

    def answers(self, texts: Sequence[str], *, decode: DecodeConfig, first: int = 1) -> list[list[Prediction]]:
        """As `predict`, by these settings of the search; messages count the texts from `first`."""
        sources = self._encoded(texts, first)
        places = [place for place, ids in enumerate(sources) if ids]
        results = [[Prediction("", 0.0)] for _ in texts]
        decode = fitting(decode, self.config.model)
        with showing(lambda: [self._scene(texts[place]) for place in places]):
            found = outputs(self.engine_for(len(places)), [sources[place] for place in places], decode)
        for place, hypotheses in zip(places, found, strict=True):
            results[place] = [Prediction(self.codec.target.decode(one.tokens), one.score) for one in hypotheses]
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
        tell: Callable[[str], None] = warnings.warn,
    ) -> dict[str, Any]:
        """Score the model on the run's test data, or on the pairs of a file (regard.data.pairs.read_pairs).

        Returns the metric with its signature, nll (nats a target token), perplexity, and what they are of.
        Raises UserError if neither the run nor the call names test data, and as `read_pairs`.
        """
        if path is None:
            texts = self.material.held_out("test", self.codec)
            if texts is None:
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        else:
            columns = {"source_column": source_column, "target_column": target_column}
            pairs = read_pairs(path, target=target, format=format, on_bad=on_bad, split="test", **columns)
            limits = {"max_length": self.config.input_limit, "on_bad": on_bad}
            texts, _ = within(pairs, self.codec, tell=tell, **limits)
        decode = dataclasses.replace(decode or self.config.decode, n_best=1)
        decode = fitting(decode, self.config.model)
        how = {"metric": self.material.metric, "decode": decode, "engine": self.engine_for(len(texts))}
        return scores(self._model, texts, codec=self.codec, **how)

    def test_input(self, index: int) -> str:
        """A source of the test texts."""
        texts = self.material.held_out("test", self.codec)
        if texts is None:
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        return numbered(texts.sources, index, texts.origin)

    def likelihood(self, given: str, seen: Seen) -> Tensor:
        """log p of the text that was said, its end included."""
        device = device_of(self._model)
        source = pad([[*self.codec.source.encode(given.strip()), EOS]]).to(device)
        target = pad([[BOS, *seen.scene.ids]]).to(device)
        log_probs = self._model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def _scene(self, text: str) -> Scene:
        """What is read of a text, for those who look on."""
        labels = (*self.codec.source.tokens(text.strip()), SPECIALS[EOS])
        return Scene(
            title=text.strip(),
            axes={"source": Axis(labels=labels, what="token")},
            tokens=self.codec.target.tokens,
            text=self.codec.target.decode,
            begin=SPECIALS[BOS],
        )

    def _encoded(self, texts: Sequence[str], first: int) -> list[list[int]]:
        """The ids of each text; none for an empty one. Refuses what is too long, warns of what is odd."""
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
            warnings.warn(f"input {_listed(empty)} is empty, and so is its output", stacklevel=3)
        odd = [place for place, ids in enumerate(sources) if UNK in ids]
        if odd:
            unseen = dict.fromkeys(piece for i in odd for piece in self.codec.source.unknown(texts[i].strip()))
            what = f"{_listed([repr(piece) for piece in unseen])}, in input {_listed([i + first for i in odd])}"
            warnings.warn(f"never seen in training, so read as unknown: {what}", stacklevel=3)
        return sources


def _too_long(number: int, size: str, limit: int) -> str:
    return f"input {number} is too long: {size}; the limit is max_length = {limit} tokens"


def _listed(items: Sequence[object]) -> str:
    more = f" ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return ", ".join(str(item) for item in items[:_SHOWN]) + more
