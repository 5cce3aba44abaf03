"""Checks of the paths that figures, pages and captures are written to. (no matplotlib)"""

import os
from collections.abc import Sequence
from pathlib import Path

from regard.errors import UserError
from regard.system.output_files import check_output

SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of figures, by the suffix of the file."""


def check_path(path: Path, overwrite: bool, others: Sequence[str] = ()) -> None:
    """Check the suffix and the folder of a file to write, and that it does not exist unless `overwrite`.

    others: suffixes that are allowed besides those of figures.
    Raises: UserError if the file cannot be written, or would replace a file of a run (even with `overwrite`).
    """
    suffixes = (*others, *SUFFIXES)
    if path.suffix.lower() not in suffixes:
        raise UserError(f"the file name must end in one of {', '.join(suffixes)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: the folder {path.parent} does not exist")
    check_output(path)
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{path} already exists: choose another name, or overwrite it")
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"{path} is not a regular file, and is not replaced")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: the folder {path.parent} is not writable")
