"""Sizes of the documents or lines of a text, by which `regard compare` draws its samples."""

import re
from collections.abc import Callable, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.text.corpus import Corpus
from regard.data.tokenizer import Tokenizer


class Sizes(NamedTuple):
    """Number of tokens, and of bytes in UTF-8, of each example of a text."""

    tokens: NDArray[np.int64]
    num_bytes: NDArray[np.int64]


def measure_examples(
    text: Corpus, tokenizer: Tokenizer, encode: Callable[[str], Sized]
) -> Sizes | None:
    """Return the sizes of the documents of a text, or of its lines that are not blank.

    A token is of the line in which it begins; a blank line is of the example before it.

    encode:  of the recipe, for documents and line ends that are a token.
    Returns: None if the tokens do not show where lines end.
    """
    tokens, sizes, begins = list[int](), list[int](), list[bool]()
    num_ends = 0 if tokenizer.specials.eos is None else 1
    for block in text:
        lines = [block] if text.has_documents else re.findall(r"[^\n]*\n|[^\n]+", block)
        if text.has_documents:
            counts = [len(encode(block)) + num_ends]
        elif tokenizer.keeps_space:  # a token may be of several line ends
            counts = _count_tokens(block, lines, tokenizer)
        else:
            counts = [len(encode(line)) for line in lines]
        if counts is None:
            return None
        tokens += counts
        sizes += [len(line.encode()) for line in lines]
        begins += [text.has_documents or not line.isspace() for line in lines]
    examples: Any = np.maximum(np.cumsum(begins) - 1, 0)
    sums = [np.bincount(examples, weights=own).astype(np.int64) for own in (tokens, sizes)]
    return Sizes(*sums)


def _count_tokens(block: str, lines: Sequence[str], tokenizer: Tokenizer) -> list[int] | None:
    """Return the number of tokens that begin in each line; None if not all line ends are seen."""
    counts, line = [0] * (len(lines) + 1), 0
    for _, part in tokenizer.parts(block):
        counts[line] += 1
        line += part.count("\n")
    return counts[: len(lines)] if line == block.count("\n") else None
