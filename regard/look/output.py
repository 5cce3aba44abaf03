"""Checks of the paths that figures, pages and captures are written to. (no matplotlib)"""

import builtins
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from regard.errors import UserError
from regard.system.extras import import_extra

SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of figures, by the suffix of the file."""
_own: dict[str, tuple[int, int]] = {}
"""Files that this process wrote: inode and time of the last change, by path."""


def load_figures(name: str) -> ModuleType:
    """Import a module of regard.look.figures. Raises UserError without matplotlib."""
    import_extra("matplotlib", "a figure")
    return importlib.import_module(f"regard.look.figures.{name}")


def mark_own(path: Path) -> None:
    """Note that this process wrote a file."""
    state = path.stat()
    _own[os.path.abspath(path)] = state.st_ino, state.st_mtime_ns


def is_own(path: Path) -> bool:
    """Return True in a notebook that wrote the file at a path, if nothing changed it since."""
    if not hasattr(builtins, "__IPYTHON__") or not path.exists():
        return False
    state = path.lstat()
    return _own.get(os.path.abspath(path)) == (state.st_ino, state.st_mtime_ns)


class Figure:
    """Figure as SVG text; notebooks show it."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<figure of {len(self.svg):,} characters of SVG; capture.plot(path) writes a file>"


def check_path(path: Path, overwrite: bool, others: Sequence[str] = ()) -> None:
    """Raise UserError for another suffix, no folder, or an existing file (unless overwrite)."""
    suffixes = (*others, *SUFFIXES)
    if path.suffix.lower() not in suffixes:
        raise UserError(
            f"the file name must end in one of {', '.join(suffixes)}, got {path.name!r}"
        )
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: the folder {path.parent} does not exist")
    if path.is_file() and not overwrite:
        raise UserError(
            f"{path} already exists: choose another name, or replace it with overwrite=True "
            "(--force)"
        )
