"""Raw lines or JSON objects of a file, plain or compressed, and descriptions of lines that cannot
be decoded."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from regard.errors import UserError
from regard.system.compression import plain_name
from regard.system.files import BlockReader, hint_tables, read_unpacked
from regard.system.memory import available_memory

_BYTES_PER_LINE = 48
"""Memory of a line besides its bytes: an object and its entry in a list."""
_LARGE = 1 << 24
"""Bytes above which the memory of the lines is compared with what is available."""
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE = 1000
_BETWEEN = re.compile(r"[ \t\r\n]*(,?)[ \t\r\n]*")
"""White space and comma between two elements of an array."""
_TO_CSV = "pandas writes a table: pandas.{reader}('{{file}}').to_csv('{{stem}}.csv', index=False)"
_CONVERSIONS = {
    ".parquet": _TO_CSV.format(reader="read_parquet"),
    ".xlsx": _TO_CSV.format(reader="read_excel"),
    ".xls": _TO_CSV.format(reader="read_excel"),
    ".las": "laspy converts a cloud: numpy.savez('{stem}.npz', points=laspy.read('{file}').xyz)",
    ".laz": "laspy converts a cloud: numpy.savez('{stem}.npz', points=laspy.read('{file}').xyz)",
    ".xyz": "numpy converts a cloud: numpy.savez('{stem}.npz', points=numpy.loadtxt('{file}'))",
    ".npy": "pandas writes a table: pandas.DataFrame(numpy.load('{file}')).to_csv('{stem}.csv', "
    "index=False)",
    ".npz": "numpy.load('{file}') returns its arrays, to be written in such a format",
}
"""Ways to convert formats that are not read, by suffix."""
OBJECTS = (".jsonl", ".ndjson", ".json")
"""Suffixes of files of JSON objects: one a line, or (.json) in an array."""


def read_lines(path: Path) -> list[bytes]:
    r"""Read the lines of a file as bytes, split at "\n" only, without their ends.

    gzip, bzip2 and xz are recognized by their first bytes. A final "\n" ends the last line. A UTF-8
    byte order mark at the start is removed.

    Raises:  UserError if the file is missing (with similar names), a folder, unreadable, damaged,
             empty, UTF-16, or its lines do not fit into the available memory.
    """
    return split_lines(read_unpacked(path), path)


def split_lines(content: bytes, path: str | Path) -> list[bytes]:
    """Return the lines of the content of a file of this name, as `read_lines`."""
    (content,) = check_text([content], path)
    if len(content) > _LARGE:
        count = content.count(b"\n")
        needed, available = len(content) + _BYTES_PER_LINE * count, available_memory()
        if available is not None and needed > available:
            raise UserError(
                f"{path}: its {count:,} lines take {needed:,} bytes of memory, more than the "
                f"{available:,} that are "
                "available."
            )
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def check_text(pieces: Iterable[bytes], path: str | Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces, without a byte order mark. Raises UserError if it is
    empty or UTF-16."""
    pieces = iter(pieces)
    first = next(pieces, b"")
    if not first:
        raise UserError(f"{path}: the file is empty.")
    if _is_utf16(first[:_SAMPLE]):
        raise UserError(
            f"{path}: looks like UTF-16, expected UTF-8: save it as UTF-8 (iconv -f UTF-16 -t "
            f"UTF-8 FILE)."
        )
    first = first.removeprefix(_UTF8_MARK)
    if not first:
        raise UserError(f"{path}: the file is empty except for a byte order mark.")
    return chain([first], pieces)


def read_filled_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read the lines that are not blank, with their numbers from 1. Raises UserError at once, as
    `read_lines`."""
    return _consume(read_lines(path))


def read_objects(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read the text of each JSON object of a file, with its number from 1: that of its line, or of
    a record in a .json.

    A .json file has an array of objects, as pandas and `datasets` write them, or an object a line;
    others have lines.

    Raises:  UserError at once as `read_lines`, or naming the record at which an array is not valid
             JSON.
    """
    lines = read_lines(path)
    if not is_array(path, lines):
        if plain_name(path).endswith(".json"):
            lines = [line for line in lines if line.strip()]
            _check_lines(path, lines)
        return _consume(lines)
    content = b"\n".join(lines)
    lines.clear()
    try:
        return _consume(_split_array(content.decode("utf-8"), path))
    except UnicodeDecodeError as error:
        number, begin = (
            content.count(b"\n", 0, error.start) + 1,
            content.rfind(b"\n", 0, error.start) + 1,
        )
        own = UnicodeDecodeError(
            "utf-8",
            content[begin : error.end],
            error.start - begin,
            error.end - begin,
            error.reason,
        )
        raise UserError(f"{path}, line {number}: {describe_decode_error(own)}.") from None


def _check_lines(path: Path, lines: list[bytes]) -> None:
    """Raise UserError for a single object of columns, as pandas writes it, or one in several
    lines."""
    is_columns = len(lines) == 1 and re.match(rb'\s*\{\s*"[^"]*"\s*:\s*\{\s*"0"\s*:', lines[0])
    if is_columns or (len(lines) > 1 and lines[0].strip() == b"{"):
        raise UserError(
            f"{path}: is one JSON object, expected an array of objects, or an object in each line; "
            f"pandas writes an "
            'array with df.to_json(FILE, orient="records").'
        )


def is_array(path: Path, lines: Iterable[bytes]) -> bool:
    """Return True if the lines of a .json file begin an array."""
    first = next((line.lstrip() for line in lines if line.strip()), b"")
    return plain_name(path).endswith(".json") and first.startswith(b"[")


def has_array(path: Path) -> bool:
    """Return True if a .json file begins an array; only its first block is read."""
    return is_array(
        path, (block.removeprefix(b"\xef\xbb\xbf") for block in BlockReader(path).blocks())
    )


def check_kind(path: Path, expected: str) -> None:
    """Raise UserError for a folder, with the tables in it, and for a format that is not read, with
    a way to convert it.

    expected: the formats that are read.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected {expected}.{hint_tables(path)}")
    suffix = path.suffix.lower()
    if suffix in _CONVERSIONS:
        way = _CONVERSIONS[suffix].format(file=path.name, stem=path.stem)
        raise UserError(f"{path}: {suffix} is not read here, expected {expected}; {way}.")


def locate(path: str | Path, number: int) -> str:
    """Return the location of a line of a file, or of a record of a .json file, for messages."""
    return f"{path}, {'record' if plain_name(path).endswith('.json') else 'line'} {number}"


def _split_array(text: str, path: Path) -> list[bytes]:
    """Return the text of each element of a JSON array."""
    decoder, elements = json.JSONDecoder(), list[bytes]()
    position = len(text) - len(text.lstrip()) + 1
    expects_element = False
    while True:
        between = _BETWEEN.match(text, position)
        assert between is not None  # it matches an empty text
        where = locate(path, len(elements) + 1)
        begin = between.end()
        if text[begin : begin + 1] == "]" and not between[1]:
            if text[begin + 1 :].strip():
                raise UserError(f"{where}: expected the end of the file after the array.")
            return elements
        if bool(between[1]) != expects_element:
            raise UserError(f"{where}: not valid JSON: expected a comma between two records.")
        try:
            position = decoder.raw_decode(text, begin)[1]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON: {error}.") from None
        elements.append(text[begin:position].encode("utf-8", "surrogatepass"))
        expects_element = True


def _consume(lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, and release the memory of each."""
    lines.reverse()
    number = 0
    while lines:
        number += 1
        line = lines.pop()
        if line.strip():
            yield number, line


def describe_decode_error(error: UnicodeDecodeError, where: str = "", *, before: int = 0) -> str:
    """Describe why a line is not UTF-8, and at which byte.

    before:  number of bytes of the line before those that were decoded.
    """
    if error.object.startswith(b"\x1f\x8b"):
        return "is compressed with gzip: unpack it first"
    if error.object.startswith(_UTF16_MARKS) and b"\0" in error.object:
        return "looks like UTF-16, expected UTF-8: save the file as UTF-8"
    wrong = error.object[error.start : error.start + 1]
    try:
        hint = f"; in Windows-1252 it is {wrong.decode('cp1252')!r}: save the file as UTF-8"
    except UnicodeDecodeError:
        hint = ""
    place = f"byte 0x{wrong.hex()} at position {before + error.start + 1} of the line{where}"
    return f"not UTF-8: {place} ({error.reason}){hint}"


def _is_utf16(start: bytes) -> bool:
    """Return True for a UTF-16 byte order mark, or if every second byte is zero as in Latin text in
    UTF-16."""
    halves = [start[offset::2].count(0) / max(1, len(start[offset::2])) for offset in (0, 1)]
    return start.startswith(_UTF16_MARKS) or (
        len(start) > 8 and min(halves) == 0 and max(halves) > 0.7
    )
