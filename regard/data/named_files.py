"""Files that a list names, such as images and sounds, found in a folder or a tar.

    name -> that file -> the file with the same last parts -> the only one that differs from it in
    upper and lower case

A name that a folder does not have, such as a path of another computer, is that of the file with the
same last parts: of `C:\\data\\cats\\1.png`, data/cats/1.png is taken before cats/1.png, and that
before 1.png. Two names of one file are refused. A file that exists outside the folder is not
replaced by one of the same name inside.
"""

import os
import posixpath
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path, PureWindowsPath
from typing import ClassVar, Self

from regard.errors import UserError
from regard.system.files import check_file, hint_similar_files

_SHOWN = 200
_MOST_SHOWN = 2
_MOST_PLACES = 1000
"""Number of folders of each kind near a list that are searched for a message."""


@dataclass(eq=False)
class NamedFiles:
    """Files of a folder or a tar, by name."""

    noun: ClassVar[str] = "file"

    path: Path
    """Path of the folder or tar."""
    members: dict[str, tuple[int, int]] | None
    """Offset and size of each file of a tar; None for a folder."""
    home: Path
    """Folder of the list that names the files."""
    option: str = ""
    """Option that names the folder or tar; empty if it is always the folder of the list."""
    _names: dict[str, str] = field(default_factory=dict)
    """Name of each file that was found, as it was given."""
    _listings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Names of the files of each folder that was searched, by their lower case."""
    _is_reported: bool = False
    """True after the notice that files are found by the last parts of their names."""
    _has_suggested: bool = False
    """True after the first file that is missing."""

    @classmethod
    def from_path(cls, path: Path, *, home: Path | None = None, option: str = "") -> Self:
        """Open a folder or a tar. Raises UserError for anything else."""
        home = path if home is None else home
        if path.is_dir():
            return cls(path, None, home, option)
        size = check_file(path).st_size
        try:
            with tarfile.open(path, "r:") as archive:
                members = {
                    member.name: (member.offset_data, member.size)
                    for member in archive
                    if member.isreg() and not member.issparse()
                }
        except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
            raise UserError(
                f"{path}: expected a folder or an uncompressed tar of {cls.noun}s ({error})."
            ) from error
        for name, (start, length) in members.items():
            if start < 0 or length < 0 or start + length > size:
                raise UserError(
                    f"{path}: the tar is truncated: {name[:_SHOWN]!r} ends beyond its {size:,} "
                    f"bytes."
                )
        by_base_name: dict[str, list[tuple[int, int]]] = {}
        for name, span in members.items():
            by_base_name.setdefault(name.rsplit("/", 1)[-1], []).append(span)
        # A base name identifies a file only if it is unique.
        members = {
            name: spans[0] for name, spans in by_base_name.items() if len(spans) == 1
        } | members
        return cls(path, members, home, option)

    def has(self, name: str, *, by_last_parts: bool = False) -> bool:
        """Return True if there is a file of this name, or with its last parts.

        A backslash is a separator of folders, as in lists written on Windows, if no file has the
        name as it is.
        """
        return self._find_exactly(name) is not None or (
            by_last_parts and self._find_last_parts(name) is not None
        )

    def resolve(self, name: str, where: str) -> Path:
        """Return the path of a file that a list in this folder names; one that exists may be
        outside the folder.

        where:  location of the name in the list, for messages.
        Raises: UserError if there is none, or if another name of the list is found in the same
                file.
        """
        path = next(
            (self.path / own for own in _candidate_paths(name) if _exists(self.path / own)), None
        )
        if path is None or _is_inside(name):
            found = self.find(name, where)
            path = path if found is None else self.path / found
        if path is None:
            raise UserError(
                f"{where}: {self.path / name[:_SHOWN]}: no such file.{self._suggest(name)}"
            )
        return path

    def find(self, name: str, where: str) -> str | None:
        """Return the path of a file in the folder or tar, or None.

        Raises: UserError naming `where` if another name was found in the same file.
        """
        found = self._find_exactly(name)
        if found is None:
            found = self._find_last_parts(name)
            if found is not None and not self._is_reported:
                self._is_reported = True
                warnings.warn(
                    f"{self.path} has no {name[:_SHOWN]}: {self.noun}s are found by the last parts "
                    f"of their names, "
                    f"here {found}",
                    stacklevel=2,
                )
        if found is not None:
            other = self._names.setdefault(found, name)
            if _plain(other) != _plain(name) and self.members is None:
                raise UserError(
                    f"{where}: the {self.noun}s {other[:_SHOWN]} and {name[:_SHOWN]} would both be "
                    f"the file {found}."
                )
        return found

    def missing(self, name: str, where: str, others: Sequence["NamedFiles"] = ()) -> UserError:
        """Return the error that neither this folder or tar nor the others have a file of this
        name."""
        if (
            self.members is None
            and not others
            and not _is_inside(name)
            and _exists(self.path / name)
        ):
            return UserError(
                f"{where}: the {self.noun} {name[:_SHOWN]!r} must be inside {self.path}."
            )
        paths = " or ".join(dict.fromkeys(str(source.path) for source in (self, *others)))
        return UserError(
            f"{where}: there is no {self.noun} {name[:_SHOWN]} in {paths}.{self._suggest(name)}"
        )

    def _suggest(self, name: str) -> str:
        """Return a sentence that names a folder or tar near the list that has the file, and how to
        give it, or files of similar names. Only the first missing file has one: others may be
        skipped, and a search takes long.
        """
        if self._has_suggested:
            return ""
        self._has_suggested = True
        similar = hint_similar_files(self.path / name[:_SHOWN]) if self.members is None else ""
        places = (place for place in _places_near(self.home) if _has_end(place, name))
        shown = " and ".join(map(str, found := [*islice(places, _MOST_SHOWN)]))
        if self.option and found:
            return f" It is in {shown}: give {self.option} {found[0] if len(found) == 1 else 'FOLDER'}."
        if self.option:
            return (
                f"{similar} Name the folder or tar of the {self.noun}s with {self.option} FOLDER."
            )
        relative = f"ames of {self.noun}s are relative to the folder of the list."
        return f" It is in {shown}, but n{relative}" if found else f"{similar} N{relative}"

    def _find_exactly(self, name: str) -> str | None:
        return next((path for path in _candidate_paths(name) if self._contains(path)), None)

    def _find_last_parts(self, name: str) -> str | None:
        """Return the path of the file with the most of the last parts of a name."""
        if self.members is not None:
            return next((end for end in _ends(name) if end in self.members), None)
        if any(_exists(self.path / path) for path in _candidate_paths(name)):
            return None
        for end in _ends(name):
            parent, last = posixpath.split(end)
            same = self._list(parent).get(last.lower(), [])
            if last in same or len(same) == 1:
                return posixpath.join(parent, last if last in same else same[0])
        return None

    def _list(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._listings:
            names = self._listings[folder] = {}
            path = self.path / folder
            for name in sorted(os.listdir(path)) if _is_folder(path) else ():
                names.setdefault(name.lower(), []).append(name)
        return self._listings[folder]

    def _contains(self, name: str) -> bool:
        if self.members is not None:
            return name in self.members
        return _is_inside(name) and _exists(self.path / name)


def _ends(name: str) -> Iterator[str]:
    """Yield the last parts of a name as paths, longest first, without a drive, a root and folders
    above."""
    path = PureWindowsPath(name)
    parts = path.parts[1:] if path.anchor else path.parts
    first = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    for begin in range(first, len(parts)):
        yield "/".join(parts[begin:])


def _places_near(home: Path) -> Iterator[Path]:
    """Yield the folders and tars in the folder of a list and in the one above, nearest first."""
    roots = (home, Path(os.path.normpath(home / "..")))
    found = (
        islice(root.glob(pattern), _MOST_PLACES)
        for pattern in ("*/", "*.tar", "*/*/")
        for root in roots
    )
    yielded = set()
    for place in chain((home,), chain.from_iterable(map(sorted, found))):
        if (real := os.path.realpath(place)) not in yielded:
            yielded.add(real)
            yield place


def _has_end(place: Path, name: str) -> bool:
    """Return True if a folder or tar has a file with the last parts of a name."""
    if _is_folder(place):
        return any(_exists(place / end) for end in _ends(name))
    try:
        return NamedFiles.from_path(place).has(name, by_last_parts=True)
    except UserError:
        return False


def _candidate_paths(name: str) -> tuple[str, ...]:
    return (name, name.replace("\\", "/")) if "\\" in name else (name,)


def _plain(name: str) -> str:
    """Return a name without what differs between systems: separators, and upper and lower case."""
    return posixpath.normpath(name.replace("\\", "/")).lower()


def _is_inside(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or contains a null character
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
