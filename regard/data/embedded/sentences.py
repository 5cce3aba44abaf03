"""Sentences about a canvas: "a sandal", "two ankle boots and a bag", "a bag left of a shirt".

    phrase      a NAME, an NAME, or NUMBER and the plural of NAME
    sentence    phrases joined by commas and "and"; or "a NAME left of a NAME"

The plural is that of the last word, on both sides of a slash: T-shirt/top, T-shirts/tops.
"""

import re
from collections.abc import Sequence

_NUMBER_WORDS = "no one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = _NUMBER_WORDS.split()
_CONSONANT_SOUND = re.compile(r"(one|once|uni([^mn]|$)|use|usu|ut[ei]|eu|ewe|u-|u$)", re.IGNORECASE)
_VOWEL_SOUND = re.compile(
    r"([aeiou]|hour|honest|heir|8|11$|18$|11[^0-9]|18[^0-9]|x-|[fhlmnrsx](-|$))", re.IGNORECASE
)
_IRREGULAR_PLURALS = (
    "man:men woman:women child:children person:people mouse:mice goose:geese foot:feet "
    "tooth:teeth ox:oxen sheep:sheep fish:fish deer:deer aircraft:aircraft knife:knives "
    "wife:wives life:lives leaf:leaves loaf:loaves half:halves calf:calves shelf:shelves "
    "wolf:wolves scarf:scarves thief:thieves potato:potatoes tomato:tomatoes hero:heroes "
    "echo:echoes buffalo:buffaloes trousers:trousers jeans:jeans shorts:shorts "
    "glasses:glasses scissors:scissors "
)
_IRREGULAR = dict(re.findall(r"(\w+):(\w+)", _IRREGULAR_PLURALS))


def article(name: str) -> str:
    """Return the article, a or an, by the initial sound of the name, guessed from its letters."""
    if _CONSONANT_SOUND.match(name):
        return "a"
    return "an" if _VOWEL_SOUND.match(name) else "a"


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
    known = _IRREGULAR.get(word.lower())
    if known is not None:
        return word[0] + known[1:] if known[:1] == word[:1].lower() else known
    if re.search(r"(s|x|z|ch|sh)$", word, re.IGNORECASE):
        return word + "es"
    if re.search(r"[^aeiou\W\d_]y$", word, re.IGNORECASE):
        return word[:-1] + "ies"
    return word + "s"
