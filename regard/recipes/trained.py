"""A trained model with all that it needs to be used: predict, evaluate, look.

run = load("runs/dates")
run.predict(["3 maart 2019"])       ["2019-03-03"]
"""

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.config import OnBad, PairFormat
from regard.data.pairs import read_pairs
from regard.data.tokenise import BOS, EOS, SPECIALS, UNK
from regard.decode.config import DecodeConfig
from regard.errors import UserError
from regard.look.alignment import Alignment, align
from regard.models.build import build
from regard.models.model import Model
from regard.recipes.config import Dates, Translate, fitting
from regard.recipes.folder import Run, read_run
from regard.recipes.material import Codec, Material, within
from regard.recipes.registry import entry
from regard.recipes.scoring import device_of, outputs, scores
from regard.train.distribution import pick_device
from regard.train.weights import load_weights

__all__ = ["Prediction", "Trained", "load", "material_of", "new_model"]

_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this for each token of the limit is too long, whatever its tokens."""
_SHOWN = 10


class Prediction(NamedTuple):
    """An output and its score, log p / length^alpha."""

    text: str
    score: float


class Trained:
    """A model, its tokenisers, its settings and its folder. `load` makes one."""

    def __init__(self, model: Model, *, codec: Codec, run: Run, folder: Path):
        self.model = model.eval()
        self.codec = codec
        self.run = run
        self.folder = folder

    @property
    def config(self) -> Dates | Translate:
        """All settings of the run."""
        return self.run.config

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
        an empty output, with a warning; what the tokeniser has never seen is read as unknown, with a warning.

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
        found = self.search(texts, decode)
        return [best.text for best, *_ in found] if n_best is None else found

    def search(self, texts: Sequence[str], decode: DecodeConfig, *, first: int = 1) -> list[list[Prediction]]:
        """As `predict`, by these settings of the search; messages count the texts from `first`."""
        sources = self._encoded(texts, first)
        places = [place for place, ids in enumerate(sources) if ids]
        results = [[Prediction("", 0.0)] for _ in texts]
        found = outputs(self.model, [sources[place] for place in places], fitting(decode, self.config.model))
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
        material = material_of(self.run, tell)
        if path is None:
            texts = material.held_out("test", self.codec)
            if texts is None:
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        else:
            columns = {"source_column": source_column, "target_column": target_column}
            pairs = read_pairs(path, target=target, format=format, on_bad=on_bad, split="test", **columns)
            limits = {"max_length": self.config.input_limit, "on_bad": on_bad}
            texts, _ = within(pairs, self.codec, tell=tell, **limits)
        decode = dataclasses.replace(decode or self.config.decode, n_best=1)
        decode = fitting(decode, self.config.model)
        return scores(self.model, texts, codec=self.codec, metric=material.metric, decode=decode)

    def look(self, text: str) -> list[Alignment]:
        """Where the model looked in `text` when it said its best output; one alignment a layer.

        Raises:  UserError if the text is empty or too long; ValueError if the model has no attention.
        """
        if not text.strip():
            raise UserError("the text is empty: there is nothing to look at")
        (ids,) = self._encoded([text], 1)
        decode = dataclasses.replace(self.config.decode, n_best=1)
        ((best,),) = outputs(self.model, [ids], fitting(decode, self.config.model))
        target = [*best.tokens, *([EOS] if best.finished else [])]
        source, device = pad([[*ids, EOS]]), device_of(self.model)
        return align(
            self.model,
            Padded(source.items.to(device), source.lengths.to(device)),
            target=target,
            bos=BOS,
            source_labels=[*self.codec.source.tokens(text.strip()), SPECIALS[EOS]],
            target_labels=self.codec.target.tokens(target),
            title=f"{text.strip()} -> {self.codec.target.decode(best.tokens)}",
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


def load(folder: str | Path, *, device: str = "cpu") -> Trained:
    """The model of a run folder, ready to use.

    device:  cpu, cuda, cuda:1, mps ..., or auto: an accelerator if there is one.
    Raises:  UserError, naming the file, if the folder is no run, or a file is missing, damaged or from a
             newer version. Nothing that a file names is imported.
    """
    folder = Path(folder)
    run = read_run(folder)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise UserError(f"{weights} is missing: the run has no weights yet; `regard train` goes on with it")
    codec = Codec.load(folder)
    model = new_model(run.config, codec)
    load_weights(weights, model)
    return Trained(model.to(pick_device(device)), codec=codec, run=run, folder=folder)


def new_model(config: Dates | Translate, codec: Codec) -> Model:
    """A model for a run's settings and vocabularies, with fresh weights from torch's generator."""
    return build(
        config.model,
        source_vocab=len(codec.source),
        target_vocab=len(codec.target),
        label_smoothing=config.train.label_smoothing,
    )


def material_of(run: Run, tell: Callable[[str], None]) -> Material:
    """The data and metric of a run; `tell` is told of lines that were left out."""
    recipe = importlib.import_module(entry(run.recipe).module)
    return recipe.material(run.config, seed=run.seed, tell=tell)


def _too_long(number: int, size: str, limit: int) -> str:
    return f"input {number} is too long: {size}; the limit is max_length = {limit} tokens"


def _listed(items: Sequence[object]) -> str:
    more = f" ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return ", ".join(str(item) for item in items[:_SHOWN]) + more
