"""The files of a run lie in its folder, and nothing else is written among them. (no torch)

Training writes, shortens and removes files; a symbolic link in their place would have it do so elsewhere. So a file of
a run that is a link is refused. A folder may be one, as checkpoints on a larger disk, if it is empty or belongs to the
run: it then holds a file that names the run's folder. Who moves checkpoints there makes that file, empty.

    FOLDER/.regard-run.json    {"run": PATH}
"""

import json
import os
from pathlib import Path

from regard.errors import UserError
from regard.files import read_json, write_atomically

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
                f"{path} is a symbolic link to {path.readlink()}, and training writes only into the run itself: put "
                "the file there in place of the link, or choose another folder with --run"
            )


def claim_folder(path: Path) -> None:
    """Make a linked folder the run's own, or find that it is; do nothing for a folder that is no link.

    A folder belongs to another run if the run that it names still links to it; a run may be moved.

    Raises:  UserError if it is missing, holds files of something else, or belongs to another run.
    """
    if not path.is_symlink():
        return
    link, run = f"{path} is a symbolic link to {path.readlink()}", os.path.realpath(path.parent)
    if not path.is_dir():
        raise UserError(f"{link}, which is no folder: make one there, or remove the link")
    owner = _owner_of(path)
    if owner is None and any(not one.name.startswith(".") for one in path.iterdir()):
        raise UserError(
            f"{link}, which holds files that may be something else's: link to an empty folder, or, if they are this "
            f"run's, make an empty file {path / _OWNER}"
        )
    if owner == run:
        return
    if owner and _leads_to(os.path.join(owner, path.name), path):
        raise UserError(f"{link}, which belongs to the run in {owner}: link to an empty folder, or remove the link")
    write_atomically(path / _OWNER, json.dumps({"run": run}) + "\n")


def check_output(path: Path) -> None:
    """Raise UserError if a file to write would lie among the files of a run.

    A folder in a run folder that is not the run's own, as looks/, is free.
    """
    by_name = Path(os.path.realpath(path.parent)) / path.name
    for place in (by_name, Path(os.path.realpath(path))):
        for folder in place.parents:
            first, *rest = place.relative_to(folder).parts
            if os.path.exists(folder / _OWNER) or ((not rest or first in FOLDERS) and _is_run(folder)):
                raise UserError(
                    f"{path} would lie among the files of the run in {folder}: choose another folder for it, such as "
                    f"{folder / 'looks'}"
                )


def _is_run(folder: Path) -> bool:
    """Return True if a folder holds checkpoints, or a run.json of ours, damaged or not."""
    if any((folder / "checkpoints").glob("step-*")):
        return True
    path = folder / "run.json"
    try:
        content = read_json(path) if os.path.exists(path) else {}
    except UserError:
        return True
    return isinstance(content, dict) and "recipe" in content


def _owner_of(folder: Path) -> str | None:
    """The folder of the run that a linked folder belongs to, as it says itself; "" for whichever links to it."""
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
