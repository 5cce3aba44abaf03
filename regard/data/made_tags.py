"""Made-up sentences with a date in each, whose day, month, year and weekday are tagged: a recipe needs no data to run.

    we  met  on  5      March    2019    in  room  12
    O   O    O   B-DAY  B-MONTH  B-YEAR  O   O     O

Dates are written as in twelve languages (regard.data.dates_spelling), in words or in numbers, so what a number is, is
told by its neighbors alone. No date stands in two splits.
"""

import random
import re
from datetime import date

from regard.data.dates import split_of
from regard.data.dates_spelling import Day, Spelling, locution
from regard.data.tagged import Sentences

_LOCALES = ("en", "de", "fr", "es", "it", "nl", "pt", "sv", "da", "nb", "pl", "fi")
_BEFORE = (
    *("we met on", "on", "she was born on", "paid", "no later than"),
    *("see you", "chapter 7 , written", "from 3 to 5 on"),
)
_AFTER = (
    *("in room 12", "", "at 9 : 30", ".", "with 21 guests"),
    *("for 1999 euros", ", as agreed", "( page 31 )", "in May"),
)
_KINDS = ("YEAR", "MONTH", "DAY", "WEEKDAY")
_SIZES = {"train": 3000, "val": 300, "test": 500}
_FIRST, _LAST = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()


def made_sentences(split: str, seed: int) -> Sentences:
    """The sentences of a split, the same for the same seed."""
    draw, rows = random.Random(f"tags/{seed}/{split}"), []
    while len(rows) < _SIZES[split]:
        when = date.fromordinal(draw.randint(_FIRST, _LAST))
        day = Day(when.year, when.month, when.day, when.weekday())
        if split_of(day.iso) != split:
            continue
        ways = locution(draw.choice(_LOCALES))
        spelling = ways.choose(draw.choice(ways.spellings), day)
        plain = [[(word, "O") for word in draw.choice(part).split()] for part in (_BEFORE, _AFTER)]
        rows.append([*plain[0], *_tagged(spelling, day), *plain[1]])
    tokens, tags = (tuple(tuple(pair[side] for pair in row) for row in rows) for side in (0, 1))
    return Sentences(tokens, tags, tuple(range(1, len(rows) + 1)), f"made-up sentences, {split}")


def _tagged(spelling: Spelling, day: Day) -> list[tuple[str, str]]:
    """The tokens of a date, each with its tag: what the template adds is of no field."""
    between = spelling.template.split("%s")
    found = [(word, "O") for word in _words(between[0])]
    for (part, table), after in zip(spelling.fields, between[1:], strict=True):
        for i, word in enumerate(_words(table[day[part]])):
            found.append((word, f"{'I' if i else 'B'}-{_KINDS[part]}"))
        found += [(word, "O") for word in _words(after)]
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)
