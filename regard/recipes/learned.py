"""What a task learned from its data before training began: which files, and from which data. (no torch)

    learned.json   {"format", "version", "files": {NAME: [bytes, CRC-32]}, "data": {ROLE: digest}, "checksum"}

Vocabularies, labels and scales decide every answer, so they are used as they were written or not at all. Training that
goes on does so with the data with which it began, wherever that lies now (regard.digests). Runs of earlier versions
have no such file, and are not compared.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from regard.checksums import file_checksum, sealed, unsealed
from regard.digests import Content, edited, is_recorded
from regard.errors import UserError
from regard.files import check_file, read_json, write_atomically
from regard.run_files import check_no_link

FILE = "learned.json"
_STAGE = ".learned.new"
_FORMAT, _VERSION = "regard-learned", 1


def learn(
    folder: Path, write: Callable[[Path], None], *, claim: Callable[[], object], data: Mapping[str, Content]
) -> None:
    """Have `write` put files into a folder of their own; if it can, claim the run folder and move them there.

    data: digests of what was read (regard.digests).
    """
    stage = folder / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        write(stage)
        names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        files = {name: file_checksum(stage / name) for name in names}
        claim()
        digests = {key: one.digest for key, one in data.items()}
        content = {"format": _FORMAT, "version": _VERSION, "files": files, "data": digests}
        write_atomically(folder / FILE, json.dumps(sealed(content), indent=1) + "\n")
        for name in names:
            check_no_link(folder, name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(folder / name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def check_learned(folder: Path) -> None:
    """Raises UserError naming the file that is missing or not as it was written."""
    for name, expected in _content(folder)["files"].items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        if check_file(path).st_size != expected[0] or file_checksum(path) != expected:
            raise UserError(
                f"{path}: damaged, or edited by hand: its length or checksum is not what training wrote. Bring back "
                f"the file as it was; if the change was meant, remove {folder / FILE}"
            )


def can_compare(folder: Path, settings: Iterable[str]) -> bool:
    """Return whether the digests of what each of these settings names are kept, so that another path can be given."""
    data = _content(folder)["data"] or {}
    return all(is_recorded(data, setting) for setting in settings)


def check_data(folder: Path, data: Mapping[str, Content]) -> None:
    """Raises UserError naming a file that is not what it was when the run began."""
    before = _content(folder)["data"]
    keys = edited(before, data) if before is not None else []
    if keys:
        name = data[keys[0]].path if keys[0] in data else f"{keys[0]} (of the run's data)"
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        raise UserError(
            f"{name}: {_change(keys[0], before, data)}{more}, so training in {folder} cannot continue as if it had "
            "never stopped. Bring back the data as it was, or choose another folder with --run"
        )


def _change(key: str, before: Mapping[str, str], data: Mapping[str, Content]) -> str:
    """How the content that a key names differs."""
    if key not in data:
        return "is no longer read"
    if key in before:
        return "has other content than when the run began"
    role, _, ending = key.partition(":")
    endings = {
        one.partition(":")[2] for one, digest in before.items() if digest == data[key].digest and f"{role}:" in one
    }
    if len(endings) == 1 and (not ending or ending.startswith(".")):
        form, other = (one.removeprefix(".").upper() or "text in columns" for one in (ending, endings.pop()))
        return f"is read as {form} because of its name, but as {other} when the run began"
    return "is read now, but was not when the run began"


def learned_files(folder: Path) -> list[str]:
    """The files that a task wrote, relative to the folder; none if there is no saying."""
    return list(_content(folder)["files"])


def unchanged_files(folder: Path) -> list[str]:
    """The files that lie in the folder itself as a task wrote them, by length and checksum."""
    return [
        name
        for name, expected in _content(folder)["files"].items()
        if (path := folder / name).is_file() and path.resolve() == folder.resolve() / name
        if path.stat().st_size == expected[0] and file_checksum(path) == expected
    ]


def discard(folder: Path) -> None:
    """Remove what a task learned. Files that are not as it wrote them stay, and so do those behind symbolic links."""
    for name in unchanged_files(folder):
        (folder / name).unlink()
    (folder / FILE).unlink(missing_ok=True)


def _content(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.exists():
        return {"files": {}, "data": None}
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: it must hold an object")
    content = unsealed(path, content, required=True)
    version, files, data = (content.get(name) for name in ("version", "files", "data"))
    if isinstance(version, int) and version > _VERSION:
        raise UserError(f"{path} was written by a newer regard: its version is {version}, this one reads {_VERSION}")
    if content.get("format") != _FORMAT or version != _VERSION or not (_is_files(files) and _is_digests(data)):
        raise UserError(f"{path}: damaged: it must hold the checksums of files and the digests of data")
    return content


def _is_files(files: object) -> bool:
    return isinstance(files, dict) and all(
        not Path(name).is_absolute()
        and ".." not in Path(name).parts
        and isinstance(pair, list)
        and len(pair) == 2
        and all(type(number) is int for number in pair)
        for name, pair in files.items()
    )


def _is_digests(data: object) -> bool:
    return isinstance(data, dict) and all(isinstance(digest, str) for digest in data.values())
