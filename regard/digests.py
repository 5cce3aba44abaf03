"""Which files a run has read, and what was in them: so that data which is edited while a run is stopped is noticed.

    with recorded() as seen:          every reader of data reports what it read (regard.files, images, tar members)
        task.check()
    summary(seen)                     {name: digest}, a few hundred entries at most, for a file of the run folder
    edited(before, now)               the names whose content differs

What is read in a `recorded()` of its own inside another one (test data) is not part of the outer record.
"""

import importlib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath

__all__ = ["edited", "note", "recorded", "summary"]

_LENGTH = 32
_MOST = 256
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


def summary(seen: Mapping[str, str], *, most: int = _MOST) -> dict[str, str]:
    """The record, in order; of more than `most` files, one digest for all files of a folder and kind of name.

    The digest of a folder covers the names and the contents of what was read from it, and nothing else, so that files
    that no reader opens may come and go.
    """
    if len(seen) <= most:
        return dict(sorted(seen.items()))
    groups: dict[str, list[str]] = {}
    for name in sorted(seen):
        path = PurePath(name)
        groups.setdefault(str(path.parent / f"*{path.suffix}"), []).append(name)
    found = {}
    for group, names in groups.items():
        found[names[0] if len(names) == 1 else group] = seen[names[0]] if len(names) == 1 else _joined(seen, names)
    return found if len(found) <= most else {f"{len(seen)} files": _joined(seen, sorted(seen))}


def edited(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of what has another content now, is new, or is no longer read; in order."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _joined(seen: Mapping[str, str], names: Iterable[str]) -> str:
    lines = "\n".join(f"{name}\t{seen[name]}" for name in names)
    return _digest(lines.encode("utf-8", "surrogatepass"))


def _digest(content: bytes | memoryview) -> str:
    # Loaded here: OpenSSL would be a twentieth of the time of `--help`.
    return importlib.import_module("hashlib").sha256(content).hexdigest()[:_LENGTH]
