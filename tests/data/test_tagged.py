"""Tables of tagged tokens: the same sentences in every form."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from regard.data.config import TaggedConfig
from regard.data.text.tagged import read_tagged, read_words
from regard.errors import UserError

SENTENCES = ((("we", "met,", "'x'"), ("O", "O", "B-DAY")), (("5",), ("O",)))
LISTS = [
    {"tokens": ["we", "met,", "'x'"], "tags": ["O", "O", "B-DAY"]},
    {"tokens": ["5"], "tags": ["O"]},
]
FORMS = {
    "plain.conll": "we O\nmet, O\n'x' B-DAY\n\n5 O\n",
    "many.tsv": "we\tPRP\tO\nmet,\tV\tO\n'x'\tN\tB-DAY\n\n5\tN\tO\n",
    "blank.csv": "token,tag\nwe,O\n\"met,\",O\n'x',B-DAY\n\n5,O\n",
    "names.csv": "tag,token,sentence\nO,we,1\nO,\"met,\",1\nB-DAY,'x',\nO,5,2\n",
    "array.json": json.dumps(LISTS),
    "lines.jsonl": "\n".join(map(json.dumps, LISTS)),
    "words.conllu": "# sent_id = a\n1\twe\t_\tO\t_\n2\tmet,\t_\tO\t_\n3\t'x'\t_\tB-DAY\t_\n"
    "\n1\t5\t_\tO\t_\n",
}


def read(tmp_path, content, name="a.csv", **settings):
    (tmp_path / name).write_text(content, encoding="utf-8")
    data = read_tagged(tmp_path / name, TaggedConfig(**settings))
    return tuple(zip(data.tokens, data.tags, strict=True)), data


@pytest.mark.parametrize("name", FORMS)
def test_same_sentences_are_read_from_every_form(tmp_path, name):
    assert read(tmp_path, FORMS[name], name)[0] == SENTENCES


def test_lists_of_a_parquet_file(tmp_path):
    parquet.write_table(pa.Table.from_pylist(LISTS), tmp_path / "a.parquet")
    data = read_tagged(tmp_path / "a.parquet", TaggedConfig())
    assert tuple(zip(data.tokens, data.tags, strict=True)) == SENTENCES


def test_words_of_conllu_are_the_rows_with_an_integer(tmp_path):
    ids = ["1-2", "1", "2", "2.1", "3"]
    rows = "".join(f"{number}\tw{number}\t_\tT{number}\t_\n" for number in ids)
    for columns in ({}, {"token_column": 2, "tag_column": 4}):
        data = read(tmp_path, rows, "a.conllu", **columns)[0]
        assert data == ((("w1", "w2", "w3"), ("T1", "T2", "T3")),)
    (cell,) = read_words(tmp_path / "a.conllu", TaggedConfig())
    assert cell.value == ["w1", "w2", "w3"]


def test_integers_are_names_of_tags(tmp_path):
    content = '{"tokens": ["we", "met"], "ner_tags": [0, 12]}\n'
    data = read(tmp_path, content, "a.jsonl", tag_column="ner_tags")[0]
    assert data == ((("we", "met"), ("0", "12")),)


def test_columns_and_header_by_settings(tmp_path):
    table = "a\tb\tc\nx\tB\tO\n"
    expected = {
        (): ((("a", "x"), ("c", "O")),),
        (("header", "yes"),): ((("x",), ("O",)),),
        (("header", "yes"), ("tag_column", 2)): ((("x",), ("B",)),),
        (("token_column", "c"), ("tag_column", "a")): ((("O",), ("x",)),),
    }
    for settings, sentences in expected.items():
        assert read(tmp_path, table, "a.tsv", **dict(settings))[0] == sentences
    with pytest.raises(UserError, match=r"a.tsv: no column 'd'; the columns are 'a', 'b', 'c'"):
        read(tmp_path, table, "a.tsv", tag_column="d")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "token,tag\nx,O\ny,\n", r"line 3: expected a token and its tag"),
        ("a.conll", "x\tO\n\ny\n", r"line 3: expected a token and its tag, got 'y'"),
        ("a.jsonl", '{"tokens": ["x"], "tags": ["O"]}\n{"tokens": ["y"]}\n', "line 2: no field 't"),
        (
            "a.jsonl",
            '{"tokens": ["x"], "tags": ["O"]}\n{"tokens": ["x"], "tags": []}\n',
            "line 2: exp",
        ),
    ],
)
def test_bad_rows_are_named_or_left_out(tmp_path, name, content, message):
    with pytest.raises(UserError, match=rf"{name}, {message}"):
        read(tmp_path, content, name)
    sentences, data = read(tmp_path, content, name, on_bad="skip")
    assert (sentences, len(data.notices)) == (((("x",), ("O",)),), 1)


def test_line_ends_in_cells_of_a_csv_split_no_sentence(tmp_path):
    content = 'token,tag,note\n"we\nall",O,\n"met\r\n",O,"a\n\nb"\n\n5,O,\nx,B,"\n"\n'
    expected = (("we\nall", "met\r\n"), ("O", "O")), (("5", "x"), ("O", "B"))
    data = read(tmp_path, content)
    assert (data[0], data[1].lines) == (expected, (2, 9))
    words = [tuple(cell.value) for cell in read_words(tmp_path / "a.csv", TaggedConfig())]
    assert words == [tokens for tokens, _ in expected]


def test_words_without_tags_and_lines_that_are_not_text(tmp_path):
    (tmp_path / "a.conll").write_bytes(b"we\nmet\n\n\xff\n\n5\n")
    found = list(read_words(tmp_path / "a.conll", TaggedConfig()))
    lines = [(cell.line, cell.value) for cell in found]
    assert lines == [(1, ["we", "met"]), (None, []), (6, ["5"])]
    assert "a.conll, line 4: not UTF-8" in found[1].problem


def test_comments_before_sentences_and_marks_of_documents_are_skipped(tmp_path):
    content = "-DOCSTART-\n\n# id = 1\n# text = x y\nx\tO\n#\tB\n\n# O\ny O\n\n-DOCSTART- -X- O\n"
    sentences = (("x", "#"), ("O", "B")), (("#", "y"), ("O", "O"))
    assert read(tmp_path, content, "a.conll")[0] == sentences
    words = [cell.value for cell in read_words(tmp_path / "a.conll", TaggedConfig())]
    assert words == [["x", "#"], ["#", "y"]]
    # A comment may have as many columns as the rows.
    content = "# id = 1\nx NN I O\n\n# NN I B\ny NN I O\n"
    assert read(tmp_path, content, "a.conll")[0] == ((("x",), ("O",)), (("#", "y"), ("B", "O")))
