"""Recipe `reviews`: text classification, multi-label classification or regression.

    text -> subwords -> embeddings -> core (encoder) -> attention pooling -> target

Targets: regard.recipes.targets.base.

Source: lectures, E (sequence to vector).
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import Ragged, pad
from regard.data.config import FeatureKinds, LabeledConfig, OnBad
from regard.data.embedded.reviews import make_reviews
from regard.data.text.labels import LabeledBatches, TextsWithRatios, attach_ratios, read_labeled
from regard.data.text.log_count_ratios import KINDS, LogCountRatios
from regard.data.text.pairs import Pairs
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.recipes.base.likelihood import answer_log_prob
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.metrics.vectors import predict_all
from regard.recipes.reviews.config import ReviewsRunConfig
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter, RatioTextReader
from regard.recipes.targets.base import Answer, RawTargets, Target
from regard.recipes.targets.kinds import get_target_type
from regard.recipes.targets.labels import ClassTarget
from regard.recipes.targets.numbers import NumberTarget
from regard.system.files import file_limit
from regard.system.fingerprints import record_digests

_TOKENIZER = "tokenizer.json"
_COUNTS = "naive_bayes.npz"
_BATCH_TOKENS = 4096


class ReviewsRecipe(Recipe):
    """Recipe of text classification and regression."""

    tokenizer: Tokenizer
    target: Target
    ratios: LogCountRatios | None = None

    def __init__(self, run: Run, notify: Callable[[str], None]):
        super().__init__(run, notify)
        self.kind = get_target_type(self.config.data)
        self.metric, self.higher_is_better = self.kind.metric, self.kind.higher_is_better

    @property
    def config(self) -> ReviewsRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, ReviewsRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all splits, small ones first."""
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.split("test")
        _ = self._val, self._train
        self.kind.fit(self.get_raw_targets(self._train), self.config.data)

    def learn(self, folder: Path) -> None:
        """Save the vocabulary, the targets and the log-count ratios of the training texts."""
        Tokenizer.train(self._train.sources, self.config.tokenizer, origin=self._train.origin).save(folder / _TOKENIZER)
        target = self.kind.fit(self.get_raw_targets(self._train), self.config.data)
        target.save(folder)
        if self.feature_kinds is not None:
            assert isinstance(target, ClassTarget)
            self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
            keep, classes = target.encode(self.get_raw_targets(self._train))
            texts = (self._cut(self._train.sources[i]) for i in keep)
            try:
                sizes = {"num_classes": len(target.names), "kinds": self.feature_kinds}
                ratios = LogCountRatios.from_texts(texts, classes, **sizes)
            except UserError as error:
                raise UserError(f"{self._train.origin}: {error}") from error
            ratios.save(folder / _COUNTS)

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.target = self.kind.load(folder, self.config.data)
        if self.feature_kinds is not None:
            assert isinstance(self.target, ClassTarget)
            self.ratios = LogCountRatios.load(folder / _COUNTS, self.feature_kinds, len(self.target.names))

    @property
    def feature_kinds(self) -> FeatureKinds | None:
        """Features with naive-Bayes log-count ratios; None for targets other than classes."""
        return None if self.config.naive_bayes == "none" or self.kind is not ClassTarget else self.config.naive_bayes

    def batches(self) -> LabeledBatches:
        """Return batches of texts of similar length, with word dropout."""
        keep, targets = self.target.encode_for_training(self.get_raw_targets(self._train), self.notify)
        texts = self.encode([self._train.sources[i] for i in keep])
        return LabeledBatches(
            texts,
            targets,
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            change=self._drop_words if self.config.word_dropout else None,
            ratios=self._compute_ratios([self._train.sources[i] for i in keep], targets),
            origin=self._train.origin,
        )

    def model(self) -> Model:
        """Return a classifier for this vocabulary and these targets."""
        config, smoothing = self.config.model, self.config.train.label_smoothing
        table = embedding_table(len(self.tokenizer), config.core.width)
        if self.feature_kinds is None:
            reads = TokenReader(table, dropout=config.dropout)
            return build_classifier(
                config, reads, lambda dim, pool: self.target.build_writer(dim, config, smoothing, pool)
            )
        target, kinds = self.target, len(KINDS[self.feature_kinds])
        assert isinstance(target, ClassTarget)  # ratios are by class
        settings = {"kinds": kinds, "dropout": config.dropout, "label_smoothing": smoothing}
        return build_classifier(
            config,
            RatioTextReader(table, dropout=config.dropout),
            lambda dim, pool: NaiveBayesWriter(dim, len(target.names), pool=pool, **settings),
        )

    def describe(self) -> str:
        """Return the size of the vocabulary and the possible answers."""
        return f"{len(self.tokenizer):,} subwords; {self.target.signature}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics on the validation texts."""
        return self.score(model, self._val)[0]

    def score(
        self, model: nn.Module, pairs: Pairs, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """Return the metrics of the texts with a valid target, a few outputs, and their number."""
        keep, targets = self.target.encode(self.get_raw_targets(pairs, on_bad))
        texts = self.encode([pairs.sources[i] for i in keep])
        ratios = self._compute_ratios([pairs.sources[i] for i in keep])
        budget = max(_BATCH_TOKENS, int(texts.lengths.max(initial=1)))
        batches = LabeledBatches(texts, targets, batch_tokens=budget, seed=0, ratios=ratios)
        answers, references = predict_all(model, (batches.collate(0, rows) for rows in batches.plan(0)))
        samples = self.target.make_samples([pairs.sources[i] for i in keep], answers, references)
        return self.target.score(answers, references), samples, len(keep)

    def has_test(self) -> bool:
        """Return True if there is test data; synthetic reviews always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedReviews":
        """Return the trained run of this model."""
        return TrainedReviews(self, model, folder)

    def split(self, name: str) -> Pairs:
        """Read the texts of a split."""
        path = getattr(self.config.data, name)
        if path is None and self.config.data.train is None:
            return make_reviews(name, self.run.seed, self.config.data.target)
        if path is None:
            raise UserError(
                f"--data.{name} must name a file, a folder or a data set (hf:NAME) if --data.train is given"
            )
        pairs = read_labeled(self.config.data, path, name)
        if pairs.skipped:
            self.notify(f"{pairs.origin}: {pairs.skipped.describe()}")
        return pairs

    def get_raw_targets(self, pairs: Pairs, on_bad: OnBad | None = None) -> RawTargets:
        """Return the unparsed targets of the texts."""
        return RawTargets(
            pairs.targets, pairs.where, pairs.origin, ("label", "text"), on_bad or self.config.data.on_bad
        )

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Return the ids of texts, cut to max_length."""
        limit = self.config.data.max_length
        return Ragged.from_sequences(ids[:limit] or [UNK] for ids in self.tokenizer.encode_batch(texts))

    def to_source(self, text: str) -> Padded | TextsWithRatios:
        """Return one text as input of the model."""
        ids = pad([self.encode([text])[0].tolist()])
        return ids if self.ratios is None else attach_ratios(ids, [self.ratios.compute(self._cut(text))])

    def _cut(self, text: str) -> list[str]:
        return self.tokenizer.segment(text)[: self.config.data.max_length] or [""]

    def _compute_ratios(
        self, texts: Sequence[str], own: NDArray[Any] | None = None
    ) -> list[NDArray[np.float32]] | None:
        """Return the log-count ratios of each text; own: the classes of texts that were counted themselves."""
        if self.ratios is None:
            return None
        classes = [None] * len(texts) if own is None else own.tolist()
        ratios, size = [], 0
        for text, label in zip(texts, classes, strict=True):
            ratios.append(self.ratios.compute(self._cut(text), label))
            size += ratios[-1].nbytes
            if size > file_limit():
                raise UserError(
                    f"{self._train.origin}: the log-count ratios of {len(texts):,} texts and their classes take more "
                    f"than {file_limit():,} bytes: set --naive-bayes none."
                )
        return ratios

    def _drop_words(self, ids: NDArray[np.int32], epoch: int, index: int) -> NDArray[np.int32]:
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.run.seed, epoch, index))))
        return np.where(draw.random(len(ids)) < self.config.word_dropout, np.int32(UNK), ids)

    @cached_property
    def _train(self) -> Pairs:
        return self.split("train")

    @cached_property
    def _val(self) -> Pairs:
        return self.split("val")


class TrainedReviews(TrainedRun):
    """Trained run of the recipe `reviews`."""

    recipe: ReviewsRecipe

    def predict(self, inputs: Sequence[str], *, n_best: int | None = None) -> list[Any] | list[list[Answer]]:
        """Return the most likely class of each text, or its labels (a tuple), or its number (or a tuple of numbers).

        With n_best, return the best answers with their probabilities. An empty text is read as one unknown token, with
        a warning.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, got one text: {inputs[:40]!r}")
        answers = self._predict_all(inputs, 1)
        if answers is None:
            return []
        return self.recipe.target.to_values(answers) if n_best is None else self.recipe.target.rank(answers, n_best)

    def answers(self, inputs: Sequence[str], *, n_best: int, first: int = 1) -> list[list[Answer]]:
        """Return the answers of each text, best first; messages number the texts from `first`."""
        answers = self._predict_all(inputs, first)
        return [] if answers is None else self.recipe.target.rank(answers, n_best)

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        format: str = "auto",
        text_column: int | str | None = None,
        label_column: int | str | None = None,
        on_bad: OnBad = "error",
        notify: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Return the metrics on the run's test texts, or on those of a file.

        Raises UserError if neither the run nor the call names any, and as reading does.
        """
        data = self.config.data
        if path is None:
            self._check_test()
            pairs = self.recipe.split("test")
        else:
            columns = {
                "text_column": text_column or data.text_column,
                "label_column": label_column or data.label_column,
            }
            kind = {"target": data.target, "separator": data.separator}
            other = LabeledConfig(train=str(path), val=str(path), format=format, on_bad=on_bad, **columns, **kind)  # type: ignore[arg-type]
            pairs = read_labeled(other, path, "test")
            if pairs.skipped:
                (notify or self.recipe.notify)(f"{pairs.origin}: {pairs.skipped.describe()}")
        scores, samples, count = self.recipe.score(self._model, pairs, None if path is None else on_bad)
        return {
            "data": pairs.origin,
            "examples": count,
            **scores,
            "signature": self.recipe.target.signature,
            "samples": samples,
        }

    def test_input(self, index: int) -> str:
        """Return a text of the test data."""
        self._check_test()
        pairs = self.recipe.split("test")
        return get_input(pairs.sources, index, pairs.origin)

    def likelihood(self, given: str, maps: SampleMaps) -> Tensor:
        """Return log p of the predicted class, or of all predicted labels."""
        source = self.recipe.to_source(given.strip()).to(next(self._model.parameters()).device)
        return answer_log_prob(self.recipe.target, self._model(source))

    def check_likelihood(self) -> None:
        """Raise UserError for a run that predicts numbers."""
        if isinstance(self.recipe.target, NumberTarget):
            raise UserError(self._no_probability_message("numbers"))

    def _predict_all(self, inputs: Sequence[str], first: int) -> Tensor | None:
        empty = [number for number, text in enumerate(inputs, start=first) if not text.strip()]
        if empty:
            warnings.warn(
                f"input {', '.join(map(str, empty[:10]))} is empty: it has no words to classify", stacklevel=3
            )
        rows = [self._predict_one(text.strip()) for text in inputs]
        return torch.cat(rows) if rows else None

    @torch.no_grad()
    def _predict_one(self, text: str) -> Tensor:
        source = self.recipe.to_source(text)
        with self._segment(lambda: [self._look_sample(text)]) as samples:
            answers = self._model(source.to(next(self._model.parameters()).device)).cpu()
        for sample in samples:
            best = self.recipe.target.rank(answers, 1)[0][0]
            sample.title = f"{text} -> {self.recipe.target.format_title(best)}"
            sample.axes["queries"] = Axis(labels=(best.text,), kind="answer")
        return answers

    def _look_sample(self, text: str) -> Sample:
        """Return the sample of a look at this text."""
        pieces = self.recipe.tokenizer.tokens(self.recipe.encode([text])[0].tolist())
        return Sample(axes={"source": Axis(labels=tuple(pieces), kind="token")})


def create_recipe(run: Run, notify: Callable[[str], None]) -> ReviewsRecipe:
    """Create the recipe of a run."""
    return ReviewsRecipe(run, notify)
