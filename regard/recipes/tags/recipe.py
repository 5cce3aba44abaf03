"""Recipe `tags`: token tagging (NER, parts of speech).

    words -> subwords -> embeddings -> core (encoder) -> a tag at the first subword of each word

Scored by entity F1 if the training tags are those of entities (regard.recipes.metrics.tags), else
by token accuracy.

Source: lectures, E.1 (sequence to sequence of the same length).
"""

import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batches import pad
from regard.data.embedded.tags import make_sentences
from regard.data.held_out import hold_out
from regard.data.text.labels import Labels
from regard.data.text.tagged import (
    TaggedBatches,
    TaggedSentences,
    encode_words,
    locate_words,
    read_tagged,
    read_words,
)
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.build import build_tagger
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import Entity, TagsAnswer
from regard.recipes.base.config import replace_shared
from regard.recipes.base.inputs import TABLES, Input
from regard.recipes.base.recipe import (
    Examples,
    Prepared,
    Recipe,
    describe_empty,
    describe_skipped,
    describe_too_long,
    plan_by_length,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.tags import find_scheme, get_entities, tag_scores
from regard.recipes.tags.config import TagsRunConfig
from regard.system.progress import track
from regard.trace import Trace

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_BATCH_TOKENS = 4096
_NO_TAG = -1


class Tagged(NamedTuple):
    """Tokens of a sentence and their predicted tags."""

    tokens: Sequence[str]
    tags: list[str]
    offsets: Sequence[tuple[int, int]] = ()
    """Offsets of the first character of each token and after it, if the input is a text."""


class TagsRecipe(Recipe[TagsRunConfig]):
    """Recipe of token tagging."""

    tokenizer: Tokenizer
    labels: Labels

    reads_tokens = True
    _is_reported = False
    tables = (*TABLES, ".conll", ".conllu", ".bio", ".iob", ".iob2")

    def read(self, split: str, other: Any = None) -> Examples[TaggedSentences]:
        data = self.config.data
        path = getattr(data, split) if other is None else other.test[0]
        if other is not None:
            data = dataclasses.replace(replace_shared(data, other), train=path, val=path)
        held_out: tuple[str, ...] = ()
        if path is None and data.train is None:
            sentences = make_sentences(split, self.run.seed)
        elif path is None and split == "test":
            raise UserError("--data.test must name a file if --data.train is given")
        elif data.val is None and split != "test":
            train, val, notice = self._held_out
            sentences, held_out = (train, ()) if split == "train" else (val, (notice,))
        else:
            sentences = read_tagged(path, data)
        notes = describe_skipped(sentences.origin, "sentences", sentences.skipped)
        return self._to_examples(sentences, data.on_bad, (*notes, *held_out))

    @cached_property
    def _held_out(self) -> tuple[TaggedSentences, TaggedSentences, str]:
        """Training and validation sentences from the training file."""
        data = self.config.data
        assert data.train is not None
        sentences = read_tagged(data.train, data)
        names = {"origin": sentences.origin, "noun": "sentences", "seed": self.run.seed}
        kinds = {"groups": sentences.tokens, "labels": sentences.tags}
        parts = hold_out(len(sentences), data.val_share, **names, **kinds)
        val = dataclasses.replace(sentences.take(parts.val, ()), skipped=())
        return sentences.take(parts.train, ()), val, parts.notice

    def usable(self, examples: Examples[TaggedSentences]) -> Examples[TaggedSentences]:
        sentences, most = examples.data, self.config.data.max_length
        keep, skipped = [], []
        for i, (tokens, tags) in enumerate(zip(sentences.tokens, sentences.tags, strict=True)):
            unknown = [tag for tag in tags if tag not in self.labels.names]
            length = len(encode_words(tokens, self.tokenizer)[0])
            if not unknown and length <= most:
                keep.append(i)
                continue
            problem = f"{length} {self.tokenizer.noun}, more than --data.max-length {most}"
            if unknown:
                problem = self.labels.describe_unknown(unknown[0], ("tag", "sentence"))
            skipped.append(f"{sentences.where(i)}: {problem}")
            if examples.on_bad == "error":
                raise UserError(
                    f"{skipped[-1]}. With --data.on-bad skip, such sentences are left out and "
                    f"counted."
                )
        if not keep:
            raise UserError(f"{sentences.origin}: no sentence can be used; first: {skipped[0]}.")
        notes = describe_skipped(sentences.origin, "sentences that cannot be used", skipped)
        return self._to_examples(sentences.take(keep, skipped), examples.on_bad, notes)

    def check_examples(self, split: str, examples: Examples[TaggedSentences]) -> None:
        if split == "train":
            _ = self._training_labels
        elif (
            split == "val"
            and find_scheme(self._training_labels.names)
            and not self._has_entity(examples)
        ):
            self.notify(
                f"{examples.origin}: no validation sentence has an entity, so that entity F1 is 0 "
                f"and cannot select "
                "the best checkpoint; --data.val names other sentences"
            )

    def learn(self, folder: Path) -> None:
        train = self.train.data
        words = [" ".join(tokens) for tokens in train.tokens]
        tokenizer = self.take_over(
            lambda init: Tokenizer.load(init / _TOKENIZER),
            lambda: Tokenizer.train(words, self.config.tokenizer, origin=train.origin),
        )
        tokenizer.save(folder / _TOKENIZER)
        self._training_labels.save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        self.tokenizer, self.labels = (
            Tokenizer.load(folder / _TOKENIZER),
            Labels.load(folder / _LABELS),
        )
        self.scheme = find_scheme(self.labels.names)
        self.metric = "entity_f1" if self.scheme else "accuracy"

    def batches(self) -> TaggedBatches:
        train = self.load_usable(self.train)
        limits = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        settings = {"word_dropout": self.config.word_dropout, "origin": train.origin}
        return TaggedBatches(self.encode(train.data), **limits, **settings)

    def model(self) -> Model:
        sizes = {"vocab": len(self.tokenizer), "num_tags": len(self.labels)}
        return build_tagger(
            self.config.model, **sizes, label_smoothing=self.config.train.label_smoothing
        )

    def describe(self) -> str:
        return f"{len(self.tokenizer):,} {self.tokenizer.noun}, {len(self.labels)} tags"

    def score(
        self, inference: ActiveModel, examples: Examples[TaggedSentences], options: Any
    ) -> dict[str, Any]:
        predicted, log_probs = self.predict_tags(inference.model, examples.data)
        scores = tag_scores(predicted, examples.data.tags, has_entities=bool(self.scheme))
        return scores | {"nll": -float(np.mean(log_probs))}

    def report(self, inference: ActiveModel, examples: Examples[TaggedSentences]) -> dict[str, Any]:
        names = self.labels.names
        scored = (
            f"entities are exact spans of {self.scheme} tags"
            if self.scheme
            else "each token is scored by itself"
        )
        if self.scheme and not self._has_entity(examples):
            scored += ", of which the data have none"
        return {"signature": f"{len(names)} tags: {', '.join(names[:10])}; {scored}"}

    @staticmethod
    def _has_entity(examples: Examples[TaggedSentences]) -> bool:
        return any(map(get_entities, examples.data.tags))

    @torch.no_grad()
    def predict_tags(
        self, model: nn.Module, sentences: TaggedSentences
    ) -> tuple[list[list[str]], list[float]]:
        """Return the most likely tag of each token, and log p of the reference tags in the same
        order."""
        rows, device = self.encode(sentences), next(model.parameters()).device
        longest = max(len(ids) for ids, _ in rows)
        batches = TaggedBatches(rows, batch_tokens=max(_BATCH_TOKENS, longest), seed=0)
        predicted: list[list[str]] = [[] for _ in rows]
        log_probs = []
        for indices in track(batches.plan(0), "sentences", len(rows)):
            batch = batches.collate(0, indices)
            log_p, target = model(batch.source.to(device)).log().cpu(), batch.target
            has_tag = target != _NO_TAG
            log_probs += log_p[has_tag].gather(1, target[has_tag][:, None]).squeeze(1).tolist()
            for row, i in enumerate(indices):
                predicted[i] = [
                    self.labels.names[number]
                    for number in log_p[row][has_tag[row]].argmax(-1).tolist()
                ]
        return predicted, log_probs

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        given = self.reading
        chosen = {} if given.format == "auto" else {"format": given.format}
        data = dataclasses.replace(
            self.config.data, header=given.header, token_column=given.token_column, **chosen
        )
        for line, tokens, problem in read_words(path, data):
            yield Input(list(tokens), str(path), line, problem)

    def shorten(self, value: str | Sequence[str]) -> str | list[str]:
        tokens, offsets = _split(value)
        ids, starts = encode_words(tokens, self.tokenizer)
        count = sum(end <= self.config.data.max_length for end in (*starts[1:], len(ids)))
        if isinstance(value, str):
            return value if count >= len(tokens) else value[: offsets[count - 1][1] if count else 0]
        return list(tokens[:count])

    def prepare(self, inputs: Sequence[str | Sequence[str]], first: int) -> Prepared:
        prepared, most, empty = Prepared(len(inputs)), self.config.data.max_length, []
        for owner, given in enumerate(inputs):
            tokens, offsets = _split(given)
            if not tokens:
                empty.append(first + owner)
                continue
            ids, starts = encode_words(tokens, self.tokenizer)
            if len(ids) > most:
                raise UserError(
                    describe_too_long(first + owner, len(ids), self.tokenizer.noun, most)
                )
            prepared.add(owner, (ids, starts), (tokens, offsets))
            if offsets:
                self._report_punctuation(tokens, first + owner)
        if empty:
            prepared.notes.append(
                describe_empty(empty, ": it has no tokens to tag", ": they have no tokens to tag")
            )
        return prepared

    def _report_punctuation(self, tokens: Sequence[str], number: int) -> None:
        """Notify, once, of a token that ends in punctuation that is a token of its own in
        training."""
        if (
            self._is_reported or self.tokenizer.config.kind == "char"
        ):  # no piece is known to be a whole token
            return
        for token in tokens:
            word, mark = token[:-1], token[-1]
            if word.isalnum() and unicodedata.category(mark).startswith("P"):
                ids = self.tokenizer.encode(mark)
                if len(ids) == 1 and ids[0] != UNK:
                    self._is_reported = True
                    self.notify(
                        f"input {number}: {token!r} is one token, since texts are split at white "
                        f"space only, and the "
                        f"training sentences have {mark!r} as a token of its own: write '{word} "
                        f"{mark}' to tag it so"
                    )
                    return

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_length([len(ids) for ids, _ in rows], _BATCH_TOKENS)

    def answer(
        self, inference: ActiveModel, rows: Sequence[Any], options: Any, trace: Trace | None = None
    ) -> list[list[str]]:
        probabilities = inference.model(
            pad([ids for ids, _ in rows]).to(device_of(inference.model))
        )
        best = probabilities.argmax(-1).cpu()
        names = self.labels.names
        return [
            [names[tag] for tag in best[row, starts].tolist()]
            for row, (_, starts) in enumerate(rows)
        ]

    def join(self, prepared: Prepared, answers: Sequence[list[str]], options: Any) -> list[Tagged]:
        results = [Tagged((), []) for _ in range(prepared.count)]
        for owner, (tokens, offsets), tags in zip(
            prepared.owner, prepared.facts, answers, strict=True
        ):
            results[owner] = Tagged(tokens, tags, offsets)
        return results

    def values(self, answers: list[Tagged]) -> list[list[str]]:
        return [answer.tags for answer in answers]

    def lines(self, answer: Tagged) -> list[str]:
        return [" ".join(answer.tags)]

    def json(self, answer: Tagged) -> TagsAnswer:
        tokens, entities = list(answer.tokens), []
        for start, end, label in sorted(get_entities(answer.tags)) if self.scheme else []:
            entity: Entity = {
                "label": label,
                "start": start,
                "end": end,
                "text": " ".join(tokens[start:end]),
            }
            if answer.offsets:
                entity["start_char"], entity["end_char"] = (
                    answer.offsets[start][0],
                    answer.offsets[end - 1][1],
                )
            entities.append(entity)
        return {"tokens": tokens, "tags": answer.tags, "entities": entities}

    def sample(
        self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[list[str]]
    ) -> Sample:
        (ids, starts), (tokens, _), tags = prepared.rows[row], prepared.facts[row], answers[row]
        tag_of = dict(zip(starts, tags, strict=True))
        pieces = enumerate(self.tokenizer.tokens(ids))
        labels = [
            f"{piece} ({tag_of[i]})" if tag_of.get(i, "O") != "O" else piece for i, piece in pieces
        ]
        axes = {"source": Axis(labels=tuple(labels), kind="token")}
        return Sample(title=f"{' '.join(tokens)} -> {' '.join(tags)}", axes=axes)

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: list[str]) -> Tensor:
        ids, starts = prepared.rows[row]
        return model(pad([ids]).to(device_of(model)))[0, starts].amax(-1).log().sum()

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

    @property
    def _training_labels(self) -> Labels:
        """Tags of the training sentences."""
        train = self.train.data
        return Labels.from_names([tag for tags in train.tags for tag in tags], origin=train.origin)

    @staticmethod
    def _to_examples(
        sentences: TaggedSentences, on_bad: str, notes: tuple[str, ...]
    ) -> Examples[TaggedSentences]:
        return Examples(
            sentences,
            sentences.origin,
            len(sentences),
            input=lambda i: list(sentences.tokens[i]),
            name=lambda i: " ".join(sentences.tokens[i]),
            reference=lambda i: " ".join(sentences.tags[i]),
            reference_json=lambda i: list(sentences.tags[i]),
            on_bad=on_bad,
            skipped=notes,
        )


def _split(value: str | Sequence[str]) -> tuple[Sequence[str], list[tuple[int, int]]]:
    """Return the tokens of an input, and of a text their offsets."""
    offsets = locate_words(value) if isinstance(value, str) else []
    return [value[start:end] for start, end in offsets] if isinstance(
        value, str
    ) else value, offsets
