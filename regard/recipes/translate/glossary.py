"""Glossaries: terms of a source text, and those that its outputs must contain."""

import re
from pathlib import Path

from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import Tokenizer
from regard.decode.rules import encode_written
from regard.decode.terms import Term
from regard.errors import UserError


class Glossary:
    """Terms of a table, in the Unicode form and the case of the tokenizers.

    Raises: UserError for a source term with two targets, or a target that cannot be written.
    """

    def __init__(self, path: Path, source_tokenizer: Tokenizer, tokenizer: Tokenizer):
        self._source, pairs = source_tokenizer, read_pairs(path)
        self._terms: dict[str, Term] = {}
        for source, target in zip(pairs.sources, pairs.targets, strict=True):
            ids = tuple(encode_written(tokenizer, f"{path}: glossary", target)[0])
            if self._terms.setdefault(source_tokenizer.normalize(source), ids) != ids:
                raise UserError(f"{path}: the term {source!r} must have one target, got two")
        names = map(re.escape, sorted(self._terms, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(names)})(?!\w)")

    def terms_of(self, text: str) -> tuple[Term, ...]:
        """Return the targets of the terms that a source has as whole words, the longest first."""
        found = self._pattern.finditer(self._source.normalize(text))
        return tuple(dict.fromkeys(self._terms[match[0]] for match in found))
