"""Glossaries: terms of source texts, and those that their outputs must contain."""

import re
from collections.abc import Sequence
from pathlib import Path

from regard.data.bad_rows import BadRows
from regard.data.config import Tables
from regard.data.text.pairs import collect_pairs, read_columns
from regard.data.tokenizer import Tokenizer
from regard.decode.rules import encode_written
from regard.decode.terms import Term
from regard.errors import UserError, warn_caller


def find_terms(
    path: Path, tables: Tables, texts: Sequence[str], *, source: Tokenizer, target: Tokenizer
) -> tuple[tuple[Term, ...], ...]:
    """Return for each text the targets of the terms that it has as whole words, in the Unicode form
    and the case of the tokenizers. Of terms that overlap, the first one counts, then the longest.

    Raises: UserError for a source term with two targets, or a target that cannot be written.
    """
    sides, bad_rows, targets = ("source", "target"), BadRows("error", ""), dict[str, Term]()
    tables = Tables(header=tables.header, encoding=tables.encoding)
    rows = read_columns(path, [(side, None) for side in sides], tables, "", bad_rows)
    pairs = collect_pairs(rows, str(path), sides, bad_rows)
    for notice in pairs.notices:
        warn_caller(notice)
    for term, text in pairs:
        ids = tuple(encode_written(target, f"{path}: glossary", text)[0])
        if targets.setdefault(source.normalize(term), ids) != ids:
            raise UserError(f"{path}: the term {term!r} must have one target, got two")
    names = map(re.escape, sorted(targets, key=len, reverse=True))
    pattern, found = re.compile(rf"(?<!\w)(?:{'|'.join(names)})(?!\w)"), []
    for text in texts:
        matches = pattern.finditer(source.normalize(text))
        found.append(tuple(dict.fromkeys(targets[match[0]] for match in matches)))
    return tuple(found)
