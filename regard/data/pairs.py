"""Read pairs (source text, target text) from the user's own files, and say exactly what is wrong with them.

Five forms: TSV, CSV, two parallel text files, JSON lines (regard.data.formats), Hugging Face data sets
(regard.data.huggingface). Lines end at a line feed only: other characters that Unicode counts as line ends
may stand inside a text. White space around a text is dropped. Every problem names the file and the line,
counted from 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.data.config import OnBad, PairFormat, PairsConfig
from regard.data.formats import (
    BadLine,
    Columns,
    Records,
    csv_records,
    excerpt,
    jsonl_records,
    text_records,
    tsv_records,
)
from regard.data.growth import MOST_CHARACTERS, check_growth
from regard.data.huggingface import PREFIX, hugging_face_records
from regard.errors import UserError
from regard.packed import plain_name

_MAX_EXAMPLES = 3
_ENDINGS: dict[str, PairFormat] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


@dataclass(frozen=True)
class Skipped:
    """The bad lines that were left out because the user asked for that, counted by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    """reason -> number of lines"""

    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """reason -> the first few messages, each naming file and line"""

    @property
    def total(self) -> int:
        """Number of lines left out."""
        return sum(self.counts.values())

    def describe(self) -> str:
        """A report for people: a line a reason, with its first example; empty when nothing was skipped."""
        rows = [f"  {count} x {reason}; first: {self.examples[reason][0]}" for reason, count in self.counts.items()]
        return "\n".join([f"skipped {self.total} bad lines:", *rows]) if rows else ""

    def plus(self, reason: str, message: str) -> "Skipped":
        """One more bad line."""
        examples = self.examples.get(reason, ())
        kept = examples if len(examples) == _MAX_EXAMPLES else (*examples, message)
        counts = {**self.counts, reason: self.counts.get(reason, 0) + 1}
        return Skipped(counts, {**self.examples, reason: kept})


@dataclass(frozen=True)
class Pairs:
    """Texts in two languages, and where each pair came from.

    `sources`, `targets` and `lines` (line or row, from 1) have one entry a pair; `origin` names the files.
    """

    sources: list[str]
    targets: list[str]
    lines: list[int]
    origin: str
    skipped: Skipped = field(default_factory=Skipped)

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)

    def where(self, index: int) -> str:
        """The place of a pair, for messages: "train.tsv, line 17"."""
        return f"{self.origin}, line {self.lines[index]}"


def read_split(config: PairsConfig, split: Literal["train", "val", "test"]) -> Pairs:
    """The pairs of one of the config's three sets.

    Raises:  UserError if the config names no data for this set, and whatever `read_pairs` raises.
    """
    path = getattr(config, split)
    if path is None:
        raise UserError(f"no {split} pairs: `data.{split}` must name a file, a folder or a data set (hf:NAME).")
    return read_pairs(
        path,
        target=getattr(config, f"{split}_target"),
        format=config.format,
        source_column=config.source_column,
        target_column=config.target_column,
        on_bad=config.on_bad,
        split=split,
    )


def read_pairs(
    path: str | Path,
    *,
    target: str | Path | None = None,
    format: PairFormat = "auto",
    source_column: int | str | None = None,
    target_column: int | str | None = None,
    on_bad: OnBad = "error",
    split: str = "train",
    also: tuple[type, ...] = (),
    names: tuple[str, str] = ("source", "target"),
) -> Pairs:
    """Read all pairs of a file, of two parallel files (`path` and `target`), or of a data set.

    Args:
        path: a file, plain or packed; a folder written by `datasets`; or hf:NAME[:CONFIG][#SPLIT].
        target: the target side, when `path` is the source side of two parallel text files.
        format: auto finds it from `target`, the name's ending, or hf:.
        source_column: number (from 1) or name in a header line, in TSV and CSV; else a field's name, dots for nested.
        target_column: as `source_column`.
        on_bad: error raises at the first bad line; skip leaves them out and counts them in `Pairs.skipped`.
        split: which part of a data set to read, where its name does not say (#SPLIT).
        also: what a target may be beside a text, where a format has such: int, float, list. What may be a list may
            be empty.
        names: of the columns and fields that are read if none is given. In TSV and CSV without such a header, columns
            1 and 2; a warning tells of a first line that looks like another header.

    Blank lines are left out.

    Raises:  UserError naming the file, the line, what was expected and what was got. What concerns a whole
             file (missing, cut off, empty, unequal lengths, no good pair at all) is an error whatever
             `on_bad` says.
    """
    form = _find_format(path, target, format)
    origin = str(path) if target is None else f"{path} + {target}"
    fields = {"source_field": str(source_column or names[0]), "target_field": str(target_column or names[1])}
    if form == "text":
        if target is None:
            raise UserError(f"{path}: text means two parallel files, but the target file is not given.")
        records = text_records(Path(path), Path(target))
    elif form in ("tsv", "csv"):
        read = tsv_records if form == "tsv" else csv_records
        records = read(Path(path), Columns(source_column, target_column, names))
    elif form == "jsonl":
        records = jsonl_records(Path(path), **fields, also=also)
    else:
        records = hugging_face_records(str(path), split=split, **fields, also=also)
    return _collect(records, origin, on_bad, may_be_empty=list in also)


def limit_length(
    pairs: Pairs, lengths: Sequence[tuple[int, int]], *, max_length: int, on_bad: OnBad
) -> tuple[list[int], Skipped]:
    """The indices of pairs with at most `max_length` tokens on the longer side, and all that was skipped.

    `lengths` holds (source tokens, target tokens) of each pair. With on_bad="skip" longer pairs are added to
    what `pairs.skipped` holds; otherwise the first of them is an error.

    Raises:  UserError naming file, line and both lengths, or saying that no pair is short enough.
    """
    if len(lengths) != len(pairs):
        raise ValueError(f"`lengths` must have one entry a pair, {len(pairs)}, but has {len(lengths)} instead.")
    keep, skipped = [], pairs.skipped
    for index, (source, target) in enumerate(lengths):
        if max(source, target) <= max_length:
            keep.append(index)
            continue
        detail = f"{source} source and {target} target tokens, longer than max_length = {max_length}"
        skipped = _bad(skipped, on_bad, pairs.where(index), BadLine("too long", detail))
    if not keep:
        raise UserError(f"{pairs.origin}: no pair has at most max_length = {max_length} tokens on its longer side.")
    return keep, skipped


def _find_format(path: str | Path, target: str | Path | None, format: PairFormat) -> PairFormat:
    if target is not None and format not in ("auto", "text"):
        raise UserError(f"a target file goes with format 'text', but `format` is {format!r} ({path}, {target}).")
    if format != "auto":
        return format
    if target is not None:
        return "text"
    if str(path).startswith(PREFIX) or Path(str(path).partition("#")[0]).is_dir():
        return "huggingface"
    ending = Path(plain_name(path)).suffix
    if ending not in _ENDINGS:
        raise UserError(
            f"{path}: cannot tell from its name what it holds (known endings: {', '.join(_ENDINGS)}, each "
            "also packed). For two parallel text files give the target file too; "
            "else give the format (--data.format): tsv, csv, jsonl or huggingface."
        )
    return _ENDINGS[ending]


def _collect(records: Records, origin: str, on_bad: OnBad, *, may_be_empty: bool) -> Pairs:
    sources, targets, lines, skipped = [], [], [], Skipped()
    for number, record in records.rows:
        try:
            source, target = _clean(*records.parse(record), may_be_empty=may_be_empty)
        except BadLine as bad:
            skipped = _bad(skipped, on_bad, f"{origin}, line {number}", bad)
            continue
        sources.append(source)
        targets.append(target)
        lines.append(number)
    if not lines:
        raise UserError("\n".join(filter(None, [f"{origin}: there is no pair in it.", skipped.describe()])))
    return Pairs(sources, targets, lines, origin, skipped)


def _clean(source: str, target: str, *, may_be_empty: bool) -> tuple[str, str]:
    source, target = source.strip(), target.strip()
    if len(source) > MOST_CHARACTERS or len(target) > MOST_CHARACTERS:
        detail = f"a text has {max(len(source), len(target)):,} characters, above {MOST_CHARACTERS:,}"
        raise BadLine("too long", detail)
    try:
        for text in (source, target):
            check_growth(text, "nfkc")  # which grows most; the reader does not know what the tokenizer does
    except ValueError as error:
        raise BadLine("too long", str(error)) from None
    if source and (target or may_be_empty):
        return source, target
    if not source and not target:
        raise BadLine("both sides empty", "both sides are empty, expected a text in each")
    side, other = ("target", source) if source else ("source", target)
    raise BadLine(f"empty {side}", f"the {side} side is empty, expected a text (the other is {excerpt(other)})")


def _bad(skipped: Skipped, on_bad: OnBad, where: str, bad: BadLine) -> Skipped:
    message = f"{where}: {bad.detail}"
    if on_bad == "error":
        raise UserError(f"{message}. With `on_bad` = skip, such lines are left out and counted.")
    return skipped.plus(bad.reason, message)
