"""Record of the files that a recipe wrote before training, and of the data they were computed from.
(no torch)

    learned.json   {"format", "version", "files": {NAME: fingerprint}, "data": {ROLE: digest},
                   "checksum"}

Vocabularies, labels and scales affect every answer, so they are only used unmodified. Resumed
training requires the data it started with, wherever it is stored now (regard.system.fingerprints).
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.system.files import check_file, read_json
from regard.system.fingerprints import (
    Content,
    add_checksum,
    file_fingerprint,
    find_changes,
    is_fingerprint,
    is_recorded,
    is_unchanged,
    verify_checksum,
)
from regard.system.output_files import check_no_link
from regard.system.writing import write_atomically

FILE = "learned.json"
_STAGE = ".learned.new"
_FORMAT, _VERSION = "regard-learned", 2


class LearnedRecord(NamedTuple):
    """Content of learned.json."""

    files: Mapping[str, str] = {}
    """Fingerprint of each file that the recipe wrote, by its path in the folder."""
    data: Mapping[str, str] = {}
    """Digest of the data by role."""

    def can_compare(self, settings: Iterable[str]) -> bool:
        """Return True if the digests of the data of all these settings are recorded, so that paths
        may change."""
        return all(is_recorded(self.data, setting) for setting in settings)

    def check_data(self, folder: Path, data: Mapping[str, Content]) -> None:
        """Raise UserError naming data whose content changed since the run in the folder started."""
        if change := self.describe_change(data):
            raise UserError(
                f"{change}, so training in {folder} cannot be resumed exactly. Restore the data, "
                f"or choose another "
                "folder with --run"
            )

    def describe_change(self, data: Mapping[str, Content]) -> str:
        """Return which data changed since the run started, and how; empty if none did."""
        keys = find_changes(self.data, data)
        if not keys:
            return ""
        name = data[keys[0]].path if keys[0] in data else f"{keys[0]} (of the run's data)"
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        return f"{name}: {_describe_change(keys[0], self.data, data)}{more}"


def learn(
    folder: Path,
    write: Callable[[Path], None],
    *,
    claim: Callable[[], object],
    data: Mapping[str, Content],
) -> None:
    """Let `write` create files in a temporary folder; if it succeeds, claim the run folder and move
    them there.

    data: digests of the data that was read (regard.system.fingerprints).
    """
    stage = folder / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        write(stage)
        names = sorted(
            path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()
        )
        files = {name: file_fingerprint(stage / name) for name in names}
        claim()
        digests = {key: content.digest for key, content in data.items()}
        content = {"format": _FORMAT, "version": _VERSION, "files": files, "data": digests}
        write_atomically(folder / FILE, json.dumps(add_checksum(content), indent=1) + "\n")
        for name in names:
            check_no_link(folder, name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(folder / name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def read_learned(folder: Path) -> LearnedRecord:
    """Read the record of a folder. Raises UserError if it is missing, damaged, or of another
    version."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"{path} is missing: the run is not complete")
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: it must hold an object")
    version = content.get("version")
    if type(version) is int and version != _VERSION:
        age = "an older" if version < _VERSION else "a newer"
        raise UserError(
            f"{path} was written by {age} regard: its version is {version}, this one reads "
            f"{_VERSION}"
        )
    content = verify_checksum(path, content)
    files, data = content.get("files"), content.get("data")
    is_whole = (
        content.get("format") == _FORMAT
        and version == _VERSION
        and _is_files(files)
        and _is_digests(data)
    )
    if not is_whole:
        raise UserError(
            f"{path}: damaged: it must hold the fingerprints of files and the digests of data"
        )
    return LearnedRecord(content["files"], content["data"])


def check_learned(folder: Path) -> None:
    """Raise UserError naming a recorded file that is missing or was modified."""
    for name, expected in read_learned(folder).files.items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        check_file(path)
        if not is_unchanged(path, expected):
            raise UserError(
                f"{path}: damaged, or edited by hand: its fingerprint is {file_fingerprint(path)}, "
                f"but training wrote "
                f"{expected}. Restore the file; if the change was intended, enter the new value in "
                f"{folder / FILE}"
            )


def list_unchanged_files(folder: Path) -> list[str]:
    """Return the recorded files that are in the folder itself and unmodified, by their
    fingerprints."""
    files = read_learned(folder).files if (folder / FILE).exists() else {}
    return [
        name
        for name, expected in files.items()
        if (path := folder / name).is_file() and path.resolve() == folder.resolve() / name
        if is_unchanged(path, expected)
    ]


def discard(folder: Path) -> None:
    """Remove the files that the recipe wrote, except modified ones and those behind symbolic
    links."""
    for name in list_unchanged_files(folder):
        (folder / name).unlink()
    (folder / FILE).unlink(missing_ok=True)


def _describe_change(key: str, before: Mapping[str, str], data: Mapping[str, Content]) -> str:
    """Return how the content of a key changed since the run started."""
    if key not in data:
        return "is no longer read"
    if key in before:
        return "its content has changed since the run started"
    role, _, ending = key.partition(":")
    endings = {
        name.partition(":")[2]
        for name, digest in before.items()
        if digest == data[key].digest and f"{role}:" in name
    }
    if len(endings) == 1 and (not ending or ending.startswith(".")):
        form, other = (
            suffix.removeprefix(".").upper() or "text in columns"
            for suffix in (ending, endings.pop())
        )
        return (
            f"is read as {form} because of its name, but was read as {other} when the run started"
        )
    return "is read now, but was not when the run started"


def _is_files(files: object) -> bool:
    return isinstance(files, dict) and all(
        not Path(name).is_absolute() and ".." not in Path(name).parts and is_fingerprint(value)
        for name, value in files.items()
    )


def _is_digests(data: object) -> bool:
    return isinstance(data, dict) and all(isinstance(digest, str) for digest in data.values())
