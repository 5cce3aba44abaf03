"""How the files are laid out: sizes, names, exports. Docstrings and imports are for ruff to check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "regard").rglob("*.py"))
FOLDERS = [ROOT / name for name in ("regard", "tests", "benchmarks", "docs")]
EVERYTHING = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
MODULES = [path for path in PACKAGE if path.name not in ("__init__.py", "__main__.py")]
ROOMS = [path for path in PACKAGE if path.name == "__init__.py" and path.parent != ROOT / "regard"]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
NAMELESS = {"utils.py", "util.py", "misc.py", "common.py", "helpers.py", "tools.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(tree: ast.Module) -> set[str]:
    """The names that a module defines or imports at its top level."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                parts = [part for target in targets for part in ast.walk(target)]
                names.update(part.id for part in parts if isinstance(part, ast.Name))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
    return names


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with its number of lines, its decorators left out."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{name_of(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def test_package_is_found() -> None:
    assert len(MODULES) > 10
    assert len(ROOMS) > 5


def test_files_hold_one_idea() -> None:
    lines = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in PACKAGE}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    lines = dict(found for path in EVERYTHING for found in functions(path))
    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def test_files_are_named_for_what_they_hold() -> None:
    assert [name_of(path) for path in PACKAGE if path.name in NAMELESS] == []


def test_source_is_ascii() -> None:
    assert [name_of(path) for path in PACKAGE if not path.read_bytes().isascii()] == []


@pytest.mark.parametrize("path", ROOMS, ids=name_of)
def test_room_says_what_it_holds_and_no_more(path: Path) -> None:
    (only,) = parse(path).body
    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)
    assert isinstance(only.value.value, str)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_exports_what_it_defines(path: Path) -> None:
    tree = parse(path)
    names = exports(tree)
    assert names is not None, "no `__all__`"
    assert set(names) - defined(tree) == set()
