"""Pairs (source text, target text) from the user's files.

Formats: tables (regard.data.tables), two parallel text files, and Hugging Face data sets
(regard.data.text.huggingface). White space around a text is removed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Self

from regard.data.bad_rows import BadRows
from regard.data.config import OnBad, PairsConfig, Tables
from regard.data.held_out import join_files
from regard.data.tables import (
    FORMATS,
    Table,
    as_text,
    decode_line,
    locate,
    read_lines,
    read_table,
)
from regard.data.text.huggingface import is_data_set, read_data_set
from regard.errors import UserError
from regard.system.files import suffix_of

_DEFAULT = PairsConfig()


@dataclass(frozen=True)
class Pairs:
    """Source and target texts, with the line (or row) of each pair, from 1."""

    sources: list[str]
    targets: list[str]
    lines: list[int]
    origin: str
    references: Sequence[list[str]] = ()
    """All targets of each pair, if there are several (`add_references`)."""
    notices: tuple[str, ...] = ()
    files: Sequence[str] = ()
    """File of each pair, if they are of several (`join_pairs`)."""
    columns: Sequence[str] = ()
    """Names of the columns, if these are taken by position from a header."""

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)

    def take(self, index: Sequence[int]) -> Self:
        return replace(
            self,
            sources=[self.sources[i] for i in index],
            targets=[self.targets[i] for i in index],
            lines=[self.lines[i] for i in index],
            references=[self.references[i] for i in index] if self.references else [],
            files=[self.files[i] for i in index] if self.files else [],
        )

    def where(self, index: int) -> str:
        """Return the location of a pair, for messages: "train.tsv, line 17"."""
        return locate(self.files[index] if self.files else self.origin, self.lines[index])


def read_split(config: PairsConfig, split: Literal["train", "val", "test"]) -> Pairs:
    """Read the pairs of a split of the config. Raises UserError naming the file."""
    paths = getattr(config, split)
    targets = getattr(config, f"{split}_target") or [None] * len(paths)
    parts = []
    for path, target in zip(paths, targets, strict=True):
        is_table = suffix_of(path) in FORMATS or Path(path).is_dir() or is_data_set(path)
        is_side = config.format == "text" or (config.format == "auto" and not is_table)
        if target is None and is_side:
            known = f"expected a table ({', '.join(FORMATS)})"
            raise UserError(
                f"{path}: {known}, or --data.{split}-target with the parallel text file."
            )
        parts.append(read_pairs(path, config, target=target, split=split))
    return join_pairs(parts)


def join_pairs(parts: Sequence[Pairs]) -> Pairs:
    """Return the pairs of several files as one. Raises UserError if columns that are taken by
    position have other names."""
    by_position = [part for part in parts if part.columns]
    for part in by_position:
        first = by_position[0]
        if part.columns != first.columns:
            names = " and ".join(f"{one.origin}: {', '.join(one.columns)}" for one in (first, part))
            raise UserError(f"columns by position have other names in {names}: choose them by name")
    return join_files(parts, columns=())


def read_pairs(
    path: str | Path,
    config: Tables = _DEFAULT,
    *,
    target: str | Path | None = None,
    split: str = "train",
    names: tuple[str, str] = ("source", "target"),
) -> Pairs:
    """Read all pairs of a table, of two parallel text files (`path` and `target`), or of a data set
    (a folder, or hf:NAME[:CONFIG][#SPLIT]).

    names: usual names of the columns.
    Raises:  UserError naming the file and the row.
    """
    bad_rows, origin = BadRows(config.on_bad, "pairs"), str(path)
    rows: Iterable[tuple[int, Sequence[Any]]]
    if target is not None:
        rows = _read_parallel(Path(path), Path(target), config.encoding, bad_rows)
        origin = f"{path} + {target}"
    else:
        columns = [(name, getattr(config, f"{name}_column", None)) for name in names]
        rows = read_columns(path, columns, config, split, bad_rows)
    return collect_pairs(rows, origin, names, bad_rows)


def read_columns(
    path: str | Path,
    columns: Sequence[tuple[str, int | str | None]],
    config: Tables,
    split: str,
    bad_rows: BadRows,
) -> Table:
    """Return columns of a table or a data set: usual names, and those chosen."""
    found = [chosen or name for name, chosen in columns]
    by_position = not any(chosen for _, chosen in columns)
    format = getattr(config, "format", "auto")
    if format == "huggingface" or (format == "auto" and is_data_set(path)):
        return read_data_set(str(path), list(map(str, found)), split=split, bad_rows=bad_rows)
    table = read_table(
        path, found, config, by_position=by_position, format=format, bad_rows=bad_rows
    )
    return replace(table, is_by_position=by_position and list(table.names) != found)


def collect_pairs(
    rows: Iterable[tuple[int, Sequence[Any]]],
    origin: str,
    names: tuple[str, str],
    bad_rows: BadRows,
    *,
    may_be_empty: bool = False,
    normalize: Callable[[str], str] = str,
) -> Pairs:
    """Return rows of a source and a target, which is normalized, as pairs. A list of labels may be
    empty."""
    pairs = Pairs([], [], [], origin)
    for number, cells in rows:
        with bad_rows.catch(locate(origin, number)):
            source, target = as_text(cells[0]).strip(), as_text(cells[1]).strip()
            if not source or not (target or may_be_empty):
                raise UserError(f"the {names[1] if source else names[0]} is empty")
            pairs.targets.append(normalize(target))
            pairs.sources.append(source)
            pairs.lines.append(number)
    if not pairs:
        raise UserError(f"{origin}: contains no pair; {bad_rows.describe()}".rstrip("; "))
    if not (isinstance(rows, Table) and rows.is_by_position):
        return replace(pairs, notices=bad_rows.notices(origin))
    used = f"{rows.names[0]!r} is the {names[0]} and {rows.names[1]!r} the {names[1]}"
    note = f"{origin}: columns by position: {used}"
    return replace(pairs, notices=(note, *bad_rows.notices(origin)), columns=rows.names)


def add_references(pairs: Pairs, files: Sequence[str | Path], encoding: str) -> Pairs:
    """Return the pairs with the lines of text files as more reference targets: one per pair."""
    if not files:
        return pairs
    references = [[target] for target in pairs.targets]
    for path in files:
        lines = list(read_lines(Path(path), encoding=encoding))
        if len(lines) != len(pairs):
            raise UserError(f"{path}: {len(lines)} lines for {len(pairs)} pairs of {pairs.origin}")
        for number, (own, line) in enumerate(zip(references, lines, strict=True), start=1):
            where = f"{path}, line {number}"
            own.append(decode_line(line, where).strip())
            if not own[-1]:
                raise UserError(f"{where}: is blank, expected a reference")
    return replace(pairs, references=references)


def limit_length(
    pairs: Pairs, lengths: Sequence[tuple[int, int]], *, max_length: int, on_bad: OnBad
) -> tuple[list[int], tuple[str, ...]]:
    """Return the indices of pairs with at most `max_length` tokens on the longer side, and the
    notice about others. `lengths` are (source, target) of each pair."""
    keep, bad_rows = [], BadRows(on_bad, "pairs")
    for index, (source, target) in enumerate(lengths):
        if max(source, target) <= max_length:
            keep.append(index)
            continue
        bad_rows.add(
            f"{pairs.where(index)}: {source} source and {target} target tokens, more than "
            f"--data.max-length {max_length}"
        )
    if not keep:
        raise UserError(f"{pairs.origin}: no pair has at most --data.max-length {max_length}")
    return keep, bad_rows.notices(pairs.origin)


def _read_parallel(
    source: Path, target: Path, encoding: str, bad_rows: BadRows
) -> Iterator[tuple[int, tuple[str, str]]]:
    both = zip_longest(*(read_lines(path, encoding=encoding) for path in (source, target)))
    for number, (left, right) in enumerate(both, start=1):
        if left is None or right is None:
            shorter = source if left is None else target
            raise UserError(f"{shorter}: has {number - 1} lines, and the other parallel file more.")
        if left.strip() or right.strip():
            with bad_rows.catch():
                text = decode_line(left, f"{source}, line {number}")
                yield number, (text, decode_line(right, f"{target}, line {number}"))
