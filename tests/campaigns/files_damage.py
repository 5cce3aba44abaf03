"""Damage to data files: bytes, lines, numbers, JSON values, encodings."""

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

__all__ = ["DAMAGES", "apply_damage"]

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z\xc3-\xff][\w\x80-\xff]*")
_NUMBERS = (
    b"0", b"-1", b"1e308", b"-1e308", b"1e400", b"nan", b"inf", b"-inf", b"1e-320", b"9" * 400, b"2147483648", b"-0",
    b"0x10", b"1_0", b"", b"true", b"null", b"[]", b"{}", b'"1"', b"1e30", b"1e15", b"4294967296", b"0.5", b"1" * 5000,
)  # fmt: skip
_WORDS = (
    b"", b"nan", b" ", b"\xff\xfe", b"\xe4", b"\0", b"../../etc/passwd", b"/dev/zero", b"/etc/passwd", b"x" * 5000,
    b"\\ud800", b"\xf0\x9f\x98\x80", b"\xe2\x80\xae", b"\x1b[31m", b'"', b"'", b"\\", b"<s>", b"</s>", b"-DOCSTART-",
    b"\xef\xb7\xba" * 50, b"\xed\xa0\x80", b".", b"..", b"file", b"1.png", b"null", b"x" * 200_000,
)  # fmt: skip
_PARTS = (
    b"\0", b"\r", b"\n", b"\r\n", b'"', b"\t", b",", b"\xff", b"\xef\xbb\xbf", b"\n\n\n", b"[" * 2000, b"{" * 30,
    b"\0" * 100, b"a" * 3000, b"\x1f\x8b", b"PK\x03\x04", b" " * 50, b"\\", b'\\"', b"[" * 100_000,
)  # fmt: skip
_INTS = (0, 1, -1, 2, 255, 65535, 1 << 30, (1 << 31) - 1, -(1 << 31), 1 << 24, 1000, 768_001)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**400, "", "x", "nan", "\ud800", [], {}, [[]],
    {"a": 1}, "x" * 5000, [1, 2, 3, 4], "1234", 1e-320, "../../x.png", "/etc/passwd", "a\0b", [None], 2**63,
)  # fmt: skip

Damage = Callable[[random.Random, bytes, bytes], bytes]
"""Function of a random generator, the content of a file, and that of a file in another format."""


def _position(draw: random.Random, content: bytes) -> int:
    """Return a random position, half the time near the beginning, where headers are."""
    return (
        draw.randrange(min(len(content), 64) + 1)
        if draw.random() < 0.5
        else draw.randrange(len(content) + 1)
    )


def _flip(draw: random.Random, content: bytes, _: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        position = min(_position(draw, content), len(content) - 1)
        changed[position] = draw.choice(
            (changed[position] ^ (1 << draw.randrange(8)), draw.randrange(256), 0, 255)
        )
    return bytes(changed)


def _cut_off(draw: random.Random, content: bytes, _: bytes) -> bytes:
    return content[: _position(draw, content)]


def _insert(draw: random.Random, content: bytes, _: bytes) -> bytes:
    position = _position(draw, content)
    return content[:position] + draw.choice(_PARTS) + content[position:]


def _remove(draw: random.Random, content: bytes, _: bytes) -> bytes:
    position = _position(draw, content)
    return content[:position] + content[position + draw.choice((1, 2, 4, 16, 100)) :]


def _repeat(draw: random.Random, content: bytes, _: bytes) -> bytes:
    first, last = sorted((_position(draw, content), _position(draw, content)))
    return content[:last] + content[first:last] * draw.choice((1, 2, 20)) + content[last:]


def _splice(draw: random.Random, content: bytes, other: bytes) -> bytes:
    return content[: _position(draw, content)] + other[_position(draw, other) :]


def _replace(_: random.Random, content: bytes, other: bytes) -> bytes:
    return other


def _integer(draw: random.Random, content: bytes, _: bytes) -> bytes:
    position = min(_position(draw, content), 64)
    size, order = draw.choice((2, 4, 4, 8)), draw.choice(("little", "big"))
    value = draw.choice(_INTS) % (1 << (8 * size))
    return content[:position] + value.to_bytes(size, order) + content[position + size :]


def _token(pattern: re.Pattern[bytes], choices: tuple[bytes, ...]) -> Damage:
    def change(draw: random.Random, content: bytes, other: bytes) -> bytes:
        matches = list(pattern.finditer(content))
        if not matches:
            return _flip(draw, content, other)
        for match in sorted(
            draw.sample(matches, min(len(matches), draw.choice((1, 1, 3)))),
            key=lambda m: -m.start(),
        ):
            content = content[: match.start()] + draw.choice(choices) + content[match.end() :]
        return content

    return change


def _lines(draw: random.Random, content: bytes, other: bytes) -> bytes:
    rows = content.split(b"\n")
    index = draw.randrange(len(rows))
    kind = draw.randrange(7)
    if kind == 0:
        del rows[index]
    elif kind == 1:
        rows.insert(index, rows[draw.randrange(len(rows))])
    elif kind == 2:
        draw.shuffle(rows)
    elif kind == 3:
        rows = rows[:1]
    elif kind == 4:
        cells = re.split(rb"([\t,])", rows[index])
        draw.shuffle(cells)
        rows[index] = b"".join(cells)
    elif kind == 5:
        rows.insert(index, other.split(b"\n")[0])
    else:
        return draw.choice((b"\r", b"\r\n", b"\n\n", b" ", b"\t")).join(rows)
    return b"\n".join(rows)


def _reencode(draw: random.Random, content: bytes, _: bytes) -> bytes:
    text = content.decode("utf-8", "replace")
    return text.encode(
        draw.choice(("latin-1", "utf-16", "utf-8-sig", "cp1252", "utf-32", "utf-7")), "replace"
    )


def _change_value(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """Replace, remove or nest a JSON value; for JSON lines, in one line."""
    rows = content.split(b"\n")
    index = draw.randrange(len(rows))
    for is_document, row in ((True, content), (False, rows[index])):
        try:
            tree = json.loads(row)
            changed = json.dumps(_other_value(draw, tree)).encode()
        except ValueError:
            continue
        return changed if is_document else b"\n".join([*rows[:index], changed, *rows[index + 1 :]])
    return _lines(draw, content, other)


def _other_value(draw: random.Random, tree: Any) -> Any:
    if draw.random() < 0.2 or not isinstance(tree, dict | list) or not tree:
        return draw.choice((*_VALUES, [tree], {"a": tree}, [tree, tree]))
    key = draw.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    if draw.random() < 0.15:
        del tree[key]
    elif draw.random() < 0.1 and isinstance(tree, list):
        tree.append(tree[key])
    else:
        tree[key] = _other_value(draw, tree[key])
    return tree


DAMAGES: dict[str, Damage] = {
    "bytes": _flip,
    "cut": _cut_off,
    "inserted": _insert,
    "removed": _remove,
    "repeated": _repeat,
    "spliced": _splice,
    "replaced": _replace,
    "integer": _integer,
    "numbers": _token(_NUMBER, _NUMBERS),
    "words": _token(_WORD, _WORDS),
    "lines": _lines,
    "encoding": _reencode,
    "values": _change_value,
}


def apply_damage(
    draw: random.Random, content: bytes, other: bytes, *, is_text: bool
) -> tuple[str, bytes]:
    """Damage a file, inside gzip as often as outside; return a description and the new content."""
    binary = ("bytes", "cut", "inserted", "removed", "repeated", "spliced", "replaced", "integer")
    names = list(DAMAGES) if is_text else list(binary)
    weights = [
        0.3
        if name == "replaced"
        else 3
        if is_text and name in ("numbers", "words", "values")
        else 1
        for name in names
    ]
    (name,) = draw.choices(names, weights)
    if content.startswith(b"\x1f\x8b") and draw.random() < 0.5:
        return f"{name} inside", gzip.compress(
            DAMAGES[name](draw, gzip.decompress(content), other), mtime=0
        )
    for _ in range(draw.choice((1, 1, 1, 2))):
        content = DAMAGES[name](draw, content, other) if content else other[:10]
    return name, content
