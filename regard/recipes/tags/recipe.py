"""Recipe `tags`: token tagging (NER, parts of speech).

    words -> subwords -> embeddings -> core (encoder) -> a tag at the first subword of each word

Scored by entity F1 if there are tags with B-, else by token accuracy.

Source: lectures, E (sequence to sequence of the same length).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import pad
from regard.data.config import OnBad, TaggedConfig
from regard.data.embedded.tags import make_sentences
from regard.data.text.labels import Labels
from regard.data.text.tagged import TaggedBatches, TaggedSentences, encode_words, read_tagged, split_words
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build_tagger
from regard.models.model import Model
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.metrics.tags import has_entities, tag_scores
from regard.recipes.tags.config import TagsRunConfig
from regard.recipes.targets.base import Answer
from regard.system.fingerprints import record_digests

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_BATCH_TOKENS, _SAMPLES = 4096, 5
_NO_TAG = -1


class TagsRecipe(Recipe):
    """Recipe of token tagging."""

    tokenizer: Tokenizer
    labels: Labels

    @property
    def config(self) -> TagsRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, TagsRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all splits, small ones first."""
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.split("test")
        _ = self._val
        _ = self._training_labels

    def learn(self, folder: Path) -> None:
        """Save the vocabulary and the tags of the training sentences."""
        words = [" ".join(tokens) for tokens in self._train.tokens]
        Tokenizer.train(words, self.config.tokenizer, origin=self._train.origin).save(folder / _TOKENIZER)
        self._training_labels.save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.tokenizer, self.labels = Tokenizer.load(folder / _TOKENIZER), Labels.load(folder / _LABELS)
        self.metric = "entity_f1" if has_entities(self.labels.names) else "accuracy"

    def batches(self) -> TaggedBatches:
        """Return batches of sentences of similar length, with word dropout."""
        usable = self.filter_usable(self._train)
        for line in usable.skipped[len(self._train.skipped) :]:
            self.notify(f"left out: {line}")
        change = self._drop_words if self.config.word_dropout else None
        budget = self.config.train.batch_tokens
        return TaggedBatches(
            self.encode(usable), batch_tokens=budget, seed=self.run.seed, change=change, origin=usable.origin
        )

    def model(self) -> Model:
        """Return a tagger for this vocabulary and these tags."""
        sizes = {"vocab": len(self.tokenizer), "num_tags": len(self.labels)}
        return build_tagger(self.config.model, **sizes, label_smoothing=self.config.train.label_smoothing)

    def describe(self) -> str:
        """Return the sizes of the vocabulary and of the tag set."""
        return f"{len(self.tokenizer):,} subwords, {len(self.labels)} tags"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics on the validation sentences."""
        return self.score(model, self._val)[0]

    def score(
        self, model: nn.Module, sentences: TaggedSentences, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """Return the metrics of the usable sentences, a few outputs, and their number."""
        usable = self.filter_usable(sentences, on_bad)
        predicted, log_probs = self.predict_tags(model, usable)
        samples = [
            {"source": " ".join(tokens), "output": " ".join(output), "reference": " ".join(reference)}
            for tokens, output, reference in zip(usable.tokens[:_SAMPLES], predicted, usable.tags, strict=False)
        ]
        return tag_scores(predicted, usable.tags) | {"nll": -float(np.mean(log_probs))}, samples, len(usable)

    @torch.no_grad()
    def predict_tags(self, model: nn.Module, sentences: TaggedSentences) -> tuple[list[list[str]], list[float]]:
        """Return the most likely tag of each token, and log p of the reference tags in the same order."""
        rows, device = self.encode(sentences), next(model.parameters()).device
        longest = max(len(ids) for ids, _ in rows)
        batches = TaggedBatches(rows, batch_tokens=max(_BATCH_TOKENS, longest), seed=0)
        predicted: list[list[str]] = [[] for _ in rows]
        log_probs = []
        for indices in batches.plan(0):
            batch = batches.collate(0, indices)
            log_p, target = model(batch.source.to(device)).log().cpu(), batch.target
            has_tag = target != _NO_TAG
            log_probs += log_p[has_tag].gather(1, target[has_tag][:, None]).squeeze(1).tolist()
            for row, i in enumerate(indices):
                predicted[i] = [self.labels.names[number] for number in log_p[row][has_tag[row]].argmax(-1).tolist()]
        return predicted, log_probs

    def has_test(self) -> bool:
        """Return True if there is test data; synthetic sentences always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedTags":
        """Return the trained run of this model."""
        return TrainedTags(self, model, folder)

    def split(self, name: str) -> TaggedSentences:
        """Read the sentences of a split."""
        path = getattr(self.config.data, name)
        if path is None and self.config.data.train is None:
            return make_sentences(name, self.run.seed)
        if path is None:
            raise UserError(f"--data.{name} must name a file if --data.train is given")
        return self.report_skipped(read_tagged(path, self.config.data))

    def report_skipped(self, sentences: TaggedSentences) -> TaggedSentences:
        """Report what was left out, and return the sentences."""
        if sentences.skipped:
            number = len(sentences.skipped)
            self.notify(f"{sentences.origin}: skipped {number} sentences; first: {sentences.skipped[0]}")
        return sentences

    def filter_usable(self, sentences: TaggedSentences, on_bad: OnBad | None = None) -> TaggedSentences:
        """Return the sentences with known tags that are not too long.

        Raises UserError naming the first other one, unless on_bad is skip.
        """
        keep, skipped = [], []
        for i, (tokens, tags) in enumerate(zip(sentences.tokens, sentences.tags, strict=True)):
            unknown = [tag for tag in tags if tag not in self.labels.names]
            length = len(encode_words(tokens, self.tokenizer)[0])
            if not unknown and length <= self.config.data.max_length:
                keep.append(i)
                continue
            problem = f"{length} subwords, more than max_length = {self.config.data.max_length}"
            if unknown:
                problem = self.labels.describe_unknown(unknown[0], ("tag", "sentence"))
            skipped.append(f"{sentences.where(i)}: {problem}")
            if (on_bad or self.config.data.on_bad) == "error":
                raise UserError(f"{skipped[-1]}. With --data.on-bad skip, such sentences are left out and counted.")
        if not keep:
            raise UserError(f"{sentences.origin}: no sentence can be used; first: {skipped[0]}.")
        return sentences.take(keep, skipped)

    def encode(self, sentences: TaggedSentences) -> list[tuple[list[int], list[int]]]:
        """Return the subword ids of each sentence, and for each the index of its tag or -1."""
        numbers, rows = {tag: number for number, tag in enumerate(self.labels.names)}, []
        for tokens, tags in zip(sentences.tokens, sentences.tags, strict=True):
            ids, first = encode_words(tokens, self.tokenizer)
            labels = [_NO_TAG] * len(ids)
            for index, tag in zip(first, tags, strict=True):
                labels[index] = numbers[tag]
            rows.append((ids, labels))
        return rows

    def _drop_words(self, ids: NDArray[np.int32], epoch: int, index: int) -> NDArray[np.int32]:
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.run.seed, epoch, index))))
        return np.where(draw.random(len(ids)) < self.config.word_dropout, np.int32(UNK), ids)

    @property
    def _training_labels(self) -> Labels:
        """Tags of the training sentences."""
        return Labels.from_names([tag for tags in self._train.tags for tag in tags], origin=self._train.origin)

    @cached_property
    def _train(self) -> TaggedSentences:
        return self.split("train")

    @cached_property
    def _val(self) -> TaggedSentences:
        return self.split("val")


class TrainedTags(TrainedRun):
    """Trained run of the recipe `tags`."""

    recipe: TagsRecipe

    def predict(self, inputs: Sequence[str | Sequence[str]], **options: Any) -> list[list[str]]:
        """Return the tags of each sentence, given as text (tokens separated by white space) or as a list of tokens."""
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of sentences, got one text: {inputs[:40]!r}")
        sentences = (split_words(given) if isinstance(given, str) else given for given in inputs)
        return [self._predict(tokens, number) for number, tokens in enumerate(sentences, start=1)]

    def answers(self, inputs: Sequence[str], *, n_best: int = 1, first: int = 1) -> list[list[Answer]]:
        """Return the tags of each text, separated by spaces; none for an empty text."""
        if n_best > 1:
            raise UserError(f"--n-best must be 1 for a run that predicts tags, got {n_best}")
        tags = (self._predict(split_words(text), number) for number, text in enumerate(inputs, start=first))
        return [[Answer(" ".join(row), 1.0)] for row in tags]

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        format: str = "auto",
        on_bad: OnBad = "error",
        notify: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Return token accuracy, entity F1 and nll on the run's test sentences, or on those of a file."""
        if path is None:
            self._check_test()
            sentences = self.recipe.split("test")
        else:
            other = TaggedConfig(train=str(path), val=str(path), format=format, on_bad=on_bad)  # type: ignore[arg-type]
            sentences = self.recipe.report_skipped(read_tagged(path, other))
        scores, samples, count = self.recipe.score(self._model, sentences, None if path is None else on_bad)
        names = self.recipe.labels.names
        signature = f"{len(names)} tags: {', '.join(names[:10])}; entities are exact spans"
        return {"data": sentences.origin, "examples": count, **scores, "signature": signature, "samples": samples}

    def test_input(self, index: int) -> list[str]:
        """Return the tokens of a sentence of the test data."""
        self._check_test()
        sentences = self.recipe.split("test")
        return list(get_input(sentences.tokens, index, sentences.origin))

    def likelihood(self, given: str | Sequence[str], maps: SampleMaps) -> Tensor:
        """Return the sum of log p of the predicted tags."""
        ids, first = encode_words(split_words(given) if isinstance(given, str) else given, self.recipe.tokenizer)
        probabilities = self._model(pad([ids]).to(next(self._model.parameters()).device))[0, first]
        return probabilities.amax(-1).log().sum()

    @torch.no_grad()
    def _predict(self, tokens: Sequence[str], number: int) -> list[str]:
        if not tokens:
            return []
        ids, first = encode_words(tokens, self.recipe.tokenizer)
        limit = self.recipe.config.data.max_length
        if len(ids) > limit:
            raise UserError(f"input {number} has {len(ids)} subwords, more than the run's max_length = {limit}")
        with self._segment(lambda: [Sample()]) as samples:
            probabilities = self._model(pad([ids]).to(next(self._model.parameters()).device))[0, first]
        tags = [self.recipe.labels.names[tag] for tag in probabilities.argmax(-1).tolist()]
        for sample in samples:
            tag_of = dict(zip(first, tags, strict=True))
            pieces = enumerate(self.recipe.tokenizer.tokens(ids))
            labels = [f"{piece} ({tag_of[i]})" if tag_of.get(i, "O") != "O" else piece for i, piece in pieces]
            sample.title = f"{' '.join(tokens)} -> {' '.join(tags)}"
            sample.axes["source"] = Axis(labels=tuple(labels), kind="token")
        return tags


def create_recipe(run: Run, notify: Callable[[str], None]) -> TagsRecipe:
    """Create the recipe of a run."""
    return TagsRecipe(run, notify)
