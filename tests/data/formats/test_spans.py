"""Texts with labeled spans: one sentence in the format of every tool, and what is refused."""

import json

import pytest

from regard.data.config import TaggedConfig
from regard.data.formats.spans import Span, recognize, tag_words
from regard.data.text.tagged import read_tagged, read_words
from regard.errors import UserError

TEXT = "Ana O'Neill left St. Gallen, bye"
TRIPLES = [[0, 11, "PER"], [17, 27, "GPE"]]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in TRIPLES]
WORDS = ("Ana", "O", "'", "Neill", "left", "St", ".", "Gallen", ",", "bye")
TAGS = ("B-PER", "I-PER", "I-PER", "I-PER", "O", "B-GPE", "I-GPE", "I-GPE", "O", "O")


def task(*results: dict, **more) -> dict:
    return {"id": 7, "data": {"text": TEXT}, "annotations": [{"result": [*results]} | more]}


def result(start: int, end: int, label: str, **more) -> dict:
    value = {"start": start, "end": end, "labels": [label]} | more
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


LABELED = task(
    result(*TRIPLES[0], text="Ana O'Neill"),
    {"from_id": "a", "to_id": "b", "type": "relation", "direction": "right"},
    result(*TRIPLES[1]),
)
ENTITIES = [
    {"id": 5, "start_offset": start, "end_offset": end, "label": label}
    for start, end, label in TRIPLES
]
RECORDS = [
    ("prodigy", {"text": TEXT, "_task_hash": 1, "spans": OBJECTS, "answer": "accept"}),
    ("doccano", {"id": 1, "text": TEXT, "label": TRIPLES, "Comments": []}),
    ("doccano", {"text": TEXT, "labels": TRIPLES}),
    ("doccano", {"text": TEXT, "entities": ENTITIES, "relations": []}),
    ("label-studio", LABELED),
    ("spacy", [TEXT, {"entities": TRIPLES}]),
    ("spacy", {"text": TEXT, "ents": OBJECTS, "tokens": [{"id": 0, "start": 0, "end": 3}]}),
]


def read(tmp_path, format, *records, name="a.jsonl", **settings):
    content = json.dumps(records) if name == "a.json" else "\n".join(map(json.dumps, records))
    (tmp_path / name).write_text(content, encoding="utf-8")
    return read_tagged(tmp_path / name, TaggedConfig(format=format, **settings))


@pytest.mark.parametrize(("format", "record"), RECORDS)
def test_spans_are_tags_of_words(tmp_path, format, record):
    for name in ("a.json", "a.jsonl"):
        data = read(tmp_path, format, record, record, name=name)
        assert (data.tokens, data.tags) == ((WORDS,) * 2, (TAGS,) * 2)
    cells = read_words(tmp_path / "a.jsonl", TaggedConfig(format=format))
    assert [(cell.line, cell.value, cell.problem) for cell in cells] == [
        (1, TEXT, ""),
        (2, TEXT, ""),
    ]


@pytest.mark.parametrize(("format", "record"), RECORDS)
def test_other_format_is_named_only_if_it_is_certain(tmp_path, format, record):
    assert recognize(record) == format
    with pytest.raises(UserError, match=f"has texts with spans: give --data.format {format}"):
        read(tmp_path, "auto", {"text": "no span", "spans": [], "label": []}, record)
    other = "doccano" if format == "prodigy" else "prodigy"
    message = f"line 1: not a record of {other}: .* has the form of --data.format {format}"
    with pytest.raises(UserError, match=message):
        read(tmp_path, other, record)
    with pytest.raises(UserError, match=r"not a record of spacy: Object missing .*`ents`\. With"):
        read(tmp_path, "spacy", {"text": TEXT, "label": ["positive"]})


def test_records_without_an_accepted_annotation_are_left_out(tmp_path):
    prodigy = RECORDS[0][1]
    rejected = prodigy | {"answer": "reject"}
    data = read(tmp_path, "prodigy", prodigy, rejected, {"text": "x", "answer": "accept"})
    assert data.tokens == (WORDS, ("x",))
    assert data.notices[0].endswith("first: " + f"{tmp_path}/a.jsonl, line 2: the answer is reject")
    cancelled = task(result(*TRIPLES[0]), was_cancelled=True)
    data = read(tmp_path, "label-studio", cancelled, LABELED | {"annotations": []}, LABELED)
    assert (len(data), data.lines) == (1, (3,))
    assert "skipped 2 of the sentences" in data.notices[0]
    assert len(list(read_words(tmp_path / "a.jsonl", TaggedConfig(format="label-studio")))) == 3


@pytest.mark.parametrize(
    ("format", "record", "message"),
    [
        ("prodigy", {"text": TEXT}, "no field 'spans'"),
        ("prodigy", {"text": " ", "spans": []}, "the text is empty"),
        ("prodigy", {"text": TEXT, "spans": [], "_is_binary": True}, "is an answer about one span"),
        ("prodigy", {"spans": []}, r"no text in the field 'text' \(--data.token-column\)"),
        ("prodigy", {"text": TEXT, "spans": [{"start": 0}]}, r"missing .*`end` - at `\$.spans"),
        ("spacy", {"text": TEXT, "ents": [], "spans": {"sc": OBJECTS}}, r"has spans \(sc\)"),
        ("label-studio", {"text": TEXT, "label": [], "annotation_id": 1}, "is of .* JSON-MIN"),
        ("doccano", {"text": TEXT, "label": ["positive"]}, r"got `str` - at `\$\[0\]`"),
        ("doccano", {"text": TEXT, "label": [], "labels": []}, "one of the fields label, labels"),
        (
            "label-studio",
            LABELED | {"annotations": LABELED["annotations"] * 2},
            "has 2 annotations",
        ),
        ("label-studio", task(result(0, 3, "A", labels=["A", "B"])), "span 0 to 3 has 2 labels"),
        ("label-studio", task(result(0, 3, "A", text="na ")), "'Ana', is 'na ' in the file"),
    ],
)
def test_bad_records_are_named_or_left_out(tmp_path, format, record, message):
    with pytest.raises(UserError, match=rf"a.jsonl, line 2: .*{message}"):
        read(tmp_path, format, dict(RECORDS)[format], record)
    first = next(record for name, record in RECORDS if name == format)
    assert len(read(tmp_path, format, first, record, on_bad="skip")) == 1


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 33, "A")], r"span 0 to 33 \(A\) is outside the text of 32 characters"),
        ([(-1, 3, "A")], "outside"),
        ([(4, 4, "A")], "outside"),
        ([(0, 2, "A")], r"span 0 to 2 \(A\), 'An', cuts the word 'Ana'"),
        ([(6, 20, "A"), (0, 11, "B")], r"span 6 to 20 \(A\), 'Neill left St\.', overlaps"),
        ([(18, 27, "A")], r"'t\. Gallen', cuts the word 'St'"),
        ([(12, 18, "A")], r"'left S', cuts the word 'St'"),
        ([(3, 4, "A")], "span 3 to 4 .* has no word"),
        ([(0, 3, " ")], "'Ana', has no label"),
    ],
)
def test_spans_that_do_not_fit_the_words_are_errors(spans, message):
    with pytest.raises(UserError, match=message):
        tag_words(TEXT, [Span(*span) for span in spans])


def test_white_space_at_the_edge_of_a_span_cuts_no_word():
    assert tag_words("in  Oslo now", [Span(2, 9, "GPE")])[1] == ["O", "B-GPE", "O"]


def test_text_in_another_field(tmp_path):
    record = {"data": {"title": "x"}} | {"annotations": [{"result": [result(0, 1, "A")]}]}
    with pytest.raises(UserError, match=r"no text in the field 'text' .*the fields are 'title'"):
        read(tmp_path, "label-studio", record)
    data = read(tmp_path, "label-studio", record, token_column="title")
    assert (data.tokens, data.tags) == ((("x",),), (("B-A",),))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("Ana left,0,2,PER", "line 2: span 0 to 2 .* cuts the word 'Ana'"),
        ("Ana left,0,x,PER", "line 2: expected a number, got 'x'"),
        ("Ana left,0,2.5,PER", "line 2: expected numbers of characters, got 0 and 2.5"),
        (",,,", "line 2: the text is empty"),
        ("Ana left,,3,PER", "line 2: expected a number, got ''"),
    ],
)
def test_bad_rows_of_a_table_of_spans_are_named(tmp_path, row, message):
    path = tmp_path / "a.csv"
    path.write_text(f"text,start,end,label\n{row}\nin Oslo,3,7,GPE\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"a.csv, {message}"):
        read_tagged(path, TaggedConfig())
    data = read_tagged(path, TaggedConfig(on_bad="skip"))
    assert (data.tokens, data.tags) == ((("in", "Oslo"),), (("O", "B-GPE"),))
    path.write_text("text,label\nin Oslo,GPE\n", encoding="utf-8")
    with pytest.raises(UserError, match="no column 'start'; the columns are 'text', 'label'"):
        read_tagged(path, TaggedConfig())
    (tmp_path / "a.tsv").write_text("text\tstart\tend\tlabel\nin Oslo\t3\t7\tGPE\n")
    with pytest.raises(UserError, match=r"a.tsv: has texts with spans: give --data.format spans"):
        read_tagged(tmp_path / "a.tsv", TaggedConfig())
    (tmp_path / "a.spacy").write_bytes(b"x\x9c")
    with pytest.raises(UserError, match=r"a.spacy: is binary: docs/formats.md"):
        read_tagged(tmp_path / "a.spacy", TaggedConfig(format="spacy"))


def test_texts_of_a_table_with_a_column_of_sentences_are_all_inputs(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sentence,text\n1,Ana left.\n1,in Oslo\n1,in Oslo\n2,bye\n", encoding="utf-8")
    cells = read_words(path, TaggedConfig())
    assert [cell.value for cell in cells] == ["Ana left.", "in Oslo", "bye"]


def test_spans_of_a_csv_count_the_characters_of_its_line_ends(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,start,end,label\r\n"in\r\nOslo",4,8,GPE\r\n')
    assert read_tagged(path, TaggedConfig()).tags == (("O", "B-GPE"),)
    assert [cell.value for cell in read_words(path, TaggedConfig())] == ["in\r\nOslo"]
