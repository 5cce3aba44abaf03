"""Checksums of the files in a run folder, so that a damaged file is refused. (no torch)

    add_checksum({"seed": 3})        {"seed": 3, "checksum": "9a1c..."}: CRC-32 of the content as compact, sorted JSON
    verify_checksum(path, content)   the content without its checksum, if the checksum matches

They detect accidents (a flipped bit, an edit), not attacks.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError

_KEY = "checksum"
_BLOCK = 1 << 20


def compute_checksum(content: object) -> int:
    """Return the CRC-32 of a JSON value, independent of whitespace and key order."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"))


def add_checksum(content: Any) -> dict[str, Any]:
    """Return a JSON object with its checksum added, in the form in which it is read back from a file."""
    content = json.loads(json.dumps(content))
    return {**content, _KEY: f"{compute_checksum(content):08x}"}


def verify_checksum(path: Path, content: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    """Check the checksum of a JSON object that was read from `path`, and return the object without it.

    Raises:  UserError naming the file if the checksum does not match, or is missing but required.
    """
    rest = {name: value for name, value in content.items() if name != _KEY}
    if _KEY not in content:
        if required:
            raise UserError(f"{path}: damaged: it must hold the checksum of its content")
        return rest
    try:
        actual = f"{compute_checksum(rest):08x}"
    except RecursionError:
        raise UserError(f"{path}: damaged: JSON is nested too deeply") from None
    if content[_KEY] != actual:
        stored = content[_KEY] if isinstance(content[_KEY], str) else type(content[_KEY]).__name__
        raise UserError(
            f"{path}: damaged, or edited by hand: the checksum of its content is {actual}, but the file has "
            f"{stored[:20]!r}. Restore the original file; if the change was intended, remove {_KEY!r} from it"
        )
    return rest


def file_checksum(path: Path) -> list[int]:
    """Return the length of a file in bytes and its CRC-32."""
    total, length = 0, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total, length = zlib.crc32(block, total), length + len(block)
    return [length, total]
