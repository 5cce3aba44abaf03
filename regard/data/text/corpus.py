"""Text of any size, which is read in blocks: no more than a few of them are in memory.

corpus = read_corpus("book.txt")
for block in corpus: ...                    all blocks, in order, from the beginning each time
train, val = corpus.part(0, cut), corpus.part(cut, len(corpus))
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

from regard.data.tables import skip_mark
from regard.errors import UserError
from regard.system.files import read_blocks
from regard.system.progress import track

_BLOCK = 1 << 18


class Corpus:
    """Text, or a part of it, whose iterator yields blocks of about 256 KiB. Its length is that in
    characters."""

    def __init__(self, read: Callable[[], Iterable[str]], begin: int, end: int, origin: str):
        self._read, self._begin, self._end, self.origin = read, begin, end, origin
        self._next, self._rest = 0, iter(())

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[str]:
        position = 0
        for block in self._read():
            begin, end = max(0, self._begin - position), min(len(block), self._end - position)
            position += len(block)
            if begin < end:
                yield block[begin:end]
            if position >= self._end:
                return

    def part(self, begin: int, end: int) -> "Corpus":
        """Return the characters begin <= i < end."""
        begin, end = (min(self._begin + max(0, index), self._end) for index in (begin, end))
        return Corpus(self._read, begin, end, self.origin)

    def lines(self) -> Iterator[str]:
        """Yield the lines that are not blank; a line that takes several blocks is several."""
        for block in self:
            yield from (line for line in block.split("\n") if line and not line.isspace())

    @cached_property
    def line_count(self) -> int:
        return sum(1 for _ in self.lines())

    def line(self, index: int) -> str:
        """Return a line that is not blank. Fast if the last call was for the line before it."""
        if index < self._next or self._next == 0:
            self._next, self._rest = 0, self.lines()
        found = next(islice(self._rest, index - self._next, None))
        self._next = index + 1
        return found


def read_corpus(*paths: str | Path, encoding: str = "utf-8") -> Corpus:
    """Read text files, plain or compressed, once, to count their characters. Raises UserError
    naming the file, and the line that is not UTF-8."""
    origin, files = ", ".join(map(str, paths)), []
    for path in map(Path, paths):
        blocks = partial(read_blocks, path, encoding)
        if path.is_fifo():  # can be read only once
            blocks = partial(iter, [b"".join(blocks())])
        files.append((blocks, str(path)))

    def read() -> Iterator[str]:
        for blocks, name in files:
            yield from _decode(blocks(), name)

    count, has_text = 0, False
    for block in track(read(), "characters"):
        count, has_text = count + len(block), has_text or not block.isspace()
    if not has_text:
        raise UserError(f"{origin}: contains only white space.")
    return Corpus(read, 0, count, origin)


def make_corpus(text: str, origin: str) -> Corpus:
    """Return a text in memory as a corpus."""
    content = text.encode()
    return Corpus(lambda: _decode([content], origin), 0, len(text), origin)


def split_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup the bytes of a text into blocks that end at a line feed, which is added if the last
    has none, or in a long line before a space."""
    waiting, least = bytearray(), _BLOCK
    for piece in pieces:
        for start in range(0, len(piece), _BLOCK):
            waiting += piece[start : start + _BLOCK]
            if len(waiting) < least:
                continue
            end = waiting.rfind(b"\n") + 1
            if not end and len(waiting) >= 2 * _BLOCK:
                end = max(0, waiting.rfind(b" ", 1))
            if end:
                yield bytes(waiting[:end])
                del waiting[:end]
            # A line without a space is searched again when it is twice as long.
            least = _BLOCK if end else 2 * len(waiting)
    if waiting:  # else the last block ended at a line feed
        yield bytes(waiting) + (b"" if waiting.endswith(b"\n") else b"\n")


def _decode(pieces: Iterable[bytes], origin: str) -> Iterator[str]:
    """Yield a text in blocks, without a byte order mark."""
    number = 1
    for index, block in enumerate(split_blocks(pieces)):
        try:
            yield (skip_mark(block, origin) if index == 0 else block).decode("utf-8")
        except UnicodeDecodeError as error:
            line = number + block.count(b"\n", 0, error.start)
            raise UserError(f"{origin}, line {line}: not UTF-8: {error}"[:300]) from None
        number += block.count(b"\n")
