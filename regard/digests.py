"""Digests of the data files that a run reads, used to detect data that changed while the run was stopped.

    with record_digests() as digests:    collect the digest of every file that is read (regard.files, images, archives)
        task.check()
    summarize(digests, sources)          {key: Content}, at most a few hundred entries, stored in the run folder
    find_changes(before, now)            keys whose digest differs

Keys name a file by its role rather than by its path, so that data may be moved while a run is stopped:

    data.train:             the file named by the setting data.train
    data.train:.jsonl       the same, if the suffix decides how the file is read
    data.train:cat/1.png    a file below the folder (or archive) named by the setting
    listed:12               a file that is listed in another file, by its index in reading order

Files read inside a nested `record_digests()` (test data) are not part of the outer record.
"""

import importlib
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple

from regard.packed import plain_name

_LENGTH = 32
_MOST = 256
_LISTED = "listed"
# Suffixes of files that are not read as delimited text, and the suffix each has in keys.
_ENDINGS = {".csv": ".csv", ".json": ".json", ".jsonl": ".jsonl", ".ndjson": ".jsonl"}
_OWN = {"", *_ENDINGS.values()}
_active: ContextVar[dict[str, str] | None] = ContextVar("regard-data-read", default=None)


@contextmanager
def record_digests() -> Generator[dict[str, str], None, None]:
    """Collect the digest of every file that is read in this block, by path."""
    digests: dict[str, str] = {}
    token = _active.set(digests)
    try:
        yield digests
    finally:
        _active.reset(token)


def add_digest(name: object, content: bytes | memoryview) -> None:
    """Record the digest of a file's content. Does nothing outside `record_digests`."""
    digests = _active.get()
    if digests is not None:
        digests[str(name)] = _digest(content)


def add_file_digest(name: object, file: BinaryIO) -> None:
    """Record the digest of an open file, which is read in blocks from its beginning."""
    digests = _active.get()
    if digests is not None:
        file.seek(0)
        digests[str(name)] = importlib.import_module("hashlib").file_digest(file, "sha256").hexdigest()[:_LENGTH]


class Content(NamedTuple):
    """Digest of a file, or of all files with one suffix in a folder."""

    digest: str
    path: str
    """Path that was read, for messages."""


def summarize(
    digests: Mapping[str, str], sources: Mapping[str, str], *, by_ending: bool = True, most: int = _MOST
) -> dict[str, Content]:
    """Return the digests by role; above `most` files, one digest for all files with one suffix in a folder.

    digests:   digests by path, in reading order.
    sources:   paths by the name of the setting that gives them.
    by_ending: the suffix of a source decides how it is read; False if the settings give the format.

    The digest of a folder covers the relative names and the contents of the files that were read, and nothing else:
    files that are never read may be added or removed.
    """
    keyed = _by_role(digests, sources, by_ending=by_ending)
    if len(keyed) <= most:
        return keyed
    groups: dict[str, list[str]] = {}
    for key in keyed:
        role, _, rest = key.partition(":")
        path = PurePath(rest)
        groups.setdefault(f"{role}:{'*' if role == _LISTED else path.parent / f'*{path.suffix}'}", []).append(key)
    if len(groups) > most:
        groups = {}
        for key in keyed:
            groups.setdefault(f"{key.partition(':')[0]}:*", []).append(key)
    contents = {}
    for group, keys in groups.items():
        path = PurePath(keyed[keys[0]].path)
        combined = Content(_digest_group(keyed, keys), str(path.parent / f"*{path.suffix}"))
        contents[keys[0] if len(keys) == 1 else group] = keyed[keys[0]] if len(keys) == 1 else combined
    return contents


def find_changes(before: Mapping[str, str], now: Mapping[str, Content]) -> list[str]:
    """Return the keys whose digest changed, that are new, or that are missing; files named by settings come first.

    If the suffix of a file named by a setting changed, only its present key is returned.
    """
    digests = {key: content.digest for key, content in now.items()}
    changed = {key for key in {*before, *now} if before.get(key) != digests.get(key)}
    by_other_ending = {
        f"{role}:{ending}"
        for role, _, suffix in (key.partition(":") for key in changed & now.keys())
        if suffix in _OWN
        for ending in _OWN
        if ending != suffix
    }
    return sorted(changed - by_other_ending, key=lambda key: (key.startswith(_LISTED), key))


def is_recorded(data: Mapping[str, str], setting: str) -> bool:
    """Return True if a record contains the files of this setting, so that their content can be compared."""
    return any(key.startswith((f"{setting}:", f"{setting}.")) for key in data)


def _by_role(digests: Mapping[str, str], sources: Mapping[str, str], *, by_ending: bool) -> dict[str, Content]:
    paths = {setting: str(PurePath(source)) for setting, source in sources.items()}
    contents: dict[str, Content] = {}
    listed = 0
    for name, digest in digests.items():
        content = Content(digest, name)
        own = [setting for setting, path in paths.items() if name == path]
        below = [] if own else [path for path in paths.values() if _is_below(name, path)]
        if own:
            has_format = by_ending and not Path(name).is_dir()
            ending = _ENDINGS.get(PurePath(plain_name(name)).suffix, "") if has_format else ""
            contents |= {f"{setting}:{ending}": content for setting in own}
        elif below:
            nearest = max(below, key=len)
            rest = PurePath(name).relative_to(nearest).as_posix()
            contents |= {f"{setting}:{rest}": content for setting, path in paths.items() if path == nearest}
        else:
            contents[f"{_LISTED}:{listed:06d}"] = content
            listed += 1
    return contents


def _is_below(name: str, path: str) -> bool:
    return name.startswith(path + os.sep) or (path == "." and not os.path.isabs(name))


def _digest_group(keyed: Mapping[str, Content], keys: Iterable[str]) -> str:
    lines = "\n".join(f"{key.partition(':')[2]}\t{keyed[key].digest}" for key in sorted(keys))
    return _digest(lines.encode("utf-8", "surrogatepass"))


def _digest(content: bytes | memoryview) -> str:
    # Imported here because loading OpenSSL would slow `--help` down.
    return importlib.import_module("hashlib").sha256(content).hexdigest()[:_LENGTH]
