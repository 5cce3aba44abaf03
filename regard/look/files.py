"""What a picture, a page or a capture may be called, and where it may be written. (no matplotlib)"""

import os
from collections.abc import Sequence
from pathlib import Path

from regard.errors import UserError
from regard.run_files import check_output

SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of pictures, chosen by the ending of the file's name."""


def check_path(path: Path, overwrite: bool, others: Sequence[str] = ()) -> None:
    """Raise UserError unless a picture of that name may be written: its suffix, its folder, no file that is there.

    A file of a run is never overwritten, even if asked.


    others: suffixes that will do besides those of pictures.
    """
    suffixes = (*others, *SUFFIXES)
    if path.suffix.lower() not in suffixes:
        raise UserError(f"the file's name must end in one of {', '.join(suffixes)}, but is {path.name!r}")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}")
    check_output(path)
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{path} exists already: choose another name, or ask to overwrite it")
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"{path} is not a regular file, and is not replaced")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: the folder {path.parent} allows no writing")
