"""Text-to-text recipes (`dates`, `translate`): text pairs, tokenizers and an encoder-decoder."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, Ragged, TokenBatches, pad
from regard.data.text.pairs import Pairs, limit_length
from regard.data.tokenizer import Tokenizer, load_tokenizer
from regard.decode.hypothesis import Hypothesis
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.decoder import DecoderRecipe
from regard.recipes.base.recipe import ConfigT, Dataset, Example, Prompt, Results, View
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.base.scoring import TeacherInputs, loss_per_token
from regard.trace import Trace

MAX_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this times the token limit is always too long."""
_JOINT, _SOURCE, _TARGET = "tokenizer.json", "source_tokenizer.json", "target_tokenizer.json"


class TextToTextRecipe(DecoderRecipe[ConfigT]):
    """Text pairs, their tokenizers and an encoder-decoder."""

    input_name = "source"
    source_tokenizer: Tokenizer
    """Tokenizer of inputs; the same object as that of outputs if they share a vocabulary."""

    @abstractmethod
    def fit_tokenizers(self, train: Dataset[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        """Train the tokenizers of sources and targets, which may be the same object."""

    @abstractmethod
    def training_pairs(self) -> tuple[EncodedPairs | Callable[[int], EncodedPairs], str]:
        """Return the training pairs, or a function from an epoch to its pairs, and their origin."""

    def to_dataset(self, data: Pairs) -> Dataset[Pairs]:
        references = View(len(data), lambda i: self.tokenizer.normalize(data.targets[i]))
        return Dataset(data, data.origin, data.sources, references, notes=data.notices)

    def encode(self, dataset: Dataset[Pairs]) -> Dataset[Pairs]:
        pairs, limit = dataset.data, self.settings.input_limit
        encoded = self.encode_pairs(pairs)
        sides = encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist()
        lengths = [*zip(*sides, strict=True)]
        on_bad: Any = getattr(self.settings.data, "on_bad", "error")
        keep, notices = limit_length(pairs, lengths, max_length=limit, on_bad=on_bad)
        notes = (*dataset.notes, *notices)
        if len(keep) < len(pairs):
            pairs = pairs.take(keep)
            sources = Ragged.from_sequences(encoded.sources[i].tolist() for i in keep)
            targets = Ragged.from_sequences(encoded.targets[i].tolist() for i in keep)
            encoded = dataclasses.replace(encoded, sources=sources, targets=targets)
        return dataclasses.replace(self.to_dataset(pairs), notes=notes, targets=encoded)

    def fit(self, train: Dataset[Pairs]) -> dict[str, Any]:
        if self.run.init is not None:
            source, target = _load_tokenizers(Path(self.run.init.folder) / ARTIFACTS)
        else:
            source, target = self.fit_tokenizers(train)
        return {_JOINT: source} if source is target else {_SOURCE: source, _TARGET: target}

    def open(self, folder: Path) -> None:
        self.source_tokenizer, self.tokenizer = _load_tokenizers(folder)

    def encode_pairs(self, pairs: Pairs) -> EncodedPairs:
        sources = self.source_tokenizer.encode_batch(pairs.sources)
        targets = self.tokenizer.encode_batch(pairs.targets)
        ends = self.source_tokenizer.source_ends, self.tokenizer.target_ends
        return EncodedPairs.from_sequences(sources, targets, *ends)

    def batches(self) -> TokenBatches:
        pairs, origin = self.training_pairs()
        budget = self.settings.train.batch_tokens
        return TokenBatches(pairs, batch_tokens=budget, seed=self.run.seed, origin=origin)

    def model(self) -> Model:
        return build(
            self.settings.model,
            source_vocab=len(self.source_tokenizer),
            target_vocab=len(self.tokenizer),
            label_smoothing=self.settings.train.label_smoothing,
            parts=self.parts(),
        )

    def describe(self) -> str:
        source, target = self.source_tokenizer, self.tokenizer
        if source is target:
            return f"{len(source):,} {source.noun} in a joint vocabulary"
        return f"{len(source):,} source {source.noun} and {len(target):,} target {target.noun}"

    def results(
        self, inference: ActiveModel, dataset: Dataset[Pairs], *, limit: int | None = None
    ) -> Results:
        pairs, encoded = dataset.data, dataset.targets
        count = len(encoded) if limit is None else min(limit, len(encoded))
        rows = []
        for i in range(count):
            rows.append(Prompt(pairs.sources[i], encoded.sources[i].tolist(), i + 1))
        hypotheses = self.change({"n_best": 1}).forward(inference, rows)
        outputs = [self.tokenizer.decode(best.tokens) for best, *_ in hypotheses]
        references = (pairs.references or [[target] for target in pairs.targets])[:count]
        nll = loss_per_token(inference.model, encoded)
        return self.score_outputs(outputs, references, nll, is_test=limit is None)

    def input_column(self, path: Path) -> str:
        return "source"

    def shorten(self, value: str) -> str:
        limit = self.settings.input_limit
        text = value.strip()[: limit * MAX_CHARACTERS_PER_TOKEN]
        return self.source_tokenizer.shorten(text, limit)

    def preprocess(self, given: str, number: int) -> list[Prompt]:
        text, limit = given.strip(), self.settings.input_limit
        is_long = len(text) > limit * MAX_CHARACTERS_PER_TOKEN
        ids = [] if is_long else self.source_tokenizer.encode(text)
        if is_long or len(ids) > limit:
            size = f"{len(text):,} characters" if is_long else f"{len(ids):,} tokens"
            raise UserError(f"input {number} is too long: {size}; the limit is {limit} tokens")
        if not ids:
            self.notify(f"input {number} is empty, and so is its output")
            return []
        self.notify_unknown(self.source_tokenizer, ids, text, number)
        return [Prompt(text, ids, number)]

    def forward(
        self, inference: ActiveModel, rows: Sequence[Prompt], trace: Trace | None = None
    ) -> list[list[Hypothesis]]:
        names = tuple(f"input {row.number}" for row in rows)
        rules = dataclasses.replace(self.token_rules(rows), names=names)
        engine = inference.engine_for(traced=trace is not None, torch_for=rules.torch_only)
        ends = self.source_tokenizer.source_ends
        sources = [[*ends.before, *row.ids, *ends.after] for row in rows]
        config, ids = self.search_config(), self.search_ids()
        return engine.search(sources, config=config, rules=rules, trace=trace, **ids)

    def collate(self, rows: Sequence[Prompt]) -> Padded:
        return pad([row.ids for row in rows], self.source_tokenizer.source_ends)

    def encode_scored(self, given: Any, number: int) -> list[TeacherInputs]:
        """Return a pair as the model reads it in training."""
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        if not (is_pair and all(isinstance(text, str) for text in given)):
            raise UserError(f"input {number} must be a pair of texts: (source, target)")
        source, target = (text.strip() for text in given)
        if not (source and target):
            raise UserError(f"input {number}: the {'target' if source else 'source'} is empty")
        limit = self.settings.input_limit
        ids, target_ids = self.source_tokenizer.encode(source), self.tokenizer.encode(target)
        if max(len(ids), len(target_ids)) > limit:
            size = f"{len(ids)} source and {len(target_ids)} target tokens"
            raise UserError(f"input {number} is too long: {size}; the limit is {limit} tokens")
        ends, target_ends = self.source_tokenizer.source_ends, self.tokenizer.target_ends
        source_ids = [*ends.before, *ids, *ends.after]
        whole = [*target_ends.before, *target_ids, *target_ends.after]
        unknown = sum(number == self.source_tokenizer.specials.unk for number in ids)
        unknown += sum(number == self.tokenizer.specials.unk for number in target_ids)
        return [TeacherInputs(source_ids, whole, unknown)]

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        text = example.rows[i].text
        labels = self.source_tokenizer.tokens(text, self.source_tokenizer.source_ends)
        return self.describe_sample(text, axes={"source": Axis(labels=tuple(labels), kind="token")})


def _load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of sources and targets of a run, one object if they are joint."""
    if (folder / _SOURCE).exists() or (folder / _TARGET).exists():
        return load_tokenizer(folder / _SOURCE), load_tokenizer(folder / _TARGET)
    joint = load_tokenizer(folder / _JOINT)
    return joint, joint
