"""Public names, and lazy imports: torch and optional packages are imported only when needed."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from regard.system.extras import EXTRAS

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "regard").glob("*/config.py")
)
WITHOUT_TORCH = ["regard", "regard.errors", "regard.cli.main", "regard.recipes.registry", *CONFIGS]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "regard").rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)


NAMES = {
    "pyyaml": "yaml",
    "pillow": "PIL",
    "faster-coco-eval": "faster_coco_eval",
    "prometheus-client": "prometheus_client",
}
BY_NAME = {"datasets", "onnx", "onnxruntime", "onnxscript", "pyarrow", "pypcd4", "trimesh"}
BY_NAME |= {"httptools", "sentencepiece", "tensorboard"}
"""Packages that are imported by functions of importlib, by torch or by uvicorn."""


def modules_after(code: str) -> set[str]:
    """Return the names of all modules that are loaded in a new interpreter after running `code`."""
    program = f"{code}\nimport sys\nprint('modules:', *sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("modules:")[2].split())


def packages_imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]


def import_names(requirements: list[str]) -> set[str]:
    names = [re.split(r"[^\w-]", line)[0] for line in requirements]
    return {NAMES.get(name, name) for name in names}


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", regard.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(regard, name) is not None


def test_public_names_are_the_documented_ones() -> None:
    documented = re.findall(r"^\| `(\w+)", text_of("docs/api.md"), re.MULTILINE)
    assert sorted(documented) == sorted(regard.__all__)


def test_dir_lists_the_public_names() -> None:
    assert set(dir(regard)) == set(regard.__all__)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'attned'.*attend"):
        importlib.import_module("regard").attned  # noqa: B018  # reading the attribute is the test


def test_stub_lists_each_name_once_and_is_read_whole() -> None:
    tree = ast.parse(text_of("regard/__init__.pyi"))
    names = [
        (line.module, name.name)
        for line in tree.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    ]
    assert sorted(names) == sorted((module, name) for name, module in regard._MODULES.items())
    assert {name for _, name in names} | {"__version__"} == set(regard.__all__)


def test_modules_and_commands_do_not_load_torch() -> None:
    lines = [f"import {module}" for module in WITHOUT_TORCH]
    for arguments in (["--help"], ["train", "dates", "--help"], ["recipes"]):
        lines.append(f"assert regard.cli.main.main({arguments}) == 0")
    checked = [f"{line}\nassert 'torch' not in sys.modules, {line!r}" for line in lines]
    modules_after("\n".join(["import sys", *checked]))


def test_dependencies_are_the_packages_that_are_imported() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = {name: import_names(lines) for name, lines in project["optional-dependencies"].items()}
    for package, extra in EXTRAS.items():
        assert package in extras[extra]
    declared = import_names(project["dependencies"]) | EXTRAS.keys()
    imported = {
        name for path in (ROOT / "regard").rglob("*.py") for name in packages_imported_by(path)
    }
    # triton comes with the builds of torch that have GPUs, mpl_toolkits with matplotlib, and
    # markupsafe with jinja2.
    others = {"regard", "triton", "mpl_toolkits", "markupsafe"}
    assert imported - sys.stdlib_module_names - others == declared - BY_NAME


def test_package_loads_no_test_tool_and_no_optional_package() -> None:
    loaded = modules_after("\n".join(f"import {module}" for module in MODULES))
    assert loaded & {"beartype", "hypothesis", "pytest", "datasets", "pyarrow"} == set()
