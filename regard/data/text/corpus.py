"""Text of any size, which is read in blocks: no more than a few of them are in memory.

corpus = read_corpus("book.txt")            or a table, whose rows are texts (documents)
for block in corpus: ...                    all blocks, in order, from the beginning each time
train, val = corpus.part(0, cut), corpus.part(cut, len(corpus))
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

from regard.data.bad_rows import BadRows
from regard.data.config import TextConfig
from regard.data.tables import TABLES, as_text, decode_line, locate, skip_mark
from regard.data.text.huggingface import is_data_set
from regard.data.text.pairs import read_columns
from regard.errors import UserError
from regard.system.files import read_blocks, suffix_of
from regard.system.progress import track

_BLOCK = 1 << 18
_DEFAULT = TextConfig()


class Corpus:
    """Text, or a part of it, whose iterator yields blocks of about 256 KiB, or documents. Its
    length is that in characters."""

    def __init__(
        self,
        read: Callable[[], Iterable[str]],
        begin: int,
        end: int,
        origin: str,
        *,
        has_documents: bool = False,
        notes: tuple[str, ...] = (),
    ):
        self._read, self._begin, self._end, self.origin = read, begin, end, origin
        self.has_documents, self.notes = has_documents, notes
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
        is_same = {"has_documents": self.has_documents, "notes": self.notes}
        return Corpus(self._read, begin, end, self.origin, **is_same)

    def find_cut(self, position: int) -> int:
        """Return the end of the document at a position; the position if no other begins there."""
        end = 0
        for block in self if self.has_documents else ():
            end += len(block)
            if end >= position:
                break
        return end if 0 < end < len(self) else position

    def examples(self) -> Iterator[str]:
        """Yield the documents, or the lines that are not blank; a line that takes several blocks is
        several."""
        for block in self:
            lines = [block] if self.has_documents else block.split("\n")
            yield from (line for line in lines if line and not line.isspace())

    @cached_property
    def example_count(self) -> int:
        return sum(1 for _ in self.examples())

    def example(self, index: int) -> str:
        """Return a document or line. Fast if the last call was for the one before it."""
        if index < self._next or self._next == 0:
            self._next, self._rest = 0, self.examples()
        found = next(islice(self._rest, index - self._next, None))
        self._next = index + 1
        return found


def has_documents(path: str | Path) -> bool:
    """Return True for a table or a data set, each of whose rows is a text."""
    return suffix_of(path) in TABLES or is_data_set(path)


def read_corpus(*paths: str | Path, config: TextConfig = _DEFAULT, split: str = "train") -> Corpus:
    """Read text files, or the texts of tables and data sets, once, to count their characters.
    Raises UserError naming the file, and the line that is not UTF-8."""
    origin, tables = ", ".join(map(str, paths)), [*filter(has_documents, paths)]
    if tables and len(tables) < len(paths):
        text = next(path for path in paths if path not in tables)
        raise UserError(f"{tables[0]} is a table and {text} a text: expected files of one kind.")
    for path in paths:
        if Path(path).is_dir() and path not in tables:
            raise UserError(f"{path}: is a folder, expected its files, such as {path}/*.txt.")

    def read(bad_rows: BadRows) -> Iterator[str]:
        for path in paths:
            if tables:
                yield from _read_documents(path, config, split, bad_rows)
            else:
                yield from _decode(read_blocks(Path(path), config.encoding), path, bad_rows)

    bad_rows, count, has_text = BadRows(config.on_bad, "texts" if tables else "lines"), 0, False
    for block in track(read(bad_rows), "characters"):
        count, has_text = count + len(block), has_text or not block.isspace()
    if not has_text:
        raise UserError(f"{origin}: contains only white space.")
    again = partial(read, BadRows("skip"))
    notes = bad_rows.notices(origin)
    return Corpus(again, 0, count, origin, has_documents=bool(tables), notes=notes)


def _read_documents(
    path: str | Path, config: TextConfig, split: str, bad_rows: BadRows
) -> Iterator[str]:
    """Yield the texts of a table or a data set."""
    table = read_columns(path, [("text", config.text_column)], config, split, bad_rows)
    if table.is_by_position and len(table.header) > 1:
        known = ", ".join(map(repr, table.header))
        raise UserError(f"{path}: no column 'text' among {known}: --data.text-column chooses one.")
    if config.text_column is None and not table.header and suffix_of(path) in (".tsv", ".tab"):
        chosen = "--data.text-column chooses another"
        bad_rows.remarks.append(f"{path}: the text is the first column; {chosen}")
    for number, (cell,) in table:
        with bad_rows.catch(locate(path, number)):
            text = as_text(cell).replace("\r\n", "\n")
            if not text.strip():
                raise UserError("the text is empty")
            yield text


def make_corpus(text: str, origin: str) -> Corpus:
    """Return a text in memory as a corpus."""
    content, bad_rows = text.encode(), BadRows("error")
    return Corpus(lambda: _decode([content], origin, bad_rows), 0, len(text), origin)


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


def _decode(pieces: Iterable[bytes], origin: str | Path, bad_rows: BadRows) -> Iterator[str]:
    """Yield a text in blocks, without a byte order mark, and with LF in place of CRLF."""
    number = 1
    for index, block in enumerate(split_blocks(pieces)):
        content = skip_mark(block, origin) if index == 0 else block
        content = content.replace(b"\r\n", b"\n")
        try:
            yield content.decode("utf-8")
        except UnicodeDecodeError:
            lines = []
            for line, own in enumerate(content.split(b"\n"), start=number):
                with bad_rows.catch():
                    lines.append(decode_line(own, f"{origin}, line {line}"))
            yield "\n".join(lines)
        number += block.count(b"\n")
