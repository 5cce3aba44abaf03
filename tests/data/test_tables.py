"""Tables: every format, columns by name and number, and errors that name file and row."""

import bz2
import gzip
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from regard.data.bad_rows import BadRows
from regard.data.config import Tables
from regard.data.tables import as_text, is_table, locate, read_column, read_lines, read_table
from regard.errors import UserError


def read(tmp_path, name, content, columns=("text", "label"), *, on_bad="error", **options):
    """Return the rows of a file, and the messages about those left out."""
    bad_rows = BadRows(on_bad)
    (tmp_path / name).write_bytes(content)
    config = Tables(header=options.pop("header", "auto"))
    table = read_table(tmp_path / name, columns, config, bad_rows=bad_rows, **options)
    return list(table), [message.rpartition("/")[2] for message in bad_rows.skipped]


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


CSV = b'\xef\xbb\xbftext, label \r\n"a, ""b""",x\r\n\r\n"c\nd",y\r\n'
TSV = b'"a\tx\r\n\xc3\xa4\rb\ty\n'
JSONL = b'{"text": {"en": "a"}, "label": 1}\n\n{"label": "y", "text": {"en": "c"}}'


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.csv", CSV, ("text", "label"), [(2, ['a, "b"', "x"]), (4, ["c\nd", "y"])]),
        ("a.csv", CSV, (2, "text"), [(2, ["x", 'a, "b"']), (4, ["y", "c\nd"])]),
        ("a.csv", b'text;label\n"a, b";x\n', ("text", "label"), [(2, ["a, b", "x"])]),
        ("a.csv", b"text,label\na;b,x\n", ("text", "label"), [(2, ["a;b", "x"])]),
        ("a.tsv", TSV, (1, 2), [(1, ['"a', "x"]), (2, ["\xe4\rb", "y"])]),
        ("a.txt", b"label\ttext\nx\ta\n", ("text", "label"), [(2, ["a", "x"])]),
        ("a.jsonl", JSONL, ("text.en", "label"), [(1, ["a", 1]), (3, ["c", "y"])]),
        ("a.json", b'\n[{"t": "a"},\n{"t": null}]\n', ("t",), [(1, ["a"]), (2, [None])]),
    ],
)
def test_formats(tmp_path, name, content, columns, expected):
    forms = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd}
    for suffix, compress in forms.items():
        rows, skipped = read(tmp_path, name + suffix, compress(content), columns)
        assert (rows, skipped) == (expected, [])


def test_parquet(tmp_path):
    table = pa.table({"text": [{"en": "a"}, {"en": "b"}], "label": [[1, 2], []]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = read_table(tmp_path / "a.parquet", ("text.en", 2), bad_rows=BadRows("error"))
    assert list(found.names) == ["text.en", "label"]
    assert list(found) == [(1, ["a", [1, 2]]), (2, ["b", []])]
    assert locate(found.path, 2).endswith("a.parquet, row 2")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"id,label,text\n1,x,a\n", ["a", "x"]),
        ("a.csv", b"review,stars\na,x\n", ["a", "x"]),
        ("a.tsv", b"a\tx\t1\n", ["a", "x"]),
    ],
)
def test_usual_names_else_the_first_columns(tmp_path, name, content, expected):
    ((_, cells),), _ = read(tmp_path, name, content, by_position=True)
    assert cells == expected


def test_a_header_that_is_not_stated_is_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\ttext\tlabel\n1\tgood\tup\n")
    table = read_table(path, ("text", "label"), by_position=True, bad_rows=BadRows("skip"))
    with pytest.raises(UserError, match=r"the first line has 'text' and 'label': give --data.head"):
        list(table)
    options = {"by_position": True, "bad_rows": BadRows("error")}
    config = Tables(header="yes")
    assert list(read_table(path, ("text", "label"), config, **options)) == [(2, ["good", "up"])]
    config = Tables(header="no")
    assert len(list(read_table(path, ("text", "label"), config, **options))) == 2


def test_header_is_an_option(tmp_path):
    assert read(tmp_path, "a.csv", b"b,a\n", (2, 1), header="no")[0] == [(1, ["a", "b"])]
    assert read(tmp_path, "a.tsv", b"label\ttext\nx\ta\n", header="yes")[0] == [(2, ["a", "x"])]


def test_optional_columns(tmp_path):
    rows, _ = read(tmp_path, "a.csv", b"y,text\n1,a\n", ("text",), optional=("x", "y"))
    assert rows == [(2, ["a", None, "1"])]
    rows, _ = read(tmp_path, "a.jsonl", b'{"text": "a", "y": 1}', ("text",), optional=("x", "y"))
    assert rows == [(1, ["a", None, 1])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\na,b\nc\n", r"a\.csv, line 3: expected 2 cells, got 1 \('c'\)"),
        ("a.csv", b"text,label\na,b,c\n", r"line 2: expected 2 cells, got 3"),
        ("a.csv", b"a\tb\n1\t2\n", r"a\.csv: no column 'text'; the columns are 'a\\tb'"),
        ("a.csv", b"text,text,label\n", r"several columns 'text'"),
        ("a.csv", b"", r"a\.csv: is empty, expected a header"),
        ("a.csv", b'text,label\n"a,b\n', r"a\.csv, line 2: not a row of CSV"),
        ("a.csv", b"text,label\na,\xff\n", r"a\.csv, line 2: not UTF-8: .* 0xff.*encoding cp1252"),
        ("a.csv.gz", gzip.compress(CSV, mtime=0)[:-9], r"a\.csv\.gz: damaged: .* ended before"),
        ("a.jsonl", b'{"text": "a"}', r"a\.jsonl, line 1: no field 'label'; the fields are 'text'"),
        ("a.jsonl", b"\n{", r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b"[1]", r"a\.jsonl, line 1: no field 'text'"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a Parquet file"),
        ("a.xlsx", b"", r"a\.xlsx: expected a file of the type \.csv, "),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, name, content)


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", b"\t"), ("a.csv", b",")])
def test_bad_rows_are_left_out_and_counted(tmp_path, name, separator):
    content = b"a,x\nb\n\xff,x\n\xed\xa0\x80,x\nc,y\n".replace(b",", separator)
    rows, skipped = read(tmp_path, name, content, (1, 2), on_bad="skip", header="no")
    assert rows == [(1, ["a", "x"]), (5, ["c", "y"])]
    found = [message.partition(":")[0] for message in skipped]
    assert found == [f"{name}, line {number}" for number in (2, 3, 4)]
    reading = read_column(tmp_path / name, "source", None, Tables(header="no"))
    rows = [(cell.line, cell.columns) for cell in reading if not cell.problem]
    assert rows[1:] == [(5, {"source": "c", "2": "y"})]


def test_a_row_of_several_lines_that_is_not_utf_8_is_left_out_whole(tmp_path):
    content = b'text,label\n"a\n\xff\nb",x\nc,y\n'
    rows, skipped = read(tmp_path, "a.csv", content, on_bad="skip")
    assert (rows, len(skipped)) == ([(5, ["c", "y"])], 1)
    assert "a.csv, line 2: not UTF-8" in skipped[0]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_texts_may_have_a_million_characters(tmp_path, name):
    text = "good " * 200_001
    line = json.dumps({"text": text, "label": "x"})
    separator = "," if name == "a.csv" else "\t"
    table = f"text{separator}label\n{text}{separator}x\n"
    content = line if name == "a.jsonl" else table
    assert read(tmp_path, name, content.encode())[0][0][1] == [text, "x"]


@pytest.mark.parametrize("name", [".tsv", ".TSV.gz"])
def test_a_name_that_is_only_a_suffix_is_one(tmp_path, name):
    content = gzip.compress(b"a\tx\n") if name.endswith("gz") else b"a\tx\n"
    assert read(tmp_path, name, content, (1, 2))[0] == [(1, ["a", "x"])]
    assert is_table(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json"])
def test_utf_16_is_refused_even_where_bad_rows_are_skipped(tmp_path, name, encoding):
    (tmp_path / name).write_text("[one\ttwo\n" * 3, encoding=encoding)
    with pytest.raises(UserError, match=f"{name}: is UTF-16, expected UTF-8"):
        list(read_table(tmp_path / name, [1, 2], bad_rows=BadRows("skip")))


def test_byte_order_mark_is_removed_at_the_start_only(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb")
    assert list(read_lines(tmp_path / "a.txt")) == [b"a", b"\xef\xbb\xbfb"]


@pytest.mark.parametrize("value", [1, 2.5, True, ["a", 1]])
def test_cells_as_text(value):
    assert json.loads(as_text(value)) == value
    assert (as_text("a"), as_text(None)) == ("a", "")
