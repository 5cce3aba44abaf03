"""Recipe `reviews`: text classification, multi-label classification or regression.

    text -> subwords -> embeddings -> core (encoder) -> pooling -> target

Targets: regard.recipes.targets.base.

Source: lectures, E.7 (sequence to vector).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from regard.attention.masks import Padded
from regard.data.batches import Ragged, pad
from regard.data.config import FeatureKinds
from regard.data.embedded.reviews import make_reviews
from regard.data.text.labels import LabeledBatches, read_labeled
from regard.data.text.pairs import Pairs
from regard.data.text.sources import read_sources
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier, build_token_reader
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.config import replace_shared
from regard.recipes.base.inputs import Input
from regard.recipes.base.recipe import Examples, Prepared, describe_too_long, plan_by_length
from regard.recipes.reviews.config import ReviewsRunConfig
from regard.recipes.reviews.log_count_ratios import KINDS, LogCountRatios
from regard.recipes.reviews.naive_bayes import (
    NaiveBayesWriter,
    RatioTextReader,
    RatioTexts,
    attach_ratios,
)
from regard.recipes.targets.labels import ClassTarget
from regard.recipes.targets.recipe import TargetRecipe
from regard.system.files import file_limit
from regard.system.progress import track

_TOKENIZER = "tokenizer.json"
_COUNTS = "naive_bayes.npz"
_BATCH_TOKENS = 4096


class ReviewsRecipe(TargetRecipe[ReviewsRunConfig]):
    """Recipe of text classification and regression."""

    tokenizer: Tokenizer
    ratios: LogCountRatios | None = None
    nouns = ("label", "text")
    unit = "texts"

    def read(self, split: str, other: Any = None) -> Examples[Pairs]:
        data = self.config.data
        path, held_out = getattr(data, split) if other is None else other.test[0], ()
        if other is not None:
            data = replace(replace_shared(data, other), train=path, val=path)
        if path is None and data.train is None:
            pairs = make_reviews(split, self.run.seed, data.target)
        elif path is None and split == "test":
            raise UserError(
                "--data.test must name a file, a folder or a data set (hf:NAME) if --data.train is "
                "given"
            )
        elif data.val is None and split != "test":
            train, val, notice = self._held_out
            pairs, held_out = (train, ()) if split == "train" else (val, (notice,))
        else:
            pairs = read_labeled(data, path, split)
        notes = (
            *(
                [f"{pairs.origin}: skipped {len(pairs.skipped):,} texts; first: {pairs.skipped[0]}"]
                if pairs.skipped
                else []
            ),
            *held_out,
        )
        own = {"input": pairs.sources.__getitem__, "on_bad": data.on_bad, "skipped": notes}
        return Examples(pairs, pairs.origin, len(pairs), **own)

    @cached_property
    def _held_out(self) -> tuple[Pairs, Pairs, str]:
        """Training and validation texts from the training file."""
        data = self.config.data
        assert data.train is not None
        pairs = read_labeled(data, data.train, "train")
        labels = [(target,) for target in pairs.targets] if data.target == "class" else None
        return pairs.hold_out(data.val_share, "texts", seed=self.run.seed, labels=labels)

    def check_examples(self, split: str, examples: Examples[Pairs]) -> None:
        super().check_examples(split, examples)
        pairs = examples.data
        if split != "train" and getattr(self.config.data, split) is not None:
            known = set(self.train.data.sources)
            both = [i for i, text in enumerate(pairs.sources) if text in known]
            if both:
                self.notify(
                    f"{pairs.origin}: {len(both):,} of {len(pairs):,} texts also occur in "
                    f"training; first: "
                    f"{pairs.where(both[0])}"
                )
        if split == "train" and self.config.data.target == "class":
            first: dict[str, int] = {}
            for i, text in enumerate(pairs.sources):
                first.setdefault(text, i)
            other = [
                i for i, (text, label) in enumerate(pairs) if pairs.targets[first[text]] != label
            ]
            if other:
                before = first[pairs.sources[other[0]]]
                self.notify(
                    f"{pairs.origin}: {len(other):,} texts have another label than an equal text "
                    f"before; first: "
                    f"{pairs.where(other[0])} ({pairs.targets[other[0]]!r}) and line "
                    f"{pairs.lines[before]} "
                    f"({pairs.targets[before]!r})"
                )

    def label_texts(self, data: Pairs) -> Sequence[str]:
        return data.targets

    def take(self, data: Pairs, keep: Sequence[int]) -> list[str]:
        return [data.sources[i] for i in keep]

    def usable(self, examples: Examples[Pairs]) -> Examples[list[str]]:
        usable = super().usable(examples)
        whole, texts = usable.data, [self.shorten(text) for text in usable.data]
        cut = [
            i
            for i, (before, text) in enumerate(zip(whole, texts, strict=True))
            if len(text) < len(before)
        ]
        limit = f"--data.max-length {self.config.data.max_length} {self.tokenizer.noun}"
        note = f"{examples.origin}: {len(cut):,} of {len(whole):,} texts are longer than {limit}, and cut there"
        notes = (*usable.skipped, *([note] if cut else []))
        return replace(
            usable, data=texts, input=texts.__getitem__, name=whole.__getitem__, skipped=notes
        )

    def learn(self, folder: Path) -> None:
        pairs, raw = self.train.data, self.raw_targets(self.train)
        tokenizer = self.take_over(
            lambda init: Tokenizer.load(init / _TOKENIZER),
            lambda: Tokenizer.train(pairs.sources, self.config.tokenizer, origin=pairs.origin),
        )
        tokenizer.save(folder / _TOKENIZER)
        target = self.kind.fit(raw, self.config.data)
        target.save(folder)
        if self.feature_kinds is not None:
            assert isinstance(target, ClassTarget)
            self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
            keep, classes = target.encode(raw)
            texts = (self._segment(self.shorten(pairs.sources[i])) for i in keep)
            try:
                sizes = {"num_classes": len(target.names), "kinds": self.feature_kinds}
                ratios = LogCountRatios.from_texts(texts, classes, **sizes)
            except UserError as error:
                raise UserError(f"{pairs.origin}: {error}") from error
            ratios.save(folder / _COUNTS)

    def open(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.target = self.kind.load(folder, self.config.data)
        if self.feature_kinds is not None:
            assert isinstance(self.target, ClassTarget)
            self.ratios = LogCountRatios.load(
                folder / _COUNTS, self.feature_kinds, len(self.target.names)
            )

    @property
    def feature_kinds(self) -> FeatureKinds | None:
        """Features with naive-Bayes log-count ratios, if there are any."""
        return None if self.config.naive_bayes == "none" else self.config.naive_bayes

    def batches(self) -> LabeledBatches:
        train = self.load_usable(self.train)
        return LabeledBatches(
            self.encode(train.data),
            train.targets,
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            word_dropout=self.config.word_dropout,
            extend=self._compute_ratios(train, train.targets),
            origin=train.origin,
        )

    def model(self) -> Model:
        config, smoothing = self.config.model, self.config.train.label_smoothing
        vocab = len(self.tokenizer)
        if self.feature_kinds is None:
            reader = build_token_reader(config, vocab)
            return build_classifier(
                config,
                reader,
                lambda dim, pool: self.target.build_writer(dim, config, smoothing, pool),
            )
        target, kinds = self.target, KINDS[self.feature_kinds]
        assert isinstance(target, ClassTarget)  # ratios are by class
        training = {
            "dropout": config.dropout,
            "label_smoothing": smoothing,
            "class_weights": target.class_weights,
        }
        return build_classifier(
            config,
            build_token_reader(config, vocab, RatioTextReader),
            lambda dim, pool: NaiveBayesWriter(
                dim, len(target.names), kinds=kinds, pool=pool, **training
            ),
        )

    def describe(self) -> str:
        return f"{len(self.tokenizer):,} {self.tokenizer.noun}; {self.target.signature}"

    def evaluation_batches(self, examples: Examples[list[str]]) -> Iterator[Any]:
        texts = self.encode(examples.data)
        budget, extend = (
            max(_BATCH_TOKENS, int(texts.lengths.max(initial=1))),
            self._compute_ratios(examples),
        )
        batches = LabeledBatches(
            texts, examples.targets, batch_tokens=budget, seed=0, extend=extend
        )
        return (batches.collate(0, rows) for rows in track(batches.plan(0), "texts", len(examples)))

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        given = self.reading
        texts = read_sources(
            path,
            "text",
            column=given.text_column,
            most=1 + max(1, len(self.config.data.label_column)),
            header=given.header,
            format=given.format,
        )
        return (Input(text, str(path), line, problem) for line, text, problem in texts)

    def shorten(self, value: str) -> str:
        return self.tokenizer.shorten(value, self.config.data.max_length)

    def prepare(self, inputs: Sequence[str], first: int) -> Prepared:
        prepared, most = Prepared(len(inputs)), self.config.data.max_length
        for owner, given in enumerate(inputs):
            text = given.strip()
            if not text:
                raise UserError(f"input {first + owner} is empty: it has no words to classify")
            ids = self.encode([text])[0].tolist()
            if len(ids) > most:
                raise UserError(
                    describe_too_long(first + owner, len(ids), self.tokenizer.noun, most)
                )
            ratios = None if self.ratios is None else self.ratios.compute(self._segment(text))
            prepared.add(owner, (ids, ratios), text)
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_length([len(ids) for ids, _ in rows], _BATCH_TOKENS)

    def collate(self, rows: Sequence[Any]) -> Padded | RatioTexts:
        ids = pad([ids for ids, _ in rows])
        return ids if self.ratios is None else attach_ratios(ids, [ratios for _, ratios in rows])

    def input_sample(self, inference: ActiveModel, prepared: Prepared, row: int) -> Sample:
        ids, text = prepared.rows[row][0], prepared.facts[row]
        pieces = self.tokenizer.tokens(text)[: len(ids)] or self.tokenizer.tokens(ids)
        return Sample(
            title=prepared.facts[row], axes={"source": Axis(labels=tuple(pieces), kind="token")}
        )

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Return the ids of texts."""
        return Ragged.from_sequences(ids or [UNK] for ids in self.tokenizer.encode_batch(texts))

    def _segment(self, text: str) -> list[str]:
        return self.tokenizer.segment(text) or [""]

    def _compute_ratios(
        self, examples: Examples[list[str]], own: NDArray[Any] | None = None
    ) -> Callable[[Padded, Sequence[int]], RatioTexts] | None:
        """Return a function that attaches the log-count ratios of these texts to a batch; None:
        without ratios.

        own: classes of texts that were counted themselves.
        """
        if self.ratios is None:
            return None
        texts = examples.data
        classes = [None] * len(texts) if own is None else own.tolist()
        ratios, size = [], 0
        for text, label in zip(texts, classes, strict=True):
            ratios.append(self.ratios.compute(self._segment(text), label))
            size += ratios[-1].nbytes
            if size > file_limit():
                raise UserError(
                    f"{examples.origin}: the log-count ratios of {len(texts):,} texts and their "
                    f"classes take more "
                    f"than {file_limit():,} bytes: set --naive-bayes none."
                )
        return lambda source, indices: attach_ratios(source, [ratios[i] for i in indices])
