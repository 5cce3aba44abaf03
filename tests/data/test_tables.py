"""CSV: cells by column, or a sentence with the line."""

import gzip

import pytest

from regard.data.tables import read_table
from regard.errors import UserError

HEAD = b"file,label\n"


def rows(tmp_path, content, name="a.csv"):
    (tmp_path / name).write_bytes(content)
    return [
        (where.rsplit(" ", 1)[-1], *cells.values()) for where, cells in read_table(tmp_path / name, ("file", "label"))
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_rows_come_with_the_line_that_they_begin_in(tmp_path, end):
    content = end.join([b"\xef\xbb\xbfFile , LABEL", b'a,"x, y"', b"", b'b,"one', b'two"', "c,\u00e4".encode(), b""])
    expected = [("2", "a", "x, y"), ("4", "b", "one\ntwo"), ("6", "c", "\u00e4")]
    assert rows(tmp_path, content) == expected
    assert rows(tmp_path, gzip.compress(content), "a.csv.gz") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,label,label\na,b,c\n", "line 1: the header names the column 'label' twice"),
        (HEAD + b"a,b\nc,gr\xfcn\n", r"line 3: not UTF-8: byte 0xfc at place 5 of the line"),
        (HEAD + b"a,b\rc,d\n", "line 2: holds a carriage return"),
        (HEAD.replace(b"\n", b"\r") + b"a,b\r", "line 1: holds a carriage return"),
        (HEAD + b"a,b\0\n", "line 2: holds a null character"),
        (HEAD + b"a,b\nc," + b"x" * 200_000 + b"\n", "line 3: no row of a CSV file .field larger"),
        (HEAD + b'a,"b\nc,d\n', "line 2: no row of a CSV file"),
        (HEAD + b'a,"b"x\n', "line 2: no row of a CSV file"),
        (HEAD + b"a\n", "line 2: expected 2 columns, got 1"),
        (b"\n", "line 1: expected a header"),
    ],
)
def test_bad_tables_are_named_by_line(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"a.csv, {message}"):
        rows(tmp_path, content)
