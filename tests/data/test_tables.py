"""CSV files: cells by column, and messages with the line."""

import gzip

import pytest

from regard.data.text.tables import read_rows, read_table
from regard.errors import UserError

HEAD = b"file,label\n"


def rows(tmp_path, content, name="a.csv"):
    (tmp_path / name).write_bytes(content)
    return [
        (where.rsplit(" ", 1)[-1], *cells.values()) for where, cells in read_table(tmp_path / name, ("file", "label"))
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_rows_have_the_number_of_their_first_line(tmp_path, end):
    content = end.join([b"\xef\xbb\xbfFile , LABEL", b'a,"x, y"', b"", b'b,"one', b'two"', "c,\u00e4".encode(), b""])
    expected = [("2", "a", "x, y"), ("4", "b", "one\ntwo"), ("6", "c", "\u00e4")]
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
        (HEAD + b"a,b\nc," + b"x" * 200_000 + b"\n", "line 3: not a valid row of CSV .field larger"),
        (HEAD + b'a,"b\nc,d\n', "line 2: not a valid row of CSV"),
        (HEAD + b'a,"b"x\n', "line 2: not a valid row of CSV"),
        (HEAD + b"a\n", "line 2: expected 2 columns, got 1"),
        (b"\n", "line 1: expected a header"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"a.csv, {message}"):
        rows(tmp_path, content)


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_separator_is_that_of_the_first_row_or_of_equal_rows(tmp_path, separator):
    names = ["file", "label", "a;b, c\td" if separator == "," else "other"]
    content = "\n".join(separator.join(f'"{cell}"' for cell in row) for row in (names, ["1", "x, y; z", "2"]))
    assert [row[1:3] for row in rows(tmp_path, content.encode())] == [("1", "x, y; z")]
    (tmp_path / "b.csv").write_text(
        f"1{separator}a, b\n2{separator}c\n".replace(", ", ", " if separator == ";" else " ")
    )
    result, pairs = read_rows(tmp_path / "b.csv")
    assert (result, [len(cells) for _, cells in pairs]) == (separator, [2, 2])


def test_file_with_two_possible_separators_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a, b;c\nd, e;f\n")
    with pytest.raises(
        UserError, match=r"a.csv: cannot determine whether commas or semicolons separate the cells; put"
    ):
        read_rows(tmp_path / "a.csv")


def test_rows_of_empty_cells_are_skipped(tmp_path):
    assert rows(tmp_path, HEAD + b"a,b\n,\n , \nc,d\n,,,\n") == [("2", "a", "b"), ("5", "c", "d")]


def test_comma_is_the_decimal_point_where_semicolons_separate(tmp_path):
    content = "file;x;label\na;1,5;b,c\nd;1,000,5;e\nf;2.5;g\n"
    (tmp_path / "a.csv").write_text(content)
    cells_of_rows = [cells for _, cells in read_table(tmp_path / "a.csv", ("file", "x"), numeric=("x",))]
    assert [(cells["x"], cells["label"]) for cells in cells_of_rows] == [("1.5", "b,c"), ("1,000,5", "e"), ("2.5", "g")]
    (tmp_path / "a.csv").write_text('file,x\na,"1,5"\n')
    assert [cells["x"] for _, cells in read_table(tmp_path / "a.csv", ("x|y",), numeric=("x",))] == ["1,5"]
    with pytest.raises(UserError, match="expected a header with y or z, got 'file,x'"):
        list(read_table(tmp_path / "a.csv", ("y|z",)))
