"""Folders of images with a folder for each class: which files are images, which are left out, and what is said of it.

    FOLDER/cat/1.png    FOLDER/cat/more/2.jpg    FOLDER/dog/3.jpg

Links to folders are followed. Hidden files and what Macs, Windows and network drives add are ignored. All other files
whose ending is none of ENDINGS are counted.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.config import OnBad
from regard.data.image_files import ENDINGS
from regard.errors import UserError

_ADDED = {
    *("__macosx", "@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found"),
    *("thumbs.db", "ehthumbs.db", "desktop.ini"),
}
"""Names of files and folders that systems add, in lower case; those that begin with a dot are not listed."""
_CONVERTED = (".heic", ".heif")
_SHOWN = 8


@dataclass(frozen=True)
class ImageFolders:
    """The image files of a folder of classes."""

    files: tuple[tuple[Path, str], ...]
    """Each file with its class, in order of the classes, then of the files."""
    notices: tuple[str, ...]
    """What was left out, a line each."""


def list_image_folders(path: Path, on_bad: OnBad) -> ImageFolders:
    """Return the images in each folder of a folder.

    Raises: UserError if there is no folder or no image, a folder cannot be listed, or (on_bad = error) a folder holds
            files, but no image.
    """
    there = _list(path)
    classes = [one for one in there if one.is_dir()]
    if not classes:
        raise UserError(f"{path}: expected a folder for each class in it, but there is none.")
    images: list[tuple[Path, str]] = []
    others: list[Path] = []
    lost: list[str] = []
    for folder in classes:
        files = _files_below(folder)
        found = [file for file in files if file.suffix.lower() in ENDINGS]
        rest = [file for file in files if file.suffix.lower() not in ENDINGS]
        if rest and not found:
            problem = f"{folder}: none of its files is an image that is read: {_count(rest)}"
            if on_bad == "error":
                raise UserError(f"{problem}. With `on_bad` = skip, the class is left out and named.")
            lost.append(f"{problem}; the class is left out.")
        images += [(file, folder.name) for file in found]
        others += rest
    if not images:
        raise UserError(f"{path}: there is no image in it ({', '.join(ENDINGS)}).{' '.join(['', *lost[:1]])}")
    notices = [f"{path}: {len(others):,} files are not read: {_count(others)}; first: {others[0]}."] if others else []
    if beside := [one for one in there if one not in classes and one.suffix.lower() in ENDINGS]:
        notices.append(f"{path}: {len(beside):,} images lie in no class folder and are not read; first: {beside[0]}.")
    return ImageFolders(tuple(images), (*notices, *lost))


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in those below it. A folder to which several links lead is read once."""
    files: list[Path] = []
    folders, seen = [folder], set()
    while folders:
        folder = folders.pop()
        found = folder.stat()
        if (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            for one in reversed(_list(folder)):
                (folders if one.is_dir() else files).append(one)
    return sorted(files)


def _list(folder: Path) -> list[Path]:
    """Return what is in a folder, by name, without hidden files and what systems add."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror or error}.") from error
    return [folder / name for name in names if not name.startswith(".") and name.lower() not in _ADDED]


def _count(files: Sequence[Path]) -> str:
    """Return how many files there are of each ending, such as: 10 .heic (convert them to JPEG), 1 .txt."""
    counts = Counter(file.suffix.lower() or "without ending" for file in files).most_common()
    shown = [f"{count:,} {ending}{_remedy(ending)}" for ending, count in counts[:_SHOWN]]
    return ", ".join(shown + ([f"{len(counts) - _SHOWN} other endings"] if len(counts) > _SHOWN else []))


def _remedy(ending: str) -> str:
    return " (convert them to JPEG)" if ending in _CONVERTED else ""
