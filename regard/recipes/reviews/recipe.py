"""Recipe `reviews`: text classification, multi-label classification or regression.

    text -> subwords -> embeddings -> core (encoder) -> pooling -> target

Targets: regard.recipes.targets.base.

Source: lectures, E.7 (sequence to vector).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from regard.attention.masks import Padded
from regard.data.batches import Ragged, pad, plan_by_length
from regard.data.embedded.reviews import make_reviews
from regard.data.text.labels import LabeledBatches, read_labeled
from regard.data.text.pairs import Pairs, join_pairs
from regard.data.tokenizer import Tokenizer, load_tokenizer
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier, build_token_reader
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.recipe import Dataset, Example, FileRecipe, unknown_text
from regard.recipes.reviews.config import ReviewsRunConfig
from regard.recipes.reviews.log_count_ratios import KINDS, LogCountRatios
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter, RatioTextReader, attach_ratios
from regard.recipes.targets.labels import ClassTarget
from regard.recipes.targets.recipe import TargetRecipe
from regard.system.progress import track

_TOKENIZER = "tokenizer.json"
_COUNTS = "naive_bayes.npz"
_BATCH_TOKENS = 4096


class ReviewsRecipe(TargetRecipe[ReviewsRunConfig], FileRecipe[ReviewsRunConfig]):
    """Recipe of text classification and regression."""

    tokenizer: Tokenizer
    ratios: LogCountRatios | None = None
    nouns = ("label", "text")
    input_name = "text"
    unit = "texts"

    def read_split(self, split: str) -> Pairs:
        data = self.config.data
        return join_pairs([read_labeled(data, path, split) for path in getattr(data, split)])

    def generate(self, split: str) -> Pairs:
        return make_reviews(split, self.run.seed, self.config.data.target)

    def hold_out(self, train: Pairs) -> tuple[Pairs, Pairs]:
        is_class = self.config.data.target == "class"
        labels = [(target,) for target in train.targets] if is_class else None
        return self.split_off(train, "texts", groups=train.sources, labels=labels)

    def to_dataset(self, data: Pairs) -> Dataset[Pairs]:
        return Dataset(data, data.origin, data.sources, notes=data.notices)

    def label_texts(self, data: Pairs) -> Sequence[str]:
        return data.targets

    def encode(self, dataset: Dataset[Pairs]) -> Dataset[list[str]]:
        """Return the texts with a valid target, cut to data.max_length tokens."""
        encoded = super().encode(dataset)
        whole = encoded.data.sources
        texts = [self.shorten(text) for text in whole]
        notes = encoded.notes
        if sum(map(len, texts)) < sum(map(len, whole)):
            limit = f"--data.max-length {self.config.data.max_length} {self.tokenizer.noun}"
            notes = (*notes, f"{dataset.origin}: texts longer than {limit} are cut there")
        return replace(encoded, data=texts, inputs=texts, names=whole, notes=notes)

    def fit(self, train: Dataset[Pairs]) -> dict[str, Any]:
        pairs, raw = train.data, self.raw_targets(train)
        target: Any = self.kind.fit(raw, self.config.data)
        kinds = self.config.naive_bayes
        self.tokenizer = self.fit_tokenizer(pairs.sources, pairs.origin)
        artifacts = {_TOKENIZER: self.tokenizer, **target.artifacts()}
        if kinds != "none":
            keep, classes = target.encode(raw)
            artifacts[_COUNTS] = LogCountRatios.from_texts(
                (self._segment(self.shorten(pairs.sources[i])) for i in keep),
                classes,
                num_classes=len(target.names),
                kinds=kinds,
            )
        return artifacts

    def open(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder / _TOKENIZER)
        super().open(folder)
        kinds = self.config.naive_bayes
        if kinds != "none":
            self.ratios = LogCountRatios.load(folder / _COUNTS, kinds)

    def batches(self) -> LabeledBatches:
        train = self.read_encoded(self.train)
        return LabeledBatches(
            self.encode_texts(train.data),
            train.targets,
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            word_dropout=self.config.word_dropout,
            filler=self.tokenizer.specials.filler,
            extend=self._compute_ratios(train, train.targets),
            origin=train.origin,
        )

    def model(self) -> Model:
        config, target, kinds = self.config.model, self.target, self.config.naive_bayes

        def build_writer(dim: int, pool: nn.Module) -> VectorWriter:
            smoothing = self.config.train.label_smoothing
            options: dict[str, Any] = {"pool": pool, "label_smoothing": smoothing}
            if kinds == "none":
                return target.build_writer(dim, config, **options)
            assert isinstance(target, ClassTarget)  # ratios are by class
            options |= config.writer_options() | {"class_weights": target.class_weights}
            return NaiveBayesWriter(dim, len(target.names), kinds=KINDS[kinds], **options)

        reader = TokenReader if kinds == "none" else RatioTextReader
        reader = build_token_reader(config, len(self.tokenizer), reader)
        return build_classifier(config, reader, build_writer, parts=self.parts())

    def describe(self) -> str:
        return f"{len(self.tokenizer):,} {self.tokenizer.noun}; {self.target.signature}"

    def evaluation_batches(self, dataset: Dataset[list[str]]) -> Iterator[Any]:
        texts, extend = self.encode_texts(dataset.data), self._compute_ratios(dataset)
        budget = max(_BATCH_TOKENS, int(texts.lengths.max(initial=1)))
        batches = LabeledBatches(texts, dataset.targets, batch_tokens=budget, seed=0, extend=extend)
        return (batches.collate(0, rows) for rows in track(batches.plan(0), "texts", len(dataset)))

    def input_column(self, path: Path) -> str:
        return "text"

    def shorten(self, value: str) -> str:
        most = self.config.data.max_length - len(self.tokenizer.text_ends)
        return self.tokenizer.shorten(value, most)

    def preprocess(self, given: str, number: int) -> list[tuple[str, list[int], Any]]:
        """Return a text, its ids, and its log-count ratios if the model reads them."""
        text, most = given.strip(), self.config.data.max_length
        if not text:
            raise UserError(f"input {number} is empty: it has no words to classify")
        ids = self.encode_texts([text])[0].tolist()
        if len(ids) > most:
            size = f"{len(ids)} {self.tokenizer.noun}"
            raise UserError(f"input {number} has {size}, more than {most}")
        ratios = None if self.ratios is None else self.ratios.compute(self._segment(text))
        if self.tokenizer.is_unknown(ids) and (ratios is None or not ratios.any()):
            self.notify(unknown_text(number, self.tokenizer))
        return [(text, ids, ratios)]

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_length([len(ids) for _, ids, _ in rows], _BATCH_TOKENS)

    def collate(self, rows: Sequence[Any]) -> Any:
        _, ids, ratios = zip(*rows, strict=True)
        return pad(ids) if self.ratios is None else attach_ratios(pad(ids), ratios)

    def input_sample(self, inference: ActiveModel, example: Example) -> Sample:
        text, ids, _ = example.rows[0]
        pieces = self.tokenizer.tokens(text, self.tokenizer.text_ends)
        pieces = pieces if len(pieces) == len(ids) else self.tokenizer.tokens(ids)
        return Sample(title=text, axes={"source": Axis(labels=tuple(pieces), kind="token")})

    def encode_texts(self, texts: Sequence[str]) -> Ragged:
        ends, filler = self.tokenizer.text_ends, self.tokenizer.specials.filler
        encoded = self.tokenizer.encode_batch(texts)
        return Ragged.from_sequences(
            [*ends.before, *(ids or [filler]), *ends.after] for ids in encoded
        )

    def _segment(self, text: str) -> list[str]:
        return self.tokenizer.segment(text) or [""]

    def _compute_ratios(
        self, dataset: Dataset[list[str]], own: NDArray[Any] | None = None
    ) -> Callable[[Padded, Sequence[int]], Any] | None:
        """Return a function that attaches log-count ratios to a batch of texts; None without any.

        own: classes of texts that were counted themselves.
        """
        if self.ratios is None:
            return None
        ratios = []
        for i, text in enumerate(dataset.data):
            label = None if own is None else int(own[i])
            ratios.append(self.ratios.compute(self._segment(text), label))
        return lambda source, indices: attach_ratios(source, [ratios[i] for i in indices])
