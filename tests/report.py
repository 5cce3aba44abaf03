"""Report of sizes and wording: figures to read, not limits.

    python -m tests.report

Prints files, lines and docstring shares by folder; the longest files and functions; functions that
are named by a bare participle, docstrings that begin with a relative clause, and class names that
occur twice. `make report` adds test coverage and the twenty slowest tests.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"^(What|Whether|Who|Whoever|Those|That|One that|Where|How|As) ")
# fmt: off
IRREGULAR = {
    "told",
    "said",
    "made",
    "kept",
    "found",
    "shown",
    "asked",
    "given",
    "seen",
    "held",
    "taken",
    "left",
    "drawn",
    "known",
    "put",
    "written",
    "chosen",
    "begun",
    "gone",
    "lost",
    "heard",
    "met",
    "spoken",
    "built",
    "sent",
    "spent",
}
# fmt: on
VERBS_IN_ED = {"embed", "feed", "seed", "need", "shared"}
LONGEST = 10


class File(NamedTuple):
    """A module of the package."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)


def read_package() -> list[File]:
    """Read all modules of the package."""
    paths = sorted((ROOT / "regard").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [
        File(str(p.relative_to(ROOT)), text, ast.parse(text))
        for p, text in zip(paths, texts, strict=True)
    ]


def functions_of(file: File) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods."""
    yield from (
        node for node in file.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def docstrings_of(file: File) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring."""
    for node in file.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text


def is_participle(name: str) -> bool:
    """Return True if a function's name is a bare participle, such as `_padded`."""
    bare = name.strip("_")
    return bare in IRREGULAR or (
        bare.endswith("ed") and "_" not in bare and bare not in VERBS_IN_ED
    )


def print_sizes(files: list[File]) -> None:
    """Print files, lines and share of docstrings of each folder."""
    folders: dict[str, list[File]] = defaultdict(list)
    for file in files:
        folders[str(Path(file.name).parent)].append(file)
    print(f"{'folder':36} {'files':>5} {'lines':>6} {'docs %':>6}")
    for folder, members in sorted(folders.items()):
        lines = sum(file.lines for file in members)
        documentation = sum(
            text.count("\n") + 1 for file in members for _, text in docstrings_of(file)
        )
        print(f"{folder:36} {len(members):5} {lines:6} {100 * documentation // max(lines, 1):6}")
    print(f"{'all':36} {len(files):5} {sum(file.lines for file in files):6}")


def print_longest(files: list[File]) -> None:
    """Print the longest files and functions."""
    print("\nlongest files")
    for file in sorted(files, key=lambda file: -file.lines)[:LONGEST]:
        print(f"  {file.lines:4} {file.name}")
    lengths = [
        ((node.end_lineno or 0) - node.lineno + 1, f"{file.name}:{node.lineno} {node.name}")
        for file in files
        for node in functions_of(file)
    ]
    print("\nlongest functions")
    for count, name in sorted(lengths, reverse=True)[:LONGEST]:
        print(f"  {count:4} {name}")


def print_wording(files: list[File]) -> None:
    """Print names and docstrings that are not written as the field writes them."""
    functions = [(file, node) for file in files for node in functions_of(file)]
    participles = [
        f"{file.name}:{node.lineno} {node.name}"
        for file, node in functions
        if is_participle(node.name)
    ]
    docstrings = [
        (f"{file.name}:{line}", text) for file in files for line, text in docstrings_of(file)
    ]
    relative = [
        f"{at} {text.splitlines()[0][:80]}" for at, text in docstrings if RELATIVE.match(text)
    ]
    classes = Counter(
        node.name for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)
    )
    twice = [name for name, count in classes.items() if count > 1]
    for title, rows, total in (
        ("functions named by a bare participle", participles, len(functions)),
        ("docstrings that begin with a relative clause", relative, len(docstrings)),
        ("class names that occur twice", twice, len(classes)),
    ):
        print(f"\n{title}: {len(rows)} of {total}")
        print("".join(f"  {row}\n" for row in rows), end="")


def main() -> None:
    files = read_package()
    print_sizes(files)
    print_longest(files)
    print_wording(files)


if __name__ == "__main__":
    main()
