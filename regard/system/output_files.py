"""Protection of the files in a run folder: no symbolic links, and no other output among them. (no
torch)

Training writes, truncates and removes files; a symbolic link in their place would let it do so
elsewhere, so a file of a run that is a link is refused. A folder may be a link, such as checkpoints
on a larger disk, if it is empty or belongs to the run: it then holds a file that names the run
folder. Create that file, empty, when moving checkpoints there.

    FOLDER/.regard-run.json    {"run": PATH}
"""

import json
import os
from pathlib import Path

from regard.errors import UserError
from regard.system.files import read_json
from regard.system.writing import write_atomically

FOLDERS = ("checkpoints", "snapshots", "tb")
"""Folders of a run in which training writes and removes files."""

_OWNER = ".regard-run.json"


def check_no_link(folder: Path, name: str) -> None:
    """Raise UserError if a file of a run, or a folder on the way to it, is a symbolic link."""
    path = folder
    for part in Path(name).parts:
        path /= part
        if path.is_symlink():
            raise UserError(
                f"{path} is a symbolic link to {path.readlink()}, and training writes only into "
                f"the run itself: put "
                "the file there in place of the link, or choose another folder with --run"
            )


def claim_folder(path: Path) -> None:
    """Mark a linked folder as belonging to the run; do nothing for a folder that is not a link.

    A folder belongs to another run if the run that it names still links to it; a run may be moved.

    Raises:  UserError if it is missing, holds unrelated files, or belongs to another run.
    """
    if not path.is_symlink():
        return
    link, run = f"{path} is a symbolic link to {path.readlink()}", os.path.realpath(path.parent)
    if not path.is_dir():
        raise UserError(f"{link}, which is not a folder: create it, or remove the link")
    owner = _read_owner(path)
    if owner is None and any(not file.name.startswith(".") for file in path.iterdir()):
        raise UserError(
            f"{link}, which holds files that may not belong to this run: link to an empty folder, "
            f"or, if they are this "
            f"run's, create an empty file {path / _OWNER}"
        )
    if owner == run:
        return
    if owner and _leads_to(os.path.join(owner, path.name), path):
        raise UserError(
            f"{link}, which belongs to the run in {owner}: link to an empty folder, or remove the "
            f"link"
        )
    write_atomically(path / _OWNER, json.dumps({"run": run}) + "\n")


def check_output(path: Path) -> None:
    """Raise UserError if a file to write would lie among the files of a run.

    Other subfolders of a run folder, such as looks/, are allowed.
    """
    by_name = Path(os.path.realpath(path.parent)) / path.name
    for location in (by_name, Path(os.path.realpath(path))):
        for folder in location.parents:
            first, *rest = location.relative_to(folder).parts
            if os.path.exists(folder / _OWNER) or (
                (not rest or first in FOLDERS) and _is_run(folder)
            ):
                raise UserError(
                    f"{path} would lie among the files of the run in {folder}: choose another "
                    f"folder for it, such as "
                    f"{folder / 'looks'}"
                )


def _is_run(folder: Path) -> bool:
    """Return True if a folder holds checkpoints or a run.json of this package, damaged or not."""
    if any((folder / "checkpoints").glob("step-*")):
        return True
    path = folder / "run.json"
    try:
        content = read_json(path) if os.path.exists(path) else {}
    except UserError:
        return True
    return isinstance(content, dict) and "recipe" in content


def _read_owner(folder: Path) -> str | None:
    """Return the run folder that a linked folder names as its owner; "" if any run that links to it
    may claim it."""
    path = folder / _OWNER
    if not os.path.lexists(path):
        return None
    check_no_link(folder, _OWNER)
    if not path.stat().st_size:
        return ""
    content = read_json(path)
    owner = content.get("run") if isinstance(content, dict) else None
    if not isinstance(owner, str) or "\0" in owner:
        raise UserError(f"{path}: damaged: it must hold the path of a run")
    return owner


def _leads_to(link: str, folder: Path) -> bool:
    try:
        return os.path.samefile(link, folder)
    except OSError:
        return False
