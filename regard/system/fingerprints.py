"""Digests that reveal damaged files and changed data. (no torch)

digest       the first 128 bits of the SHA-256 of some bytes, as 32 hexadecimal digits
fingerprint  of a file: LENGTH:DIGEST
checksum     of a JSON object, in the object itself: the digest of the rest
data         the digest of each data file that is read, recorded by `record_digests` under the
             setting that names it
"""

import importlib
import json
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from regard.errors import UserError
from regard.system.compression import plain_name

_KEY = "checksum"
_BLOCK = 1 << 20
_DIGITS = 32
_FINGERPRINT = re.compile(rf"[0-9]{{1,19}}:[0-9a-f]{{{_DIGITS}}}", re.ASCII)
_MOST = 256
_LISTED = "listed"
# Suffixes of files that are not read as delimited text, and the suffix each has in keys.
_ENDINGS = {".csv": ".csv", ".json": ".json", ".jsonl": ".jsonl", ".ndjson": ".jsonl"}
_OWN = {"", *_ENDINGS.values()}
_active: ContextVar[dict[str, str] | None] = ContextVar("regard-data-read", default=None)


def digest(blocks: Iterable[Any]) -> str:
    """Return the digest of consecutive blocks, which are any buffers of bytes."""
    return fingerprint(blocks).partition(":")[2]


def fingerprint(blocks: Iterable[Any]) -> str:
    """Return the fingerprint of a file with these consecutive blocks."""
    # Imported here because loading OpenSSL would slow `--help` down.
    length, total = 0, importlib.import_module("hashlib").sha256()
    for block in blocks:
        total.update(block)
        length += memoryview(block).nbytes
    return f"{length}:{total.hexdigest()[:_DIGITS]}"


def read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of an open file."""
    return iter(lambda: file.read(_BLOCK), b"")


def file_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file."""
    with path.open("rb") as file:
        return fingerprint(read_blocks(file))


def is_unchanged(path: Path, expected: str) -> bool:
    """Return True if a file has this fingerprint. A file of another length is not read."""
    return (
        path.stat().st_size == int(expected.partition(":")[0])
        and file_fingerprint(path) == expected
    )


def is_fingerprint(value: object) -> bool:
    """Return True if a JSON value has the form of a fingerprint."""
    return isinstance(value, str) and _FINGERPRINT.fullmatch(value) is not None


def encode_canonically(content: object) -> bytes:
    """Return a JSON value as bytes, independent of white space and key order."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def add_checksum(content: Any) -> dict[str, Any]:
    """Return a JSON object with its checksum added, in the form in which it is read back from a
    file."""
    content = json.loads(json.dumps(content))
    return {**content, _KEY: digest([encode_canonically(content)])}


def verify_checksum(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Check the checksum of a JSON object that was read from `path`, and return the object without
    it.

    Raises:  UserError naming the file if the checksum does not match or is missing.
    """
    rest = {name: value for name, value in content.items() if name != _KEY}
    if _KEY not in content:
        raise UserError(f"{path}: damaged: it must hold the checksum of its content")
    try:
        actual = digest([encode_canonically(rest)])
    except RecursionError:
        raise UserError(f"{path}: damaged: JSON is nested too deeply") from None
    if content[_KEY] != actual:
        stored = content[_KEY] if isinstance(content[_KEY], str) else type(content[_KEY]).__name__
        raise UserError(
            f"{path}: damaged, or edited by hand: the checksum of its content is {actual}, but the "
            f"file has "
            f"{stored[:_DIGITS]!r}. Restore the original file; if the change was intended, set "
            f"{_KEY!r} to {actual!r}"
        )
    return rest


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
        digests[str(name)] = digest([content])


def record_blocks(name: object, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a file, and record the digest of all of them after the last one, as
    `add_digest`."""
    digests = _active.get()
    if digests is None:
        yield from blocks
        return
    total = importlib.import_module("hashlib").sha256()
    for block in blocks:
        total.update(block)
        yield block
    digests[str(name)] = total.hexdigest()[:_DIGITS]


def add_file_digest(name: object, file: BinaryIO) -> None:
    """Record the digest of an open file, which is read in blocks from its beginning."""
    digests = _active.get()
    if digests is not None:
        file.seek(0)
        digests[str(name)] = digest(read_blocks(file))


class Content(NamedTuple):
    """Digest of a file, or of all files with one suffix in a folder."""

    digest: str
    path: str
    """Path that was read, for messages."""


def summarize(
    digests: Mapping[str, str],
    sources: Mapping[str, str],
    *,
    by_ending: bool = True,
    most: int = _MOST,
) -> dict[str, Content]:
    """Return the digests by role; above `most` files, one digest for all files with one suffix in a
    folder.

    digests:   digests by path, in reading order.
    sources:   paths by the name of the setting that gives them.
    by_ending: the suffix of a source decides how it is read; False if the settings give the format.

    The digest of a folder covers the relative names and the contents of the files that were read,
    and nothing else: files that are never read may be added or removed.
    """
    keyed = _by_role(digests, sources, by_ending=by_ending)
    if len(keyed) <= most:
        return keyed
    groups: dict[str, list[str]] = {}
    for key in keyed:
        role, _, rest = key.partition(":")
        path = PurePath(rest)
        groups.setdefault(
            f"{role}:{'*' if role == _LISTED else path.parent / f'*{path.suffix}'}", []
        ).append(key)
    if len(groups) > most:
        groups = {}
        for key in keyed:
            groups.setdefault(f"{key.partition(':')[0]}:*", []).append(key)
    contents = {}
    for group, keys in groups.items():
        path = PurePath(keyed[keys[0]].path)
        combined = Content(_digest_group(keyed, keys), str(path.parent / f"*{path.suffix}"))
        contents[keys[0] if len(keys) == 1 else group] = (
            keyed[keys[0]] if len(keys) == 1 else combined
        )
    return contents


def find_changes(before: Mapping[str, str], now: Mapping[str, Content]) -> list[str]:
    """Return the keys whose digest changed, that are new, or that are missing; files named by
    settings come first.

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
    """Return True if a record contains the files of this setting, so that their content can be
    compared."""
    return any(key.startswith((f"{setting}:", f"{setting}.")) for key in data)


def _by_role(
    digests: Mapping[str, str], sources: Mapping[str, str], *, by_ending: bool
) -> dict[str, Content]:
    paths = {setting: str(PurePath(source)) for setting, source in sources.items()}
    contents: dict[str, Content] = {}
    listed = 0
    for name in digests:
        content = Content(digests[name], name)
        own = [setting for setting, path in paths.items() if name == path]
        below = [] if own else [path for path in paths.values() if _is_below(name, path)]
        if own:
            has_format = by_ending and not Path(name).is_dir()
            ending = _ENDINGS.get(PurePath(plain_name(name)).suffix, "") if has_format else ""
            contents |= {f"{setting}:{ending}": content for setting in own}
        elif below:
            nearest = max(below, key=len)
            rest = PurePath(name).relative_to(nearest).as_posix()
            contents |= {
                f"{setting}:{rest}": content for setting, path in paths.items() if path == nearest
            }
        else:
            contents[f"{_LISTED}:{listed:06d}"] = content
            listed += 1
    return contents


def _is_below(name: str, path: str) -> bool:
    return name.startswith(path + os.sep) or (path == "." and not os.path.isabs(name))


def _digest_group(keyed: Mapping[str, Content], keys: Iterable[str]) -> str:
    lines = "\n".join(f"{key.partition(':')[2]}\t{keyed[key].digest}" for key in sorted(keys))
    return digest([lines.encode("utf-8", "surrogatepass")])
