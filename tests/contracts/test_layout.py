"""Layout of the package: folders, names, exports. Ruff and lint-imports check the rest."""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.recipes.registry import NAMES
from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "regard").rglob("*.py"))
INITS = [path for path in PACKAGE if path.name == "__init__.py" and path.parent != ROOT / "regard"]
FAMILIES = {"biases", "choices", "masks", "memory", "scores"}
"""Folders of attention whose page exports the names of its modules."""

MAX_FILES = 15
VAGUE = {"utils.py", "util.py", "misc.py", "common.py", "helpers.py", "tools.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[ast.ImportFrom]:
    yield from (node for node in ast.walk(parse(path)) if isinstance(node, ast.ImportFrom))


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_package_is_found() -> None:
    assert len(PACKAGE) > 200
    assert len(INITS) > 30


def test_contracts_on_recipes_name_all_of_them() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    by_id = {contract["id"]: contract for contract in tools["importlinter"]["contracts"]}
    assert set(by_id["recipes"]["modules"]) == {f"regard.recipes.{name}" for name in NAMES}
    assert set(NAMES) in [set(layer.split(" | ")) for layer in by_id["recipe-layers"]["layers"]]


def test_files_that_begin_first_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


def test_folders_have_at_most_fifteen_files() -> None:
    counts = Counter(name_of(path.parent) for path in PACKAGE)
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_file_names_are_specific() -> None:
    vague = [path for path in PACKAGE if path.name in VAGUE or path.stem.endswith("_more")]
    assert vague == []


def test_source_is_ascii() -> None:
    assert [name_of(path) for path in PACKAGE if not path.read_bytes().isascii()] == []


@pytest.mark.parametrize("path", INITS, ids=name_of)
def test_init_has_a_docstring_and_exports_a_family_at_most(path: Path) -> None:
    docstring, *rest = parse(path).body
    assert is_docstring(docstring)
    if path.parent.name not in FAMILIES:
        assert rest == []
        return
    *imports, exports = rest
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    imported = [
        alias.name for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert isinstance(exports, ast.Assign)
    assert sorted(ast.literal_eval(exports.value)) == sorted(imported)


def test_private_names_stay_in_their_module() -> None:
    private = [
        f"{name_of(path)}:{node.lineno} {alias.name}"
        for path in PACKAGE
        for node in imports_of(path)
        if (node.module or "").split(".")[0] == "regard"
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert private == []


def test_class_names_are_unique() -> None:
    classes = Counter(
        node.name for path in PACKAGE for node in parse(path).body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []
