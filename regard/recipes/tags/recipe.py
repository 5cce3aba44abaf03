"""Recipe `tags`: token tagging (NER, parts of speech).

    words -> subwords -> embeddings -> core (encoder) -> a tag at the first subword of each word

Scored by entity F1 if the training tags are those of entities (regard.recipes.metrics.tags), else
by token accuracy.

Source: lectures, E.1 (sequence to sequence of the same length).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRows
from regard.data.batches import pad, plan_by_length
from regard.data.embedded.tags import make_sentences
from regard.data.held_out import join_files
from regard.data.tables import TABLES, Input
from regard.data.text.labels import Labels
from regard.data.text.tagged import (
    TaggedBatches,
    TaggedSentences,
    encode_words,
    read_tagged,
    read_words,
)
from regard.data.text.words import split_words
from regard.data.tokenizer import Tokenizer, load_tokenizer
from regard.errors import UserError
from regard.look.sample import Axis, MarkedText, Sample
from regard.models.build import build_tagger
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import NamedEntity, TagsAnswer
from regard.recipes.base.recipe import (
    Answer,
    Dataset,
    Example,
    FileRecipe,
    Results,
    join_items,
    unknown_text,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.tags import find_scheme, get_entities, tag_scores
from regard.recipes.tags.config import TagsRunConfig
from regard.system.progress import track
from regard.trace import Trace

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_BATCH_TOKENS = 4096
_NO_TAG = -1
_SPAN_COLUMNS = {"sentence": int, "start": int, "end": int, "label": str, "span": str}


class Words(NamedTuple):
    """Tokens of a sentence and their subwords."""

    text: str
    """The input, or its tokens joined by spaces."""
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]
    """First character of each token in the text, and the one after it."""
    ids: list[int]
    """Ids of the subwords."""
    starts: list[int]
    """Index of the first subword of each token."""


class TagsRecipe(FileRecipe[TagsRunConfig]):
    """Recipe of token tagging."""

    tokenizer: Tokenizer
    labels: Labels
    reads_tokens = True
    input_name = "text"
    tables = (*TABLES, ".conll", ".conllu", ".bio", ".iob", ".iob2")

    def read_split(self, split: str) -> TaggedSentences:
        data = self.config.data
        return join_files([read_tagged(path, data) for path in getattr(data, split)])

    def generate(self, split: str) -> TaggedSentences:
        return make_sentences(split, self.run.seed)

    def hold_out(self, train: TaggedSentences) -> tuple[TaggedSentences, TaggedSentences]:
        return self.split_off(train, "sentences", groups=train.tokens, labels=train.tags)

    def to_dataset(self, data: TaggedSentences) -> Dataset[TaggedSentences]:
        names = [" ".join(tokens) for tokens in data.tokens]
        inputs, tags = [[*tokens] for tokens in data.tokens], [[*own] for own in data.tags]
        return Dataset(data, data.origin, inputs, tags, names, data.notices)

    def encode(self, dataset: Dataset[TaggedSentences]) -> Dataset[TaggedSentences]:
        sentences, most = dataset.data, self.config.data.max_length
        keep, bad_rows = [], BadRows(self.config.data.on_bad, "sentences")
        for i, (tokens, tags) in enumerate(zip(sentences.tokens, sentences.tags, strict=True)):
            with bad_rows.catch(sentences.where(i)):
                for tag in tags:
                    self.labels.index(tag, ("tag", "sentence"))
                length = len(encode_words(tokens, self.tokenizer)[0])
                if length > most:
                    size = f"{length} {self.tokenizer.noun}"
                    raise UserError(f"{size}, more than --data.max-length {most}")
                keep.append(i)
        if not keep:
            raise UserError(f"{sentences.origin}: no sentence can be used; {bad_rows.describe()}")
        notes = bad_rows.notices(sentences.origin)
        return replace(self.to_dataset(sentences.take(keep)), notes=notes)

    def fit(self, train: Dataset[TaggedSentences]) -> dict[str, Any]:
        sentences = train.data
        words = [" ".join(tokens) for tokens in sentences.tokens]
        tags = [tag for own in sentences.tags for tag in own]
        return {
            _TOKENIZER: self.fit_tokenizer(words, train.origin),
            _LABELS: Labels.from_names(tags, origin=train.origin),
        }

    def open(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder / _TOKENIZER)
        self.labels = Labels.load(folder / _LABELS)
        self.scheme = find_scheme(self.labels.names)
        self.metric, self.columns = "accuracy", {"sentence": int, "token": str, "tag": str}
        if self.scheme:
            self.metric, self.columns = "entity_f1", _SPAN_COLUMNS

    def batches(self) -> TaggedBatches:
        train = self.read_encoded(self.train)
        return TaggedBatches(
            self.encode_tags(train.data),
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            word_dropout=self.config.word_dropout,
            filler=self.tokenizer.specials.filler,
            origin=train.origin,
        )

    def model(self) -> Model:
        return build_tagger(
            self.config.model,
            vocab=len(self.tokenizer),
            num_tags=len(self.labels),
            label_smoothing=self.config.train.label_smoothing,
            parts=self.parts(),
        )

    def describe(self) -> str:
        return f"{len(self.tokenizer):,} {self.tokenizer.noun}, {len(self.labels)} tags"

    def metrics(self, inference: ActiveModel, dataset: Dataset[TaggedSentences]) -> dict[str, Any]:
        return self.results(inference, dataset).scores

    def results(self, inference: ActiveModel, dataset: Dataset[TaggedSentences]) -> Results:
        predicted, log_probs = self.predict_tags(inference.model, dataset.data)

        def score(rows: Sequence[int]) -> dict[str, Any]:
            found, tags = [predicted[i] for i in rows], [dataset.data.tags[i] for i in rows]
            return tag_scores(found, tags, has_entities=bool(self.scheme))

        unit = f"exact spans of {self.scheme} tags" if self.scheme else "single tokens"
        signature = f"{len(self.labels)} tags: {join_items(self.labels.names)}; scored: {unit}"
        loss = {"nll": -float(np.mean(log_probs)), "signature": signature}
        return Results(score(range(len(predicted))) | loss, score)

    @torch.no_grad()
    def predict_tags(
        self, model: nn.Module, sentences: TaggedSentences
    ) -> tuple[list[list[str]], list[float]]:
        """Return the most likely tag of each token, and log p of the reference tags."""
        rows, device = self.encode_tags(sentences), device_of(model)
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
                best = log_p[row][has_tag[row]].argmax(-1).tolist()
                predicted[i] = [self.labels.names[number] for number in best]
        return predicted, log_probs

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        return read_words(path, self.config.data)

    def shorten(self, value: str | Sequence[str]) -> str | list[str]:
        tokens, offsets = _split(value)
        ids, starts = encode_words(tokens, self.tokenizer)
        after = len(self.tokenizer.text_ends.after)
        ends = (*starts[1:], len(ids) - after)
        count = sum(end + after <= self.config.data.max_length for end in ends)
        if not isinstance(value, str):
            return list(tokens[:count])
        return value if count >= len(tokens) else value[: offsets[count - 1][1] if count else 0]

    def preprocess(self, given: str | Sequence[str], number: int) -> list[Words]:
        """given: a text, which is split into words (`split_words`), or a list of tokens."""
        tokens, offsets = _split(given)
        if not tokens:
            self.notify(f"input {number} is empty: it has no tokens to tag")
            return []
        ids, starts = encode_words(tokens, self.tokenizer)
        most = self.config.data.max_length
        if len(ids) > most:
            size = f"{len(ids)} {self.tokenizer.noun}"
            raise UserError(f"input {number} has {size}, more than {most}")
        if self.tokenizer.is_unknown(ids):
            self.notify(unknown_text(number, self.tokenizer))
        text = given if isinstance(given, str) else " ".join(given)
        return [Words(text, tokens, offsets, ids, starts)]

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_length([len(row.ids) for row in rows], _BATCH_TOKENS)

    def forward(
        self, inference: ActiveModel, rows: Sequence[Words], trace: Trace | None = None
    ) -> list[list[str]]:
        """Return the most likely tag of each token of each sentence."""
        model, tags = inference.model, []
        best = model(self.collate(rows).to(device_of(model))).argmax(-1).cpu()
        for row, numbers in zip(rows, best, strict=True):
            tags.append([self.labels.names[number] for number in numbers[row.starts].tolist()])
        return tags

    def collate(self, rows: Sequence[Words]) -> Padded:
        return pad([row.ids for row in rows])

    def postprocess(self, example: Example) -> Answer:
        if not example.rows:
            return Answer([], {"tokens": [], "offsets": [], "tags": [], "entities": []}, [""])
        (row,), (tags,) = example.rows, example.outputs
        entities: list[NamedEntity] = []
        for start, end, label in sorted(get_entities(tags)) if self.scheme else []:
            first, last = row.offsets[start][0], row.offsets[end - 1][1]
            entity: NamedEntity = {
                "label": label,
                "start": first,
                "end": last,
                "text": row.text[first:last],
                "start_token": start,
                "end_token": end,
            }
            entities.append(entity)
        tokens, offsets = [*row.tokens], [*map(list, row.offsets)]
        json = TagsAnswer(tokens=tokens, offsets=offsets, tags=tags, entities=entities)
        return Answer(tags, json, [" ".join(tags)])

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        """Return a row for each entity, or else for each token; in files that have lists, one row
        of spans (JSONL), or of tokens and tags."""
        tokens, tags = answer.json["tokens"], answer.json["tags"]
        if not self.scheme and suffix in (".jsonl", ".parquet"):
            return [{"tokens": tokens, "tags": tags}]
        rows: list[Any] = [] if self.scheme else [*zip(tokens, tags, strict=True)]
        spans = []
        for entity in answer.json["entities"]:
            start, end, label = entity["start"], entity["end"], entity["label"]
            spans.append({"start": start, "end": end, "label": label})
            rows.append((start, end, label, entity["text"]))
        if self.scheme and suffix == ".jsonl":
            return [{"spans": spans}]
        if not rows:
            return [dict.fromkeys(self.columns) | {"sentence": number}]
        return [dict(zip(self.columns, (number, *row), strict=True)) for row in rows]

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        row, tags = example.rows[i], example.outputs[i]
        tag_of = dict(zip(row.starts, tags, strict=True))
        labels = []
        for number, piece in enumerate(self.tokenizer.tokens(row.ids)):
            tag = tag_of.get(number, "O")
            labels.append(piece if tag == "O" else f"{piece} ({tag})")
        axes = {"source": Axis(labels=tuple(labels), kind="token")}
        spans = [(*row.offsets[i], tag) for i, tag in enumerate(tags) if tag != "O"]
        names, title = self.labels.names, row.text
        if self.scheme:
            spans = []
            for first, after, label in sorted(get_entities(tags)):
                spans.append((row.offsets[first][0], row.offsets[after - 1][1], label))
            names = sorted({kind for name in names for *_, kind in get_entities([name])})
            found = [f"{row.text[start:end]} ({label})" for start, end, label in spans]
            title += f" -> {', '.join(found) or 'nothing'}"
        marked = MarkedText.from_spans(row.text, spans, names)
        return Sample(title=title, marked=marked, axes=axes)

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        row = example.rows[i]
        return model(self.collate([row]).to(device_of(model)))[0, row.starts].amax(-1).log().sum()

    def encode_tags(self, sentences: TaggedSentences) -> list[tuple[list[int], list[int]]]:
        """Return the subword ids of each sentence, and for each the index of its tag or -1."""
        rows = []
        for tokens, tags in zip(sentences.tokens, sentences.tags, strict=True):
            ids, first = encode_words(tokens, self.tokenizer)
            labels = [_NO_TAG] * len(ids)
            for index, tag in zip(first, tags, strict=True):
                labels[index] = self.labels.index(tag, ("tag", "sentence"))
            rows.append((ids, labels))
        return rows


def _split(value: str | Sequence[str]) -> tuple[Sequence[str], list[tuple[int, int]]]:
    """Return the tokens of an input and their offsets, in the text or in the joined tokens."""
    if isinstance(value, str):
        return split_words(value)
    offsets, start = [], 0
    for token in value:
        offsets.append((start, start + len(token)))
        start += len(token) + 1
    return value, offsets
