"""Folders of images with one folder per class.

    FOLDER/cat/1.png    FOLDER/cat/more/2.jpg    FOLDER/dog/3.jpg

Links to folders are followed; those to another class or to a folder above are refused. Hidden files
and files that macOS, Windows and network drives create are ignored. Other files whose extension is
not in ENDINGS are skipped and counted.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.config import OnBad
from regard.data.folder_files import count_suffixes, describe_skipped_files, is_ignored
from regard.data.images.files import ENDINGS
from regard.errors import UserError
from regard.system.files import hint_tables
from regard.system.terminal import format_count

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Names of folders of splits, by the option that takes them."""

_FolderId = tuple[int, int]
"""Device and inode of a folder."""


@dataclass(frozen=True)
class ImageFolders:
    """Image files of a folder of classes."""

    files: tuple[tuple[Path, str], ...]
    """Files with their classes, sorted by class, then by file."""
    notices: tuple[str, ...]
    """Notices about skipped files, a line each."""


def list_image_folders(path: Path, on_bad: OnBad) -> ImageFolders:
    """List the images of each class folder in a folder.

    Raises: UserError if there is no folder or no image, a folder cannot be listed, or (on_bad =
            error) a class folder has files, but no image.
    """
    entries = _list(path)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        count = sum(entry.suffix.lower() in ENDINGS for entry in entries)
        found = f"{format_count(count, 'image')} and no folder" if count else "none"
        raise UserError(
            f"{path}: expected a folder for each class in it, got {found}.{hint_tables(path)}"
        )
    _check_not_splits(path, classes)
    images: list[tuple[Path, str]] = []
    others: list[Path] = []
    empty: list[str] = []
    without_files: list[str] = []
    used: dict[_FolderId, Path] = {
        _id(parent): parent for parent in (path.resolve(), *path.resolve().parents)
    }
    used |= {_id(folder): folder for folder in reversed(classes)}
    for folder in classes:
        files = _files_below(folder, used)
        supported = [file for file in files if file.suffix.lower() in ENDINGS]
        rest = [file for file in files if file.suffix.lower() not in ENDINGS]
        if rest and not supported:
            problem = f"{folder}: none of its files is a supported image: {count_suffixes(rest)}"
            if on_bad == "error":
                raise UserError(
                    f"{problem}. With --data.on-bad skip, the class is left out and reported."
                )
            empty.append(f"{problem}; the class is left out.")
        if not files:
            without_files.append(f"{folder}: is empty; the class is left out.")
        images += [(file, folder.name) for file in supported]
        others += rest
    if not images:
        raise UserError(
            f"{path}: contains no image ({', '.join(ENDINGS)}).{' '.join(['', *empty[:1]])}"
        )
    notices = [describe_skipped_files(path, others)] if others else []
    if loose := [
        entry for entry in entries if entry not in classes and entry.suffix.lower() in ENDINGS
    ]:
        outside = format_count(len(loose), "image")
        notices.append(f"{path}: skipped {outside} outside the class folders; first: {loose[0]}.")
    return ImageFolders(tuple(images), (*notices, *without_files, *empty))


def _check_not_splits(path: Path, folders: Sequence[Path]) -> None:
    """Raise UserError if the folders are splits of a data set: all by their names, or one for
    training with folders.

    A class may be called train, with images in its folder, beside others such as bus and car.
    """
    splits = {
        split: folder
        for split, names in _SPLITS.items()
        for folder in folders
        if folder.name.lower() in names
    }
    if len(splits) < len(folders) and not (
        "train" in splits and _has_only_folders(splits["train"])
    ):
        return
    options = " ".join(f"--data.{split} {folder}" for split, folder in splits.items())
    names = ", ".join(folder.name for folder in splits.values())
    raise UserError(
        f"{path}: must hold a folder for each class, but {names} are splits of a data set: use "
        f"{options}."
    )


def _has_only_folders(folder: Path) -> bool:
    entries = _list(folder)
    return bool(entries) and all(entry.is_dir() for entry in entries)


def _files_below(top: Path, used: Mapping[_FolderId, Path]) -> list[Path]:
    """List the files in a folder and its subfolders. A folder that is the target of several links
    is read once.

    used:   other class folders, and the folders above them, by id.
    Raises: UserError for a link to one of them, whose images would have two classes.
    """
    files: list[Path] = []
    folders, visited = [top], set[_FolderId]()
    while folders:
        folder = folders.pop()
        key = _id(folder)
        if used.get(key, top) != top:
            raise UserError(
                f"{folder}: is a link to {used[key]}, whose images would have two classes."
            )
        if key not in visited:
            visited.add(key)
            for entry in reversed(_list(folder)):
                (folders if entry.is_dir() else files).append(entry)
    return sorted(files)


def _id(folder: Path) -> _FolderId:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _list(folder: Path) -> list[Path]:
    """List the entries of a folder by name, without hidden files and files created by operating
    systems."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror or error}.") from error
    return [folder / name for name in names if not is_ignored(name)]
