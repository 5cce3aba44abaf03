"""Which files a run has read, and what was in them: so that data which is edited while a run is stopped is noticed.

    with recorded() as seen:          every reader of data reports what it read (regard.files, images, tar members)
        task.check()
    summary(seen, sources)            {key: Content}, a few hundred entries at most, for a file of the run folder
    edited(before, now)               the keys whose digest differs

A key names a file by its role, not by its path, so that data may move while a run is stopped:

    data.train:             the file that the setting data.train names
    data.train:.jsonl       the same, where its ending decides how it is read
    data.train:cat/1.png    a file below the folder (or archive) that the setting names
    listed:12               a file that another file lists, by its place in the order of reading

What is read in a `recorded()` of its own inside another one (test data) is not part of the outer record.
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
# Files with these endings are read in other ways than text in columns; the values are the endings in keys.
_ENDINGS = {".csv": ".csv", ".json": ".json", ".jsonl": ".jsonl", ".ndjson": ".jsonl"}
_OWN = {"", *_ENDINGS.values()}
_seen: ContextVar[dict[str, str] | None] = ContextVar("regard-data-read", default=None)


@contextmanager
def recorded() -> Generator[dict[str, str], None, None]:
    """Name and digest of everything that is read in this block, by the names that the readers use."""
    seen: dict[str, str] = {}
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def note(name: object, content: bytes | memoryview) -> None:
    """Called by a reader: a file of this name has this content. Nothing is computed if nobody records."""
    seen = _seen.get()
    if seen is not None:
        seen[str(name)] = _digest(content)


def note_file(name: object, file: BinaryIO) -> None:
    """As `note`, of an open file, which is read from its beginning in parts."""
    seen = _seen.get()
    if seen is not None:
        file.seek(0)
        seen[str(name)] = importlib.import_module("hashlib").file_digest(file, "sha256").hexdigest()[:_LENGTH]


class Content(NamedTuple):
    """The digest of a file, or of all files of a folder and kind of name."""

    digest: str
    path: str
    """Where it was read, for messages."""


def summary(
    seen: Mapping[str, str], sources: Mapping[str, str], *, by_ending: bool = True, most: int = _MOST
) -> dict[str, Content]:
    """The record by role; of more than `most` files, one digest for all files of a folder and kind of name.

    seen:      digests by path, in the order of reading.
    sources:   by the name of a setting, the path that it gives.
    by_ending: the endings of the sources decide how they are read; False where the settings give the format.

    The digest of a folder covers the names below the source and the contents of what was read, and nothing else, so
    that files that no reader opens may come and go.
    """
    keyed = _by_role(seen, sources, by_ending=by_ending)
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
    found = {}
    for group, keys in groups.items():
        path = PurePath(keyed[keys[0]].path)
        joined = Content(_joined(keyed, keys), str(path.parent / f"*{path.suffix}"))
        found[keys[0] if len(keys) == 1 else group] = keyed[keys[0]] if len(keys) == 1 else joined
    return found


def edited(before: Mapping[str, str], now: Mapping[str, Content]) -> list[str]:
    """The keys of what has another digest now, is new, or is no longer read; settings' own files first.

    A setting's own file that is read by another ending than before has one key, the present one.
    """
    digests = {key: content.digest for key, content in now.items()}
    changed = {key for key in {*before, *now} if before.get(key) != digests.get(key)}
    by_other_ending = {
        f"{role}:{ending}"
        for role, _, here in (key.partition(":") for key in changed & now.keys())
        if here in _OWN
        for ending in _OWN
        if ending != here
    }
    return sorted(changed - by_other_ending, key=lambda key: (key.startswith(_LISTED), key))


def is_recorded(data: Mapping[str, str], setting: str) -> bool:
    """Return whether a record holds what this setting names: only then can its content be compared."""
    return any(key.startswith((f"{setting}:", f"{setting}.")) for key in data)


def _by_role(seen: Mapping[str, str], sources: Mapping[str, str], *, by_ending: bool) -> dict[str, Content]:
    paths = {setting: str(PurePath(source)) for setting, source in sources.items()}
    found: dict[str, Content] = {}
    listed = 0
    for name, digest in seen.items():
        content = Content(digest, name)
        own = [setting for setting, path in paths.items() if name == path]
        below = [] if own else [path for path in paths.values() if _is_below(name, path)]
        if own:
            is_read_by_it = by_ending and not Path(name).is_dir()
            ending = _ENDINGS.get(PurePath(plain_name(name)).suffix, "") if is_read_by_it else ""
            found |= {f"{setting}:{ending}": content for setting in own}
        elif below:
            nearest = max(below, key=len)
            rest = PurePath(name).relative_to(nearest).as_posix()
            found |= {f"{setting}:{rest}": content for setting, path in paths.items() if path == nearest}
        else:
            found[f"{_LISTED}:{listed:06d}"] = content
            listed += 1
    return found


def _is_below(name: str, path: str) -> bool:
    return name.startswith(path + os.sep) or (path == "." and not os.path.isabs(name))


def _joined(keyed: Mapping[str, Content], keys: Iterable[str]) -> str:
    lines = "\n".join(f"{key.partition(':')[2]}\t{keyed[key].digest}" for key in sorted(keys))
    return _digest(lines.encode("utf-8", "surrogatepass"))


def _digest(content: bytes | memoryview) -> str:
    # Loaded here: OpenSSL would be a twentieth of the time of `--help`.
    return importlib.import_module("hashlib").sha256(content).hexdigest()[:_LENGTH]
