"""The recipe `reviews`: texts to classes, labels or numbers, the user's own or made-up reviews.

    text -> pieces -> vectors -> core (they read one another) -> a learned query reads them all -> target

What a target is, how it is scored and how it is shown: regard.recipes.targets.

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
from regard.data.config import LabeledConfig, OnBad, OpinionKinds
from regard.data.labeled import LabeledBatches, Opined, opined, read_labeled
from regard.data.made_reviews import made_reviews
from regard.data.opinions import KINDS, Opinions
from regard.data.pairs import Pairs
from regard.data.tokenize import UNK, Tokenizer
from regard.digests import recorded
from regard.errors import UserError
from regard.files import file_limit
from regard.look.map import Seen
from regard.look.scene import Axis, Scene
from regard.models.build import build_classifier
from regard.models.classifier import Classifier
from regard.recipes.config import Reviews
from regard.recipes.folder import Run
from regard.recipes.likelihood import of_answer
from regard.recipes.targets import Answer, ClassTarget, NumberTarget, Said, Target, kind_of_target
from regard.recipes.task import Task, Trained, numbered
from regard.recipes.vector_scores import measured
from regard.telling import showing

_TOKENIZER = "tokenizer.json"
_OPINIONS = "opinions.npz"
_BATCH_TOKENS = 4096


class ReviewsTask(Task):
    """Texts, their targets, and a model that answers each."""

    tokenizer: Tokenizer
    target: Target
    opinions: Opinions | None = None

    def __init__(self, run: Run, tell: Callable[[str], None]):
        super().__init__(run, tell)
        self.kind = kind_of_target(self.config.data)
        self.metric, self.maximize = self.kind.metric, self.kind.maximize

    @property
    def config(self) -> Reviews:
        """All settings of the run."""
        assert isinstance(self.run.config, Reviews)
        return self.run.config

    def check(self) -> None:
        """Read all splits, the small ones first."""
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                self.split("test")
        _ = self._val, self._train
        self.kind.learned(self.said(self._train), self.config.data)

    def learn(self, folder: Path) -> None:
        """The vocabulary and the targets of the training texts."""
        Tokenizer.train(self._train.sources, self.config.tokenizer, origin=self._train.origin).save(folder / _TOKENIZER)
        target = self.kind.learned(self.said(self._train), self.config.data)
        target.save(folder)
        if self.counted is not None:
            assert isinstance(target, ClassTarget)
            self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
            keep, classes = target.rows(self.said(self._train))
            texts = (self._cut(self._train.sources[i]) for i in keep)
            try:
                counts = Opinions.of(texts, classes, num_classes=len(target.names), kinds=self.counted)
            except UserError as error:
                raise UserError(f"{self._train.origin}: {error}") from error
            counts.save(folder / _OPINIONS)

    def open(self, folder: Path) -> None:
        """The same."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.target = self.kind.load(folder, self.config.data)
        if self.counted is not None:
            assert isinstance(self.target, ClassTarget)
            self.opinions = Opinions.load(folder / _OPINIONS, self.counted, len(self.target.names))

    @property
    def counted(self) -> OpinionKinds | None:
        """What is counted beforehand: for classes, what the settings say."""
        return None if self.config.opinions == "none" or self.kind is not ClassTarget else self.config.opinions

    def batches(self) -> LabeledBatches:
        """Texts of like lengths together; some pieces of each are read as unknown."""
        keep, targets = self.target.learnable(self.said(self._train), self.tell)
        texts = self.encoded([self._train.sources[i] for i in keep])
        return LabeledBatches(
            texts,
            targets,
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            change=self._with_unknowns if self.config.word_dropout else None,
            opinions=self._opinions([self._train.sources[i] for i in keep], targets),
            origin=self._train.origin,
        )

    def model(self) -> Classifier:
        """For this vocabulary and these targets."""
        config, smoothing = self.config.model, self.config.train.label_smoothing
        return build_classifier(
            config,
            vocab=len(self.tokenizer),
            writes=lambda dim: self.target.writer(dim, config, smoothing),
            opinions=0 if self.counted is None else len(KINDS[self.counted]),
        )

    def describe(self) -> str:
        """Size of the vocabulary, and what is said."""
        return f"{len(self.tokenizer):,} pieces; {self.target.signature}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """How good the model is on the validation texts."""
        return self.scores(model, self._val)[0]

    def scores(
        self, model: nn.Module, pairs: Pairs, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """The same of any texts that have a target that can be used, a few of them, and how many."""
        keep, targets = self.target.rows(self.said(pairs, on_bad))
        texts = self.encoded([pairs.sources[i] for i in keep])
        opinions = self._opinions([pairs.sources[i] for i in keep])
        budget = max(_BATCH_TOKENS, int(texts.lengths.max(initial=1)))
        batches = LabeledBatches(texts, targets, batch_tokens=budget, seed=0, opinions=opinions)
        found, right = measured(model, (batches.collate(0, rows) for rows in batches.plan(0)))
        shown = self.target.samples([pairs.sources[i] for i in keep], found, right)
        return self.target.scores(found, right), shown, len(keep)

    def has_test(self) -> bool:
        """Always for made-up reviews."""
        return self.config.data.train is None or self.config.data.test is not None

    def trained(self, model: nn.Module, folder: Path) -> "TrainedReviews":
        """The model with its vocabulary and targets."""
        return TrainedReviews(self, model, folder)

    def split(self, name: str) -> Pairs:
        """The texts of a split."""
        path = getattr(self.config.data, name)
        if path is None and self.config.data.train is None:
            return made_reviews(name, self.run.seed, self.config.data.target)
        if path is None:
            raise UserError(f"no {name} texts: `data.{name}` must name a file, a folder or a data set (hf:NAME).")
        pairs = read_labeled(self.config.data, path, name)
        if pairs.skipped.total:
            self.tell(f"{pairs.origin}: {pairs.skipped.describe()}")
        return pairs

    def said(self, pairs: Pairs, on_bad: OnBad | None = None) -> Said:
        """What files say of texts."""
        return Said(pairs.targets, pairs.where, pairs.origin, ("label", "text"), on_bad or self.config.data.on_bad)

    def encoded(self, texts: Sequence[str]) -> Ragged:
        """Ids of texts, the first max_length of each."""
        limit = self.config.data.max_length
        return Ragged.of(ids[:limit] or [UNK] for ids in self.tokenizer.encode_batch(texts))

    def source(self, text: str) -> Padded | Opined:
        """One text as the model takes it."""
        ids = pad([self.encoded([text])[0].tolist()])
        return ids if self.opinions is None else opined(ids, [self.opinions.of_text(self._cut(text))])

    def _cut(self, text: str) -> list[str]:
        return self.tokenizer.cut(text)[: self.config.data.max_length] or [""]

    def _opinions(self, texts: Sequence[str], own: NDArray[Any] | None = None) -> list[NDArray[np.float32]] | None:
        """On texts; own: their classes, if they were counted."""
        if self.opinions is None:
            return None
        classes = [None] * len(texts) if own is None else own.tolist()
        found, size = [], 0
        for text, one in zip(texts, classes, strict=True):
            found.append(self.opinions.of_text(self._cut(text), one))
            size += found[-1].nbytes
            if size > file_limit():
                raise UserError(
                    f"{self._train.origin}: what counting says of {len(texts):,} texts takes more than "
                    f"{file_limit():,} bytes with so many classes: set --opinions none."
                )
        return found

    def _with_unknowns(self, ids: NDArray[np.int32], epoch: int, index: int) -> NDArray[np.int32]:
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.run.seed, epoch, index))))
        return np.where(draw.random(len(ids)) < self.config.word_dropout, np.int32(UNK), ids)

    @cached_property
    def _train(self) -> Pairs:
        return self.split("train")

    @cached_property
    def _val(self) -> Pairs:
        return self.split("val")


class TrainedReviews(Trained):
    """A model that answers texts, in use."""

    task: ReviewsTask

    def predict(self, inputs: Sequence[str], *, n_best: int | None = None) -> list[Any] | list[list[Answer]]:
        """The likeliest class of each text, in their order, or its labels (a tuple), or its number (or a tuple).

        With n_best, the best few answers with their probabilities. An empty text is read as one unknown piece, with a
        warning.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, but is one text: {inputs[:40]!r}")
        answers = self._answers(inputs, 1)
        if answers is None:
            return []
        return self.task.target.values(answers) if n_best is None else self.task.target.ranked(answers, n_best)

    def answers(self, inputs: Sequence[str], *, n_best: int, first: int = 1) -> list[list[Answer]]:
        """As `predict`, for people; messages count the texts from `first`."""
        answers = self._answers(inputs, first)
        return [] if answers is None else self.task.target.ranked(answers, n_best)

    def _answers(self, inputs: Sequence[str], first: int) -> Tensor | None:
        empty = [number for number, text in enumerate(inputs, start=first) if not text.strip()]
        if empty:
            warnings.warn(f"input {', '.join(map(str, empty[:10]))} is empty: nothing tells its class", stacklevel=3)
        rows = [self._answer(text.strip()) for text in inputs]
        return torch.cat(rows) if rows else None

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        format: str = "auto",
        text_column: int | str | None = None,
        label_column: int | str | None = None,
        on_bad: OnBad = "error",
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Scores of the target's kind on the run's test texts, or on those of a file.

        Raises UserError if neither the run nor the call names any, and as reading does.
        """
        data = self.config.data
        if path is None:
            if not self.task.has_test():
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
            pairs = self.task.split("test")
        else:
            columns = {
                "text_column": text_column or data.text_column,
                "label_column": label_column or data.label_column,
            }
            kind = {"target": data.target, "separator": data.separator}
            other = LabeledConfig(train=str(path), val=str(path), format=format, on_bad=on_bad, **columns, **kind)  # type: ignore[arg-type]
            pairs = read_labeled(other, path, "test")
            if pairs.skipped.total:
                (tell or self.task.tell)(f"{pairs.origin}: {pairs.skipped.describe()}")
        scores, shown, count = self.task.scores(self._model, pairs, None if path is None else on_bad)
        about = {"signature": self.task.target.signature, "samples": shown}
        return {"data": pairs.origin, "examples": count, **scores, **about}

    def test_input(self, index: int) -> str:
        """A text of the test data."""
        self._check_test()
        pairs = self.task.split("test")
        return numbered(pairs.sources, index, pairs.origin)

    def likelihood(self, given: str, seen: Seen) -> Tensor:
        """log p of the class that is said, or of all labels that are."""
        source = self.task.source(given.strip()).to(next(self._model.parameters()).device)
        return of_answer(self.task.target, self._model(source))

    def check_likelihood(self) -> None:
        """Raises UserError for a run that answers with numbers."""
        if isinstance(self.task.target, NumberTarget):
            raise UserError(self._improbable("numbers"))

    @torch.no_grad()
    def _answer(self, text: str) -> Tensor:
        source = self.task.source(text)
        with showing(lambda: [self._scene(text)]) as scenes:
            found = self._model(source.to(next(self._model.parameters()).device)).cpu()
        for scene in scenes:
            best = self.task.target.ranked(found, 1)[0][0]
            scene.title = f"{text} -> {self.task.target.title(best)}"
            scene.axes["queries"] = Axis(labels=(best.text,), what="answer")
        return found

    def _scene(self, text: str) -> Scene:
        """What is read of a text, for those who look on."""
        pieces = self.task.tokenizer.tokens(self.task.encoded([text])[0].tolist())
        return Scene(axes={"source": Axis(labels=tuple(pieces), what="token")})


def task(run: Run, tell: Callable[[str], None]) -> ReviewsTask:
    """This recipe at work."""
    return ReviewsTask(run, tell)
