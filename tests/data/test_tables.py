"""CSV files: cells by column, and messages with the line."""

import gzip

import pytest

from regard.data.bad_rows import BadRow
from regard.data.text.rows import read_table
from regard.data.text.tables import read_rows
from regard.errors import UserError

HEAD = b"file,label\n"


def rows(tmp_path, content, name="a.csv", columns=("file", "label"), **options):
    (tmp_path / name).write_bytes(content)
    records = read_table(tmp_path / name, columns, **options)
    return [(number, *records.parse(row)) for number, row in records.rows]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_rows_have_the_number_of_their_first_line(tmp_path, end):
    content = end.join(
        [
            b"\xef\xbb\xbfFile , LABEL",
            b'a,"x, y"',
            b"",
            b'b,"one',
            b'two"',
            "c,\u00e4".encode(),
            b"",
        ]
    )
    expected = [(2, "a", "x, y"), (4, "b", "one\ntwo"), (6, "c", "\u00e4")]
    assert rows(tmp_path, content) == expected
    assert rows(tmp_path, gzip.compress(content), "a.csv.gz") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,label,label\na,b,c\n", "line 1: the header has the column 'label' twice"),
        (HEAD + b"a,b\nc,gr\xfcn\n", r"line 3: not UTF-8: byte 0xfc at position 5 of the line"),
        (HEAD + b"a,b\rc,d\n", "line 2: contains a carriage return"),
        (HEAD.replace(b"\n", b"\r") + b"a,b\r", "line 1: contains a carriage return"),
        (HEAD + b"a,b\0\n", "line 2: contains a null character"),
        (
            HEAD + b"a,b\nc," + b"x" * 200_000 + b"\n",
            "line 3: not a valid row of CSV .field larger",
        ),
        (HEAD + b'a,"b\nc,d\n', "line 2: not a valid row of CSV"),
        (HEAD + b'a,"b"x\n', "line 2: not a valid row of CSV"),
        (b"\n", "line 1: expected a header"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"a.csv, {message}"):
        rows(tmp_path, content)


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_separator_is_that_of_the_first_row_or_of_equal_rows(tmp_path, separator):
    names = ["file", "label", "a;b, c\td" if separator == "," else "other"]
    content = "\n".join(
        separator.join(f'"{cell}"' for cell in row) for row in (names, ["1", "x, y; z", "2"])
    )
    assert [row[1:3] for row in rows(tmp_path, content.encode())] == [("1", "x, y; z")]
    (tmp_path / "b.csv").write_text(
        f"1{separator}a, b\n2{separator}c\n".replace(", ", ", " if separator == ";" else " ")
    )
    result, pairs = read_rows(tmp_path / "b.csv")
    assert (result, [len(cells) for _, cells in pairs]) == (separator, [2, 2])


def test_file_with_two_possible_separators_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a, b;c\nd, e;f\n")
    with pytest.raises(
        UserError,
        match=r"a.csv: cannot determine whether commas or semicolons separate the cells; put",
    ):
        read_rows(tmp_path / "a.csv")


def test_rows_of_empty_cells_are_skipped(tmp_path):
    assert rows(tmp_path, HEAD + b"a,b\n,\n , \nc,d\n,,,\n") == [(2, "a", "b"), (5, "c", "d")]


def test_comma_is_the_decimal_point_where_semicolons_separate(tmp_path):
    content = b"file;x;label\na;1,5;b,c\nd;1,000,5;e\nf;2.5;g\n"
    cells = rows(tmp_path, content, columns=("file", "x", "label"), numeric=("x",))
    assert cells == [(2, "a", "1.5", "b,c"), (3, "d", "1,000,5", "e"), (4, "f", "2.5", "g")]
    content = b'file,x\na,"1,5"\n'
    assert rows(tmp_path, content, columns=("x|y",), numeric=("x",)) == [(2, "1,5", "")]
    with pytest.raises(UserError, match="expected a header with y or z, got 'file,x'"):
        rows(tmp_path, content, columns=("y|z",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", HEAD + b"a\n", r"expected 2 columns separated by ',', got 1 \('a'\)"),
        ("a.csv", HEAD + b"a,b,c\n", r"expected 2 columns separated by ',', got 3 \('a,b,c'\)"),
        ("a.tsv", b"file\tlabel\na\tb\tc\n", r"expected 2 columns separated by a tab, got 3"),
        ("a.tsv", b"file\tlabel\na\tgr\xfcn\n", "not UTF-8: byte 0xfc"),
        ("a.jsonl", b"x\n", "not valid JSON"),
        ("a.jsonl", b'{"label": "a"}\n', "no field 'file'"),
        (
            "a.jsonl",
            b'{"file": "a", "label": ["b"]}\n',
            "field 'label' must be a string or an integer or a number",
        ),
    ],
)
def test_bad_row_is_a_matter_of_policy(tmp_path, name, content, message):
    with pytest.raises(BadRow, match=message):
        rows(tmp_path, content, name)


def test_columns_are_selected_by_name_in_every_format(tmp_path):
    expected = [(2, "1.png", '"a'), (3, "2.png", "b")]
    assert rows(tmp_path, b'more\tLabel\tFile\nx\t"a\t1.png\ny\tb\t2.png\n', "a.tsv") == expected
    assert rows(tmp_path, b'more;Label;File\nx;"""a";1.png\ny;b;2.png;;\n') == expected
    lines = b'\n{"file": "1.png", "label": "\\"a", "more": [1]}\n{"label": "b", "file": "2.png"}\n'
    assert rows(tmp_path, lines, "a.jsonl") == expected
    assert rows(
        tmp_path, b'{"file": "1.png", "label": 3}\n{"file": "2.png", "label": null}', "a.ndjson"
    ) == [
        (1, "1.png", "3"),
        (2, "2.png", ""),
    ]


def test_commas_of_numbers_do_not_separate(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;1,5;2\nb;2;3,25\n;,5;1\n")
    assert [row for _, row in read_rows(path)[1]] == [
        ["a", "1,5", "2"],
        ["b", "2", "3,25"],
        ["", ",5", "1"],
    ]
    path.write_text("1,5;2,5\n3,5;4,5\n")
    assert [row for _, row in read_rows(path)[1]] == [["1,5", "2,5"], ["3,5", "4,5"]]


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_first_line_of_excel_states_the_separator(tmp_path, sign):
    content = f"sep={sign}\r\nfile{sign}label\r\na{sign}b\r\n".encode()
    assert rows(tmp_path, content) == [(3, "a", "b")]
    (tmp_path / "b.csv").write_bytes(
        f"sep={sign}\na{sign}b{sign}x,y;z\n".encode() if sign == "\t" else content
    )
    assert read_rows(tmp_path / "b.csv")[0] == sign
