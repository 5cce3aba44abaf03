"""Texts with labeled spans of characters, by the format of the tool: records of JSON.

Prodigy       {"text": "in Oslo", "spans": [{"start": 3, "end": 7, "label": "GPE"}]}
Doccano       {"text": "in Oslo", "label": [[3, 7, "GPE"]]}; also `labels`, or `entities`
Label Studio  {"data": {"text": "in Oslo"}, "annotations": [{"result": [{"type": "labels", "value":
              {"start": 3, "end": 7, "labels": ["GPE"]}}]}]}
spaCy         ["in Oslo", {"entities": [[3, 7, "GPE"]]}], or Doc.to_json()

Sources: prodi.gy/docs/api-interfaces, doccano.github.io (export of sequence labeling),
labelstud.io/guide/task_format, spacy.io/api/doc#to_json.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from regard.data.bad_rows import BadRows, LeftOutError
from regard.data.config import SpanFormat, TaggedConfig
from regard.data.formats.label_studio import read_task
from regard.data.tables import as_number, as_text, excerpt, locate, read_records, read_table
from regard.data.text.words import split_words
from regard.errors import UserError

_Triple = tuple[int, int, str]


class Span(msgspec.Struct, order=True):
    """Labeled span: its first character and the one after it."""

    start: int
    end: int
    label: str
    text: str = ""
    """Characters of the span, if the file has them."""


def read_spans(
    path: Path,
    format: SpanFormat,
    field: str,
    bad_rows: BadRows,
    encoding: str = "utf-8",
    *,
    has_spans: bool,
) -> Iterator[tuple[int, Any, list[str]]]:
    """Yield the number of each record with the words of its text and their tags; or without
    `has_spans` with the text and no tags. `field` is the name of the text."""
    for number, record in read_records(path, bad_rows, encoding):
        with bad_rows.catch(locate(path, number)):
            spans = parse_spans(record, format) if has_spans else []
            text = _find_text(record, format, field)
            words, tags = tag_words(text, spans) if has_spans else (text, [])
            yield number, words, tags


def read_span_rows(
    path: Path, config: TaggedConfig, bad_rows: BadRows
) -> Iterator[tuple[int, Any, list[str]]]:
    """Yield the number, the words and the tags of each text of a table with a row for each span.

    Consecutive rows with the same text, and the same `sentence` if there is this column, are of one
    text. A text without spans has a row without them.
    """
    columns = (config.token_column or "text", "start", "end", "label")
    table = read_table(path, columns, config, optional=("sentence",), bad_rows=bad_rows)
    for (text, _), group in groupby(table, key=lambda row: (row[1][0], row[1][-1])):
        rows = list(group)
        number, _ = rows[0]
        with bad_rows.catch(locate(path, number)):
            spans = [
                _parse_cells(*cells[1:4]) for _, cells in rows if any(map(as_text, cells[1:4]))
            ]
            yield number, *tag_words(as_text(text), spans)


def parse_spans(record: Any, format: SpanFormat) -> list[Span]:
    """Return the spans of a record. Raises UserError if it has another form, with the name of the
    format that it has."""
    try:
        return _PARSERS[format](record)
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        other = recognize(record)
        hint = f"; it has the form of --data.format {other}" if other else ""
        raise UserError(f"not a record of {format}: {error}{hint}") from None


def recognize(record: Any) -> str:
    """Return the format of a record with spans; empty if it has none of these."""
    for format, parse in _PARSERS.items():
        try:
            if parse(record):
                return format
        except (msgspec.ValidationError, LookupError, TypeError, UserError):
            continue
    return ""


def tag_words(text: str, spans: Iterable[Span]) -> tuple[list[str], list[str]]:
    """Return the words of a text and their tags: B-LABEL and I-LABEL in a span, else O.

    Raises: UserError for a span that is not in the text, overlaps another or cuts a word.
    """
    words, offsets = split_words(text)
    if not words:
        raise UserError("the text is empty")
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    tags = ["O"] * len(words)
    for span in sorted(spans):
        start, end, label = span.start, span.end, span.label
        name = f"span {start} to {end} ({label})"
        if not 0 <= start < end <= len(text):
            raise UserError(f"{name} is outside the text of {len(text)} characters")
        name += f", {excerpt(text[start:end])},"
        if span.text and span.text != text[start:end]:
            raise UserError(f"{name} is {excerpt(span.text)} in the file")
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        if first == after or not label.strip():
            raise UserError(f"{name} has no {'label' if first < after else 'word'}")
        for i in (first, after - 1):
            if starts[i] < start or ends[i] > end:
                raise UserError(f"{name} cuts the word {excerpt(words[i])}")
        if tags[first] != "O":
            raise UserError(f"{name} overlaps another span")
        tags[first:after] = [f"B-{label}"] + [f"I-{label}"] * (after - first - 1)
    return words, tags


def _parse_cells(start: Any, end: Any, label: Any) -> Span:
    first, last = as_number(start), as_number(end)
    if not (first.is_integer() and last.is_integer()):
        raise UserError(f"expected numbers of characters, got {start} and {end}")
    return Span(int(first), int(last), as_text(label))


def _find_text(record: Any, format: SpanFormat, field: str) -> str:
    fields = record
    if format == "spacy" and isinstance(record, list) and record:
        fields = {field: record[0]}
    elif format == "label-studio" and isinstance(record, dict):
        fields = record.get("data")
    text = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(text, str):
        known = f"; the fields are {', '.join(map(repr, fields))}" if fields else ""
        raise UserError(f"no text in the field {field!r} (--data.token-column){known}")
    return text


class _ProdigyTask(msgspec.Struct):
    spans: list[Span] | None = None
    answer: str = ""
    is_binary: bool = msgspec.field(default=False, name="_is_binary")


def _parse_prodigy(record: Any) -> list[Span]:
    task = msgspec.convert(record, _ProdigyTask)
    if task.answer in ("reject", "ignore"):
        raise LeftOutError(f"the answer is {task.answer}")
    if task.spans is None and task.answer != "accept":
        raise LookupError("no field 'spans'")
    if task.is_binary:
        raise UserError("is an answer about one span (_is_binary): other entities are unknown")
    return task.spans or []


class _DoccanoEntity(msgspec.Struct):
    start_offset: int
    end_offset: int
    label: str


def _parse_doccano(record: Any) -> list[Span]:
    names = [name for name in ("label", "labels", "entities") if name in record]
    if len(names) != 1:
        raise LookupError("expected one of the fields label, labels and entities")
    spans = []
    for entity in msgspec.convert(record[names[0]], list[_DoccanoEntity | _Triple]):
        if isinstance(entity, _DoccanoEntity):
            spans.append(Span(entity.start_offset, entity.end_offset, entity.label))
        else:
            spans.append(Span(*entity))
    return spans


class _TextValue(msgspec.Struct):
    start: int
    end: int
    labels: list[str]
    text: str = ""


def _parse_label_studio(record: Any) -> list[Span]:
    spans = []
    for found in read_task(record, "labels")[1]:
        value = msgspec.convert(found, _TextValue)
        if len(value.labels) != 1:
            raise UserError(f"span {value.start} to {value.end} has {len(value.labels)} labels")
        spans.append(Span(value.start, value.end, value.labels[0], value.text))
    return spans


class _SpacyEntities(msgspec.Struct):
    entities: list[_Triple]


class _SpacyDoc(msgspec.Struct):
    ents: list[Span]
    spans: dict[str, list[Any]] = {}


def _parse_spacy(record: Any) -> list[Span]:
    if isinstance(record, list):
        _, annotations = msgspec.convert(record, tuple[str, _SpacyEntities])
        return [Span(*triple) for triple in annotations.entities]
    doc = msgspec.convert(record, _SpacyDoc)
    if any(doc.spans.values()) and not doc.ents:
        raise UserError(f"has spans ({', '.join(doc.spans)}), which may overlap, and no ents")
    return doc.ents


_PARSERS: dict[str, Callable[[Any], list[Span]]] = {
    "prodigy": _parse_prodigy,
    "doccano": _parse_doccano,
    "label-studio": _parse_label_studio,
    "spacy": _parse_spacy,
}
