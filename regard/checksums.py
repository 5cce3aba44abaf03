"""Checksums of what a run folder holds: a damaged file is refused, and never read as something else. (no torch)

    sealed({"seed": 3})        {"seed": 3, "checksum": "9a1c..."}: CRC-32 of the rest as compact JSON, keys in order
    unsealed(path, content)    the rest again, if the checksum is its own

They find accidents (a flipped bit, an edit), not attacks.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError

_KEY = "checksum"
_BLOCK = 1 << 20


def checksum_of(content: object) -> int:
    """CRC-32 of a value as JSON holds it, whatever the spaces and the order of keys."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"))


def sealed(content: Any) -> dict[str, Any]:
    """A JSON object, as a file would give it back, with its checksum."""
    content = json.loads(json.dumps(content))
    return {**content, _KEY: f"{checksum_of(content):08x}"}


def unsealed(path: Path, content: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    """A JSON object of the file `path` without its checksum.

    Raises:  UserError naming the file if the checksum is of another content, or is missing though it is required.
    """
    rest = {name: value for name, value in content.items() if name != _KEY}
    if _KEY not in content:
        if required:
            raise UserError(f"{path}: damaged: it must hold the checksum of its content")
        return rest
    try:
        found = f"{checksum_of(rest):08x}"
    except RecursionError:
        raise UserError(f"{path}: damaged: JSON is nested too deeply") from None
    if content[_KEY] != found:
        said = content[_KEY] if isinstance(content[_KEY], str) else type(content[_KEY]).__name__
        raise UserError(
            f"{path}: damaged, or edited by hand: its content has the checksum {found}, but the file says "
            f"{said[:20]!r}. Bring back the file as it was; if the change was meant, remove {_KEY!r} from it"
        )
    return rest


def file_checksum(path: Path) -> list[int]:
    """A file's length in bytes and its CRC-32."""
    total, length = 0, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total, length = zlib.crc32(block, total), length + len(block)
    return [length, total]
