"""Table of the lectures: every row leads to a formula, code, a command and tests that exist."""

import pytest

from docs.gallery.maps import MAPS
from regard.cli.main import main
from tests.lectures.table import ROOT, TABLE, Row, page, problems, read_rows, use_problem

ROWS = read_rows()
ROW = Row(
    "1",
    "000",
    "Attention layer",
    "A read",
    "A.2",
    "attention/attend.py:attend",
    "regard train dates --model.core recurrent",
    "attention/test_attend.py::test_attend_reads_by_hand",
)


def test_page_is_that_of_the_rows():
    assert TABLE.read_text(encoding="utf-8") == page(ROWS), "run `python -m tests.lectures.table`"


def test_all_that_a_row_names_exists():
    assert [(row.number, problem) for row in ROWS for problem in problems(row)] == []


def test_every_statement_has_a_row():
    assert [int(row.number) for row in ROWS] == list(range(1, 161))
    assert {row.deck for row in ROWS} == {f"{deck:03}" for deck in range(5)}


def test_commands_of_the_picture_of_maps_parse():
    commands = "\n".join(line for _, _, lines, _ in MAPS for line in lines)
    uses = commands.replace("\n    ", " ").split("\n")
    assert len(uses) == 12
    assert [use_problem(use) for use in uses] == [None] * 12


def test_defaults_that_differ_are_those_of_the_recipes(capsys):
    def config(words: str) -> str:
        assert main(["train", *words.split(), "--print-config"]) == 0
        return capsys.readouterr().out

    text = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
    section = text.partition("## Defaults that differ")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[3:6]] for line in section.splitlines()]
    rows = [row for row in rows if row and row[-1].startswith("--")]
    assert len(rows) == 14
    for recipe, default, options in rows:
        if default.startswith("--"):
            assert config(f"{recipe} {default}") == config(recipe), default
        assert config(f"{recipe} {options}") != config(recipe), options


def test_example_has_no_problem():
    assert problems(ROW) == []


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("key", "A.99", r"docs/lectures.md has no A.99"),
        ("code", "attention/attended.py:attend", "regard/attention/attended.py does not exist"),
        (
            "code",
            "attention/attend.py:attended",
            "regard/attention/attend.py does not define attended",
        ),
        (
            "code",
            "layers/multihead.py:MultiHead.read_itself",
            "does not define MultiHead.read_itself",
        ),
        (
            "tests",
            "attention/test_attended.py::test_a",
            "tests/attention/test_attended.py does not exist",
        ),
        ("tests", "attention/test_attend.py::test_attend_reads", "has no test test_attend_reads"),
        ("use", "regard train dates --model.core recurent", "recurent"),
        ("use", "regard train dates --model.core.hidden 8", "hidden"),
        ("use", "regard train date", "unknown recipe 'date'"),
        ("use", "regard look runs/dates --view chords", "chords"),
        ("use", "regard predict runs/language x --decode.beam 5", "decode.beam"),
        ("use", "regard forget", "unknown command 'forget'"),
        ("use", "python benchmarks/multi31k.py", "benchmarks/multi31k.py does not exist"),
        ("use", "regard.attended(q, (k, v))", "regard has no attended"),
        ("use", "regard.attend(q, (k, v)", "was never closed"),
    ],
)
def test_what_does_not_exist_is_named(column, value, problem):
    (found,) = problems(ROW._replace(**{column: value}))
    assert problem in found


def test_lines_with_another_number_of_columns_are_refused(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("\t".join(Row._fields) + "\n" + "\t".join(ROW[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"table.tsv:2: a line must have 8 columns"):
        read_rows(path)
