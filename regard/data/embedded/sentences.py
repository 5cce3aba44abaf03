"""Sentences about a canvas: "a sandal", "two ankle boots and a bag", "a bag left of a shirt".

    phrase      a NAME, an NAME, or NUMBER and the plural of NAME
    sentence    phrases joined by commas and "and"; or "a NAME left of a NAME"

The plural is that of the last word, on both sides of a slash: T-shirt/top, T-shirts/tops. It is
regular: -s, -es or -ies.
"""

import re
from collections.abc import Sequence

_NUMBER_WORDS = "no one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = _NUMBER_WORDS.split()


def article(name: str) -> str:
    """Return the article of a name: an before a vowel, 8, 11 and 18; a one."""
    if name.startswith("one"):
        return "a"
    return "an" if re.match(r"[aeiou]|8|1[18]$", name, re.IGNORECASE) else "a"


def plural(name: str) -> str:
    """Return the plural of a name."""
    parts = []
    for part in name.split("/"):
        *before, word = part.split(" ")
        parts.append(" ".join([*before, _plural_word(word)]))
    return "/".join(parts)


def count_phrase(count: int, name: str) -> str:
    """Return the phrase for a number of items, at least one."""
    if count == 1:
        return f"{article(name)} {name}"
    return f"{_NUMBERS[count] if count < len(_NUMBERS) else count} {plural(name)}"


def describe_items(names: Sequence[str]) -> str:
    """Return a sentence with the number of items of each name, in order of first occurrence."""
    *first, last = [count_phrase(names.count(name), name) for name in dict.fromkeys(names)]
    return f"{', '.join(first)} and {last}" if first else last


def describe_relation(first: str, relation: str, second: str) -> str:
    """Return a sentence with the spatial relation of two items."""
    return f"{count_phrase(1, first)} {relation} {count_phrase(1, second)}"


def _plural_word(word: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", word, re.IGNORECASE):
        return word + "es"
    if re.search(r"[^aeiou\W\d_]y$", word, re.IGNORECASE):
        return word[:-1] + "ies"
    return word + "s"
