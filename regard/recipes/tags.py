"""The recipe `tags`: a tag for each token of a sentence, learned from the user's own or from made-up dates.

    tokens -> pieces -> vectors -> core (they read one another) -> a tag at each token's first piece

Scored by entity F1 if there are tags that begin with B-, else by token accuracy.

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
from regard.data.config import OnBad
from regard.data.labeled import Labels
from regard.data.made_tags import made_sentences
from regard.data.tagged import Sentences, TaggedBatches, cut, read_tagged, words_of
from regard.data.tagged_config import TaggedConfig
from regard.data.tokenize import UNK, Tokenizer
from regard.digests import recorded
from regard.errors import UserError
from regard.look.map import Seen
from regard.look.scene import Axis, Scene
from regard.models.build import build_tagger
from regard.models.tagger import Tagger
from regard.recipes.config import Tags
from regard.recipes.folder import Run
from regard.recipes.tag_scores import has_entities, tag_scores
from regard.recipes.targets import Answer
from regard.recipes.task import Task, Trained, numbered
from regard.telling import showing

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_BATCH_TOKENS, _SAMPLES = 4096, 5
_NO_TAG = -1


class TagsTask(Task):
    """Sentences, their tags, and a tagger."""

    tokenizer: Tokenizer
    labels: Labels

    @property
    def config(self) -> Tags:
        """All settings of the run."""
        assert isinstance(self.run.config, Tags)
        return self.run.config

    def check(self) -> None:
        """Read all splits, the small ones first."""
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                self.split("test")
        _ = self._val
        _ = self._learned

    def learn(self, folder: Path) -> None:
        """The vocabulary and the tags of the training sentences."""
        words = [" ".join(tokens) for tokens in self._train.tokens]
        Tokenizer.train(words, self.config.tokenizer, origin=self._train.origin).save(folder / _TOKENIZER)
        self._learned.save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """The same."""
        self.tokenizer, self.labels = Tokenizer.load(folder / _TOKENIZER), Labels.load(folder / _LABELS)
        self.metric = "entity_f1" if has_entities(self.labels.names) else "accuracy"

    def batches(self) -> TaggedBatches:
        """Sentences of like lengths together; some pieces are read as unknown."""
        usable = self.usable(self._train)
        for line in usable.skipped[len(self._train.skipped) :]:
            self.tell(f"left out: {line}")
        change = self._with_unknowns if self.config.word_dropout else None
        budget = self.config.train.batch_tokens
        return TaggedBatches(
            self.rows(usable), batch_tokens=budget, seed=self.run.seed, change=change, origin=usable.origin
        )

    def model(self) -> Tagger:
        """For this vocabulary and these tags."""
        sizes = {"vocab": len(self.tokenizer), "num_tags": len(self.labels)}
        return build_tagger(self.config.model, **sizes, label_smoothing=self.config.train.label_smoothing)

    def describe(self) -> str:
        """Sizes of the vocabulary and of the set of tags."""
        return f"{len(self.tokenizer):,} pieces, {len(self.labels)} tags"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """How good the tags of the validation sentences are."""
        return self.scores(model, self._val)[0]

    def scores(
        self, model: nn.Module, sentences: Sentences, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """The same of any sentences, a few of them, and how many."""
        usable = self.usable(sentences, on_bad)
        said, likelihoods = self.tagged(model, usable)
        shown = [
            {"source": " ".join(tokens), "output": " ".join(found), "reference": " ".join(right)}
            for tokens, found, right in zip(usable.tokens[:_SAMPLES], said, usable.tags, strict=False)
        ]
        return tag_scores(said, usable.tags) | {"nll": -float(np.mean(likelihoods))}, shown, len(usable)

    @torch.no_grad()
    def tagged(self, model: nn.Module, sentences: Sentences) -> tuple[list[list[str]], list[float]]:
        """The likeliest tag of each token, and log p of the right ones, token after token."""
        rows, device = self.rows(sentences), next(model.parameters()).device
        longest = max(len(ids) for ids, _ in rows)
        batches = TaggedBatches(rows, batch_tokens=max(_BATCH_TOKENS, longest), seed=0)
        said: list[list[str]] = [[] for _ in rows]
        likelihoods = []
        for indices in batches.plan(0):
            batch = batches.collate(0, indices)
            log_p, target = model(batch.source.to(device)).log().cpu(), batch.target
            real = target != _NO_TAG
            likelihoods += log_p[real].gather(1, target[real][:, None]).squeeze(1).tolist()
            for row, i in enumerate(indices):
                said[i] = [self.labels.names[number] for number in log_p[row][real[row]].argmax(-1).tolist()]
        return said, likelihoods

    def has_test(self) -> bool:
        """Always for made-up sentences."""
        return self.config.data.train is None or self.config.data.test is not None

    def trained(self, model: nn.Module, folder: Path) -> "TrainedTags":
        """The model with its vocabulary and tags."""
        return TrainedTags(self, model, folder)

    def split(self, name: str) -> Sentences:
        """The sentences of a split."""
        path = getattr(self.config.data, name)
        if path is None and self.config.data.train is None:
            return made_sentences(name, self.run.seed)
        if path is None:
            raise UserError(f"no {name} sentences: `data.{name}` must name a file.")
        return self.told(read_tagged(path, self.config.data))

    def told(self, sentences: Sentences) -> Sentences:
        """The sentences; what was left out is told."""
        if sentences.skipped:
            number = len(sentences.skipped)
            self.tell(f"{sentences.origin}: skipped {number} sentences; first: {sentences.skipped[0]}")
        return sentences

    def usable(self, sentences: Sentences, on_bad: OnBad | None = None) -> Sentences:
        """Those whose tags are known and that are not too long. Raises UserError naming the first other, or skips."""
        keep, skipped = [], []
        for i, (tokens, tags) in enumerate(zip(sentences.tokens, sentences.tags, strict=True)):
            unknown = [tag for tag in tags if tag not in self.labels.names]
            pieces = len(cut(tokens, self.tokenizer)[0])
            if not unknown and pieces <= self.config.data.max_length:
                keep.append(i)
                continue
            problem = f"{pieces} pieces, more than max_length = {self.config.data.max_length}"
            if unknown:
                problem = self.labels.unknown(unknown[0], ("tag", "sentence"))
            skipped.append(f"{sentences.where(i)}: {problem}")
            if (on_bad or self.config.data.on_bad) == "error":
                raise UserError(f"{skipped[-1]}. With `on_bad` = skip, such sentences are left out and counted.")
        if not keep:
            raise UserError(f"{sentences.origin}: no sentence can be used; first: {skipped[0]}.")
        return sentences.take(keep, skipped)

    def rows(self, sentences: Sentences) -> list[tuple[list[int], list[int]]]:
        """The pieces of each sentence, and of each piece the number of its tag, or none."""
        numbers, found = {tag: number for number, tag in enumerate(self.labels.names)}, []
        for tokens, tags in zip(sentences.tokens, sentences.tags, strict=True):
            ids, first = cut(tokens, self.tokenizer)
            row = [_NO_TAG] * len(ids)
            for place, tag in zip(first, tags, strict=True):
                row[place] = numbers[tag]
            found.append((ids, row))
        return found

    def _with_unknowns(self, ids: NDArray[np.int32], epoch: int, index: int) -> NDArray[np.int32]:
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.run.seed, epoch, index))))
        return np.where(draw.random(len(ids)) < self.config.word_dropout, np.int32(UNK), ids)

    @property
    def _learned(self) -> Labels:
        """The tags of the training sentences."""
        return Labels.of([tag for tags in self._train.tags for tag in tags], origin=self._train.origin)

    @cached_property
    def _train(self) -> Sentences:
        return self.split("train")

    @cached_property
    def _val(self) -> Sentences:
        return self.split("val")


class TrainedTags(Trained):
    """A tagger in use."""

    task: TagsTask

    def predict(self, inputs: Sequence[str | Sequence[str]], **options: Any) -> list[list[str]]:
        """The tags of each sentence, a text (tokens between white space) or a list of tokens."""
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of sentences, but is one text: {inputs[:40]!r}")
        return [self._tags(words_of(one) if isinstance(one, str) else one, n) for n, one in enumerate(inputs, start=1)]

    def answers(self, inputs: Sequence[str], *, n_best: int = 1, first: int = 1) -> list[list[Answer]]:
        """The tags of each text's tokens, a space between; an empty one has none."""
        if n_best > 1:
            raise UserError(f"a tagger has one answer a sentence, but {n_best} are asked for")
        tags = (self._tags(words_of(text), number) for number, text in enumerate(inputs, start=first))
        return [[Answer(" ".join(one), 1.0)] for one in tags]

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        format: str = "auto",
        on_bad: OnBad = "error",
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Token accuracy, entity F1 and nll on the run's test sentences, or on those of a file."""
        if path is None:
            if not self.task.has_test():
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
            sentences = self.task.split("test")
        else:
            other = TaggedConfig(train=str(path), val=str(path), format=format, on_bad=on_bad)  # type: ignore[arg-type]
            sentences = self.task.told(read_tagged(path, other))
        scores, shown, count = self.task.scores(self._model, sentences, None if path is None else on_bad)
        names = self.task.labels.names
        signature = f"{len(names)} tags: {', '.join(names[:10])}; entities are exact spans"
        return {"data": sentences.origin, "examples": count, **scores, "signature": signature, "samples": shown}

    def test_input(self, index: int) -> list[str]:
        """The tokens of a sentence of the test data."""
        self._check_test()
        sentences = self.task.split("test")
        return list(numbered(sentences.tokens, index, sentences.origin))

    def likelihood(self, given: str | Sequence[str], seen: Seen) -> Tensor:
        """Sum of log p of the tags that are said."""
        ids, first = cut(words_of(given) if isinstance(given, str) else given, self.task.tokenizer)
        found = self._model(pad([ids]).to(next(self._model.parameters()).device))[0, first]
        return found.amax(-1).log().sum()

    @torch.no_grad()
    def _tags(self, tokens: Sequence[str], number: int) -> list[str]:
        if not tokens:
            return []
        ids, first = cut(tokens, self.task.tokenizer)
        limit = self.task.config.data.max_length
        if len(ids) > limit:
            raise UserError(f"input {number} has {len(ids)} pieces, more than the run's max_length = {limit}")
        with showing(lambda: [Scene()]) as scenes:
            found = self._model(pad([ids]).to(next(self._model.parameters()).device))[0, first]
        tags = [self.task.labels.names[tag] for tag in found.argmax(-1).tolist()]
        for scene in scenes:
            said = dict(zip(first, tags, strict=True))
            pieces = enumerate(self.task.tokenizer.tokens(ids))
            labels = [f"{piece} ({said[i]})" if said.get(i, "O") != "O" else piece for i, piece in pieces]
            scene.title = f"{' '.join(tokens)} -> {' '.join(tags)}"
            scene.axes["source"] = Axis(labels=tuple(labels), what="token")
        return tags


def task(run: Run, tell: Callable[[str], None]) -> TagsTask:
    """This recipe at work."""
    return TagsTask(run, tell)
