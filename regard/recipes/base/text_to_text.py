"""Text-to-text recipes (`dates`, `translate`): text pairs, tokenizers and an encoder-decoder."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, TokenBatches, pad
from regard.data.tables import read_column
from regard.data.text.pairs import Pairs, limit_length
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer
from regard.decode.hypothesis import Hypothesis
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.cores.config import max_length_of
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import explain_tokens, outputs_answer, teacher_tokens
from regard.recipes.base.inputs import Input
from regard.recipes.base.recipe import Answer, ConfigT, Dataset, Example, Recipe, join_items
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.base.scoring import device_of, loss_per_token
from regard.recipes.metrics.text import Bleu, ExactMatch, further_scores
from regard.trace import Trace

MAX_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this times the token limit is always too long."""
_SAMPLES = 5
_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class Codec(NamedTuple):
    """Source and target tokenizer; the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> EncodedPairs:
        return EncodedPairs.from_sequences(
            self.source.encode_batch(sources), self.target.encode_batch(targets)
        )

    def artifacts(self) -> dict[str, Tokenizer]:
        if self.source is self.target:
            return {_JOINT: self.source}
        return {_SOURCE: self.source, _TARGET: self.target}

    @classmethod
    def load(cls, folder: Path) -> "Codec":
        if (folder / _SOURCE).exists() or (folder / _TARGET).exists():
            return cls(Tokenizer.load(folder / _SOURCE), Tokenizer.load(folder / _TARGET))
        joint = Tokenizer.load(folder / _JOINT)
        return cls(joint, joint)


class TextRow(NamedTuple):
    """Ids of a text without EOS, and the text."""

    ids: list[int]
    text: str


class TextToTextRecipe(Recipe[ConfigT]):
    """Text pairs, their tokenizers and an encoder-decoder."""

    codec: Codec
    decodes = True

    @abstractmethod
    def scorer(self) -> Bleu | ExactMatch:
        """Return the metric of outputs, whose name is `metric`."""

    @abstractmethod
    def fit_codec(self, train: Dataset[Pairs]) -> Codec:
        """Train tokenizers on the training texts."""

    @abstractmethod
    def training_pairs(self) -> EncodedPairs | Callable[[int], EncodedPairs]:
        """Return the training pairs, or a function from an epoch to its pairs."""

    def encode(self, dataset: Dataset[Pairs]) -> Dataset[Pairs]:
        pairs, limit, notes = dataset.data, self.settings.input_limit, dataset.notes
        encoded = self.codec.encode(pairs.sources, pairs.targets)
        sides = encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist()
        lengths = [*zip(*sides, strict=True)]
        on_bad: Any = getattr(self.settings.data, "on_bad", "error")
        keep, skipped = limit_length(pairs, lengths, max_length=limit, on_bad=on_bad)
        if skipped:
            notes = (*notes, f"{pairs.origin}: {skipped.describe()}")
        if len(keep) < len(pairs):
            pairs = pairs.take(keep)
            encoded = EncodedPairs.from_sequences(
                (encoded.sources[i].tolist() for i in keep),
                (encoded.targets[i].tolist() for i in keep),
            )
        return dataclasses.replace(to_dataset(pairs, notes), targets=encoded)

    def fit(self, train: Dataset[Pairs]) -> dict[str, Any]:
        if self.run.init is not None:
            return Codec.load(Path(self.run.init.folder) / ARTIFACTS).artifacts()
        return self.fit_codec(train).artifacts()

    def open(self, folder: Path) -> None:
        self.codec = Codec.load(folder)

    def batches(self) -> TokenBatches:
        return TokenBatches(
            self.training_pairs(),
            batch_tokens=self.settings.train.batch_tokens,
            seed=self.run.seed,
            origin=self.training_origin(),
        )

    def training_origin(self) -> str:
        return self.train.origin

    def model(self) -> Model:
        return build(
            self.settings.model,
            source_vocab=len(self.codec.source),
            target_vocab=len(self.codec.target),
            label_smoothing=self.settings.train.label_smoothing,
        )

    def describe(self) -> str:
        source, target = self.codec.source, self.codec.target
        if source is target:
            return f"{len(source):,} {source.noun} in a joint vocabulary"
        return f"{len(source):,} source {source.noun} and {len(target):,} target {target.noun}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        greedy = self.change({"decode": {"beam": 1, "n_best": 1}})
        limit = self.settings.val_sample
        scores = greedy.metrics(self.inference(model), self.encoded_val, limit=limit)
        return {name: scores[name] for name in (self.metric, "nll", "perplexity")}

    def metrics(
        self, inference: ActiveModel, dataset: Dataset[Pairs], *, limit: int | None = None
    ) -> dict[str, Any]:
        """Return the metric with its signature, nll and perplexity per target token, and samples.

        limit: decode only the first so many texts; the loss is computed over all.
        """
        pairs, encoded = dataset.data, dataset.targets
        count = len(encoded) if limit is None else min(limit, len(encoded))
        rows = [TextRow(encoded.sources[i].tolist(), "") for i in range(count)]
        hypotheses = self.change({"n_best": 1}).forward(inference, rows)
        outputs = [self.codec.target.decode(best.tokens) for best, *_ in hypotheses]
        scorer, nll = self.scorer(), loss_per_token(inference.model, encoded)
        references = pairs.references or [[target] for target in pairs.targets]
        scores: dict[str, Any] = {
            self.metric: scorer.score(outputs, references[:count]),
            "signature": scorer.signature(),
            "nll": nll,
            "perplexity": math.exp(min(nll, 100.0)),
            "beam": self.settings.decode.beam,
            "length_penalty": self.settings.decode.length_penalty,
            "samples": [],
        }
        if isinstance(scorer, Bleu) and limit is None:
            scores |= further_scores(outputs, references)
        for i, output in enumerate(outputs[:_SAMPLES]):
            sample = {"source": pairs.sources[i], "output": output, "reference": pairs.targets[i]}
            scores["samples"].append(sample)
        return scores

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        data = self.settings.data
        options: Any = {name: getattr(data, name, "auto") for name in ("header", "format")}
        texts = read_column(path, "source", getattr(data, "source_column", None), **options)
        return (Input(text, str(path), line or None, problem) for line, text, problem in texts)

    def shorten(self, value: str) -> str:
        limit = self.settings.input_limit
        return self.codec.source.shorten(value.strip()[: limit * MAX_CHARACTERS_PER_TOKEN], limit)

    def preprocess(self, given: str, number: int) -> list[TextRow]:
        text, limit = given.strip(), self.settings.input_limit
        is_long = len(text) > limit * MAX_CHARACTERS_PER_TOKEN
        ids = [] if is_long else self.codec.source.encode(text)
        if is_long or len(ids) > limit:
            size = f"{len(text):,} characters" if is_long else f"{len(ids):,} tokens"
            raise UserError(f"input {number} is too long: {size}; the limit is {limit} tokens")
        if not ids:
            self.notify(f"input {number} is empty, and so is its output")
            return []
        if UNK in ids:
            pieces = join_items([repr(piece) for piece in self.codec.source.unknown(text)])
            self.notify(f"input {number}: never seen in training, so read as unknown: {pieces}")
        return [TextRow(ids, text)]

    def forward(
        self, inference: ActiveModel, rows: Sequence[TextRow], trace: Trace | None = None
    ) -> list[list[Hypothesis]]:
        decode, limit = self.settings.decode, max_length_of(self.settings.model.core)
        if limit is not None:  # learned positions
            decode = dataclasses.replace(decode, max_length=min(decode.max_length, limit))
        engine = inference.engine_for(traced=trace is not None)
        sources = [[*row.ids, EOS] for row in rows]
        return engine.search(sources, config=decode, bos=BOS, eos=EOS, pad=PAD, trace=trace)

    def postprocess(self, example: Example) -> Answer:
        empty = Hypothesis(tokens=[], score=0.0, log_prob=0.0, finished=True)
        hypotheses = example.outputs[0] if example.outputs else [empty]
        return outputs_answer(hypotheses, self.codec.target.decode)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        text = example.rows[i].text
        labels = (*self.codec.source.tokens(text), SPECIALS[EOS])
        return Sample(  # the tokens of the output are recorded by the search
            title=text,
            axes={"source": Axis(labels=labels, kind="token")},
            tokens=self.codec.target.tokens,
            text=self.codec.target.decode,
            begin=SPECIALS[BOS],
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        source, target = self._teacher_inputs(model, example, i)
        log_probs = model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        model = inference.model
        if not isinstance(model.core, Transformer):
            return None
        return explain_tokens(model, *self._teacher_inputs(model, example, i), sample)

    def _teacher_inputs(self, model: Any, example: Example, i: int) -> tuple[Padded, Padded]:
        """Return a row's source and best output, with EOS if finished, as the model's inputs."""
        source, target = [*example.rows[i].ids, EOS], teacher_tokens(example.outputs[i][0])
        return pad([source]).to(device_of(model)), pad([target]).to(device_of(model))


def to_dataset(pairs: Pairs, notes: tuple[str, ...] = ()) -> Dataset[Pairs]:
    """Convert text pairs to a dataset."""
    return Dataset(pairs, pairs.origin, pairs.sources, pairs.targets, notes=notes)
