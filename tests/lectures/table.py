"""Table of the lectures: from each statement to its formula, the code, a use and the tests.

    python -m tests.lectures.table      checks docs/lectures.tsv and writes docs/lectures-table.md

A line of the file is a statement: its number, deck and heading, the statement in our words, the key
of its formula in docs/lectures.md, and, separated by "; ",

    code    FILE:NAME below regard/, where NAME is defined: a function, class, method, or constant
    use     a command (`regard ...`, with runs/RECIPE as the run; `python FILE`), several with
            ` && ` between them, or an expression
    tests   FILE::FUNCTION below tests/

`problems` names whatever does not exist, and commands that do not parse. Torch is not imported.
"""

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from regard.cli import bench, evaluate, look, predict, train
from regard.errors import UserError
from regard.lab.registry import module_of
from regard.recipes.registry import get_entry
from regard.settings.help import HelpShown
from regard.settings.options import NoSettings, parse

ROOT = Path(__file__).parents[2]
SOURCE, TABLE = ROOT / "docs" / "lectures.tsv", ROOT / "docs" / "lectures-table.md"
OPTIONS = {
    "predict": predict.PredictOptions,
    "look": look.LookOptions,
    "evaluate": evaluate.EvaluateOptions,
    "bench": bench.BenchOptions,
}
"""Options of the commands that use a run."""

_HEAD = """# Table of the lectures

Each statement of the decks, with the key of its formula in [the lectures](lectures.md), the code
that computes it, how to use it, and the tests. In commands, `runs/translate` is a run of the recipe
`translate`, and so on; in Python, `q`, `k`, `v` and `x` are tensors.

This page is written from [lectures.tsv](lectures.tsv) by `python -m tests.lectures.table`. A test
fails if a test, a name in the code or an option of a command does not exist.
"""


class Row(NamedTuple):
    """Statement of a deck."""

    number: str
    deck: str
    heading: str
    statement: str
    key: str
    code: str
    use: str
    tests: str


def read_rows(path: Path = SOURCE) -> list[Row]:
    """Return the rows of the file, without its header.

    Raises: ValueError for a line with another number of columns, or another header.
    """
    header, *lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    if tuple(header) != Row._fields:
        raise ValueError(
            f"{path}:1: the columns must be {', '.join(Row._fields)}, got {', '.join(header)}"
        )
    for number, cells in enumerate(lines, start=2):
        if len(cells) != len(Row._fields) or not all(cells):
            raise ValueError(
                f"{path}:{number}: a line must have {len(Row._fields)} columns with text, got "
                f"{cells}"
            )
    return [Row(*cells) for cells in lines]


def problems(row: Row) -> list[str]:
    """Return what a row names that does not exist, and commands that do not parse."""
    found = []
    if row.key not in keys():
        found.append(f"docs/lectures.md has no {row.key}")
    for place in row.code.split("; "):
        file, _, name = place.partition(":")
        if not (ROOT / "regard" / file).is_file():
            found.append(f"regard/{file} does not exist")
        elif name and name not in names_in(ROOT / "regard" / file):
            found.append(f"regard/{file} does not define {name}")
    for test in row.tests.split("; "):
        file, _, name = test.partition("::")
        if not (ROOT / "tests" / file).is_file():
            found.append(f"tests/{file} does not exist")
        elif not name.startswith("test_") or name not in names_in(ROOT / "tests" / file):
            found.append(f"tests/{file} has no test {name}")
    problem = use_problem(row.use)
    return [*found, *([problem] if problem else [])]


@cache
def keys() -> frozenset[str]:
    """Return the keys of the formulas."""
    return frozenset(
        re.findall(
            r'<a id="([A-Z]\.\d+)"', (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
        )
    )


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the functions, classes, constants and CLASS.METHOD that a file defines."""

    def names(body: Sequence[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in names(node.body))
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            yield from (target.id for target in targets if isinstance(target, ast.Name))

    return frozenset(names(ast.parse(path.read_text(encoding="utf-8")).body))


def use_problem(use: str) -> str | None:
    """Return why a command or an expression cannot be run, as far as known without running."""
    if use.startswith("python "):
        file = use.split()[1]
        return None if (ROOT / file).is_file() else f"{file} does not exist"
    if not use.startswith("regard "):
        return _expression_problem(use)
    try:
        for part in use.split(" && "):
            _parse_command(shlex.split(part)[1:])
    except UserError as error:
        return f"`{use}`: {error}"
    return None


def _expression_problem(use: str) -> str | None:
    stub = (ROOT / "regard" / "__init__.pyi").read_text(encoding="utf-8")
    public = set(re.findall(r" as (\w+)$", stub, re.MULTILINE))
    try:
        tree = ast.parse(use, mode="eval")
    except SyntaxError as error:
        return f"`{use}`: {error.msg}"
    named = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "regard"
    }
    missing = sorted(named - public)
    return f"`{use}`: regard has no {', '.join(missing)}" if missing or not named else None


def _parse_command(argv: Sequence[str]) -> None:
    """Parse a command without running it. Raises: UserError as the command itself does."""
    command, *rest = argv
    if command == "train":
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(HelpShown):
            train.run([*rest, "--print-config"])
        return
    if command == "lab":
        for name in rest:
            module_of(name)
        return
    if command not in OPTIONS:
        if rest or not (ROOT / "regard" / "cli" / f"{command}.py").is_file():
            raise UserError(f"unknown command {command!r}")
        return
    entry = get_entry(Path(rest[0]).name)
    config = entry.config() if command == "predict" else NoSettings()
    parse(rest, OPTIONS[command](), config, max_positionals=9)


def page(rows: Sequence[Row]) -> str:
    """Return the page of the table."""
    lines = [_HEAD]
    for deck in sorted({row.deck for row in rows}):
        lines += [
            f"## Deck {deck}",
            "",
            "| | heading | statement | key | code | use | tests |",
            "|-|-|-|-|-|-|-|",
        ]
        lines += [_line(row) for row in rows if row.deck == deck]
        lines.append("")
    return "\n".join(lines)


def _line(row: Row) -> str:
    code = "<br>".join(_link(place, "regard", ":") for place in row.code.split("; "))
    tests = "<br>".join(_link(test, "tests", "::") for test in row.tests.split("; "))
    cells = (
        row.number,
        row.heading,
        row.statement.replace("|", "\\|"),
        f"[{row.key}](lectures.md#{row.key})",
        code,
    )
    return f"| {' | '.join(cells)} | `{row.use}` | {tests} |"


def _link(place: str, folder: str, separator: str) -> str:
    file, _, name = place.partition(separator)
    return f"[{name or file}](../{folder}/{file})"


if __name__ == "__main__":
    table = read_rows()
    for each in table:
        for text in problems(each):
            print(f"{each.number}: {text}")
    TABLE.write_text(page(table), encoding="utf-8")
