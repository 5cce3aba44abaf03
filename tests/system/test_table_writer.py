"""Tables are written row by row, with the columns of the first row and types that stay."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from regard.errors import UserError
from regard.system import table_writer
from regard.system.table_writer import open_table_atomically

ROWS: list[dict[str, Any]] = [
    {"a": 'x, "y"\tz\n', "b": None, "c": [1, "d"]},
    {"a": 1732700000.25, "b": True, "other": 1},
    {"b": "\u00fc\r", "other": 2},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    with open_table_atomically(path, {"b": float}) as table:
        for row in rows:
            table.write(row)
            assert not path.exists()
    return path.read_bytes().decode("utf-8") if path.suffix != ".parquet" else ""


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".csv", 'a,b,c\n"x, ""y""\tz\n",,"[1, ""d""]"\n1732700000.25,true,\n,"\u00fc\r",\n'),
        (".tsv", 'a\tb\tc\nx, "y" z \t\t[1, "d"]\n1732700000.25\ttrue\t\n\t\u00fc \t\n'),
    ],
)
def test_columns_are_those_of_the_first_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, content: str
) -> None:
    assert write(tmp_path / f"a{suffix}", ROWS) == content
    notice = f"a{suffix}: the first row has no column 'other': it is left out"
    assert capsys.readouterr().err.count(notice) == 1


def test_lines_of_json_have_their_own_columns(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", ROWS).splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_types_of_parquet_are_those_of_the_first_group(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(table_writer, "_GROUP_ROWS", 2)
    path = tmp_path / "a.parquet"
    rows = [{"a": None, "b": None}] * 2 + [{"a": "x", "b": 1.5}]
    write(path, rows)
    assert parquet.read_table(path).to_pylist() == rows
    assert parquet.ParquetFile(path).num_row_groups == 2
    path.unlink()
    with pytest.raises(UserError, match=r"a.parquet: a column has values of several types"):
        write(path, [*rows, {"a": 5, "b": "x"}])
    assert list(tmp_path.iterdir()) == []
