"""Pairs (source text, target text) from the user's files.

Formats: TSV, CSV, two parallel text files, JSON objects (regard.data.text.rows) and Hugging Face
data sets (regard.data.text.huggingface). Lines end at a line feed only: other line separators of
Unicode may occur inside a text. White space around a text is removed. Every message names the file
and the line, numbered from 1.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from regard.data.bad_rows import BadRow, BadRows, Skipped
from regard.data.config import Header, OnBad, PairFormat, PairsConfig
from regard.data.held_out import LABEL_HINT, hold_out
from regard.data.text.headers import Columns
from regard.data.text.huggingface import PREFIX, read_hugging_face_records
from regard.data.text.lines import check_kind, locate, read_lines
from regard.data.text.rows import Records, decode_line, excerpt, read_records, read_text_records
from regard.data.tokenizer import MOST_CHARACTERS, check_growth
from regard.errors import UserError
from regard.system.compression import UNSUPPORTED, plain_name

_ENDINGS: dict[str, PairFormat] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_HOLDS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
"""Cells of a column that is a label, in lower case; pandas writes numbers with a decimal point
beside empty cells."""


@dataclass(frozen=True)
class Pairs:
    """Source and target texts, with the location of each pair.

    `sources`, `targets` and `lines` (line or row, from 1) have one entry per pair; `origin` names
    the files.
    """

    sources: list[str]
    targets: list[str]
    lines: list[int]
    origin: str
    skipped: Skipped = field(default_factory=Skipped)
    references: list[list[str]] = field(default_factory=list)
    """All targets of each pair, if there are several (`add_references`)."""

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)

    def take(self, index: Sequence[int], skipped: Skipped) -> "Pairs":
        """Return the pairs of the given indices."""
        sources, targets = ([texts[i] for i in index] for texts in (self.sources, self.targets))
        references = [self.references[i] for i in index] if self.references else []
        return Pairs(
            sources, targets, [self.lines[i] for i in index], self.origin, skipped, references
        )

    def hold_out(
        self, share: float, noun: str, *, seed: int, labels: Sequence[Iterable[str]] | None = None
    ) -> tuple["Pairs", "Pairs", str]:
        """Return training and validation pairs, and a notice; see
        `regard.data.held_out.hold_out`."""
        names = {"origin": self.origin, "noun": noun}
        parts = hold_out(
            len(self),
            share,
            seed=seed,
            groups=self.sources,
            labels=labels,
            hint=LABEL_HINT,
            **names,
        )
        return self.take(parts.train, self.skipped), self.take(parts.val, Skipped()), parts.notice

    def where(self, index: int) -> str:
        """Return the location of a pair, for messages: "train.tsv, line 17"."""
        return locate(self.origin, self.lines[index])


def read_split(config: PairsConfig, split: Literal["train", "val", "test"]) -> Pairs:
    """Read the pairs of a split of the config.

    Raises:  UserError if the config has no data for this split, or as `read_pairs`.
    """
    path = getattr(config, split)
    if path is None:
        raise UserError(
            f"no {split} pairs: --data.{split} must be a file, a folder or a data set (hf:NAME)."
        )
    return read_pairs(
        path,
        target=getattr(config, f"{split}_target"),
        format=config.format,
        source_column=config.source_column,
        target_column=config.target_column,
        header=config.header,
        on_bad=config.on_bad,
        split=split,
    )


def read_pairs(
    path: str | Path,
    *,
    target: str | Path | None = None,
    format: PairFormat = "auto",
    source_column: int | str | None = None,
    target_column: int | str | Sequence[int | str] | None = None,
    header: Header = "auto",
    is_numeric: bool = False,
    is_binary: bool = False,
    on_bad: OnBad = "error",
    split: str = "train",
    also: tuple[type, ...] = (),
    names: tuple[str, str] = ("source", "target"),
) -> Pairs:
    """Read all pairs of a file, of two parallel files (`path` and `target`), or of a data set.

    Args:
        path: a file, plain or compressed; a folder written by `datasets`; or
        hf:NAME[:CONFIG][#SPLIT].
        target: the target side, if `path` is the source side of two parallel text files.
        format: auto determines it from `target`, the file extension, or hf:.
        source_column: number (from 1) or name in the header of TSV and CSV; else name of a field,
        dots for nested.
        target_column: as `source_column`; or several, whose cells are combined to a JSON list.
        header: whether the first row of TSV and CSV is a header; see
        `regard.data.text.rows.Columns`.
        is_numeric: targets are numbers, see `regard.data.text.rows.Columns`.
        is_binary: each of several target columns is a label, see `combine_targets`.
        on_bad: error raises at the first bad line; skip skips bad lines and counts them in
        `Pairs.skipped`.
        split: split of a data set whose name has none (#SPLIT).
        also: types of a target that are allowed besides str, in formats that have types: int,
              float, list. With list,
            targets may be empty.
        names: default names of the columns and fields. TSV and CSV without such a header are read
               as columns 1 and 2.

    Blank lines are skipped.

    Raises:  UserError naming the file, the line, what was expected and what was found. Problems of
             a whole file (missing, truncated, empty, unequal lengths, no valid pair) are errors for
             every `on_bad`.
    """
    kind = _find_format(path, target, format)
    is_single = target_column is None or isinstance(target_column, int | str)
    targets: Sequence[int | str | None] = (
        (target_column,) if is_single else target_column or (None,)
    )
    origin = str(path) if target is None else f"{path} + {target}"
    if kind == "text":
        if target is None:
            raise UserError(
                f"{path}: format 'text' needs two parallel files, but the target file is missing."
            )
        records = read_text_records(Path(path), Path(target))
    elif kind == "huggingface":
        fields = [str(source_column or names[0]), *(str(column or names[1]) for column in targets)]
        records = read_hugging_face_records(str(path), fields, split=split, also=also)
    else:
        chosen, expected = (source_column, *targets), (names[0], *(names[1] for _ in targets))
        columns = Columns(
            expected, chosen, header, has_options=names[0] != "image", is_numeric=is_numeric
        )
        records = read_records(
            Path(path), kind, columns, **({"also": also} if kind == "jsonl" else {})
        )
    return _collect(records, origin, on_bad, names, is_binary=is_binary, may_be_empty=list in also)


def add_references(pairs: Pairs, files: Sequence[str | Path]) -> Pairs:
    """Return the pairs with the lines of text files as more reference targets: one line per pair.

    Raises:  UserError naming a file with another number of lines, or a line that is not UTF-8 or
             blank.
    """
    if not files:
        return pairs
    references = [[target] for target in pairs.targets]
    for path in files:
        lines = read_lines(Path(path))
        if len(lines) != len(pairs):
            skipped = " without the skipped ones" if pairs.skipped.messages else ""
            raise UserError(
                f"{path}: references must have one line per pair, got {len(lines)} lines, but "
                f"{pairs.origin} has "
                f"{len(pairs)} pairs{skipped}."
            )
        for number, (own, line) in enumerate(zip(references, lines, strict=True), start=1):
            try:
                own.append(decode_line(line, "").strip())
            except BadRow as bad:
                raise UserError(f"{path}, line {number}: {bad.detail}") from None
            if not own[-1]:
                raise UserError(f"{path}, line {number}: is blank, expected a reference")
    return replace(pairs, references=references)


def limit_length(
    pairs: Pairs, lengths: Sequence[tuple[int, int]], *, max_length: int, on_bad: OnBad
) -> tuple[list[int], Skipped]:
    """Return the indices of pairs with at most `max_length` tokens on the longer side, and all
    skipped lines.

    `lengths` holds (source tokens, target tokens) of each pair. With on_bad="skip" longer pairs are
    added to `pairs.skipped`; otherwise the first of them is an error.

    Raises:  UserError naming file, line and both lengths, or if no pair is short enough.
    """
    if len(lengths) != len(pairs):
        raise ValueError(
            f"`lengths` must have one entry per pair ({len(pairs)}), got {len(lengths)}"
        )
    keep, bad_rows = [], BadRows(on_bad, before=pairs.skipped)
    for index, (source, target) in enumerate(lengths):
        if max(source, target) <= max_length:
            keep.append(index)
            continue
        detail = (
            f"{source} source and {target} target tokens, more than --data.max-length {max_length}"
        )
        bad_rows.add(f"{pairs.where(index)}: {detail}", "too long")
    if not keep:
        raise UserError(
            f"{pairs.origin}: no pair has at most --data.max-length {max_length} tokens on its "
            f"longer side."
        )
    return keep, bad_rows.skipped


def combine_targets(
    cells: tuple[str, ...], records: Records, *, is_binary: bool
) -> tuple[str, str]:
    """Return the first cell, and the second; or the others as a JSON list, if there are several.

    is_binary: each of several columns is a label that holds where its cell is 1 or true; the list
    has their names.
    Raises: BadRow for another cell than 1, true, 0, false or an empty one, if is_binary.
    """
    if len(cells) == 2:
        return cells
    values = [cell.strip() for cell in cells[1:]]
    if not is_binary:
        return cells[0], json.dumps(values)
    held = [_HOLDS.get(value.lower()) for value in values]
    if None in held:
        index = held.index(None)
        detail = f"{records.places[index + 1]} must be 1 or true where this label holds, and 0, false or empty elsewhere"
        raise BadRow("no 0 or 1", f"{detail}, got {excerpt(values[index])}")
    names = [name for name, holds in zip(records.names[1:], held, strict=True) if holds]
    return cells[0], json.dumps(names, ensure_ascii=False)


def _find_format(path: str | Path, target: str | Path | None, format: PairFormat) -> PairFormat:
    if target is not None and format not in ("auto", "text"):
        raise UserError(
            f"`format` must be 'text' for a target file, got {format!r} ({path}, {target})."
        )
    if format != "auto":
        return format
    if target is not None:
        return "text"
    if str(path).startswith(PREFIX) or Path(str(path).partition("#")[0]).is_dir():
        return "huggingface"
    ending = Path(plain_name(path)).suffix
    if ending in UNSUPPORTED:
        raise UserError(
            f"{path}: is compressed by {UNSUPPORTED[ending]}: decompress it first, or use gzip, "
            f"bzip2 or xz."
        )
    if ending not in _ENDINGS:
        check_kind(
            Path(path), f"{', '.join(_ENDINGS)}, each also compressed, hf:NAME or hf:parquet:FILE"
        )
        raise UserError(
            f"{path}: cannot determine the format from the file name (known extensions: "
            f"{', '.join(_ENDINGS)}, each "
            "also compressed). For two parallel text files give the target file, too; "
            "else set --data.format to tsv, csv, jsonl or huggingface."
        )
    return _ENDINGS[ending]


def _collect(
    records: Records,
    origin: str,
    on_bad: OnBad,
    names: tuple[str, str],
    *,
    is_binary: bool,
    may_be_empty: bool,
) -> Pairs:
    sources, targets, lines, bad_rows = [], [], [], BadRows(on_bad)
    for number, row in records.rows:
        try:  # bad_rows.catch would take a fifth of the time
            cells = records.parse(row)
            pair = combine_targets(cells, records, is_binary=is_binary)
            source, target = _clean(*pair, names, records.places, may_be_empty=may_be_empty)
        except BadRow as bad:
            bad_rows.add(f"{locate(origin, number)}: {bad.detail}", bad.reason)
            continue
        sources.append(source)
        targets.append(target)
        lines.append(number)
    if not lines:
        raise UserError(
            "\n".join(filter(None, [f"{origin}: contains no pair.", bad_rows.skipped.describe()]))
        )
    return Pairs(sources, targets, lines, origin, bad_rows.skipped)


def _clean(
    source: str, target: str, names: tuple[str, str], places: Sequence[str], *, may_be_empty: bool
) -> tuple[str, str]:
    source, target = source.strip(), target.strip()
    if len(source) > MOST_CHARACTERS or len(target) > MOST_CHARACTERS:
        detail = f"a text has {max(len(source), len(target)):,} characters, more than {MOST_CHARACTERS:,}"
        raise BadRow("too long", detail)
    try:
        for text in (source, target):
            if not text.isascii():
                check_growth(
                    text, "nfkc"
                )  # the longest form; the one of the tokenizer is unknown here
    except ValueError as error:
        raise BadRow("too long", str(error)) from None
    if source and (target or may_be_empty):
        return source, target
    if not source and not target:
        raise BadRow("both empty", f"the {names[0]} and the {names[1]} are empty, expected both")
    side = 1 if source else 0
    place = f" ({places[side]})" if places else ""
    other = f"the {names[1 - side]} is {excerpt(source or target)}"
    raise BadRow(f"empty {names[side]}", f"the {names[side]}{place} is empty; {other}")
