"""Synthetic sentences with tagged dates, the default data of the recipe `tags`.

    we  met  on  5      March    2019    in  room  12
    O   O    O   B-DAY  B-MONTH  B-YEAR  O   O     O

Dates are spelled as in twelve languages (regard.data.embedded.date_formats), with names or numbers,
so the meaning of a number depends on its context. No date is in two splits.
"""

import random
import re
from datetime import date

from regard.data.embedded.date_formats import Day, Spelling, load_spellings
from regard.data.embedded.dates import split_of
from regard.data.text.tagged import TaggedSentences

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


def make_sentences(split: str, seed: int) -> TaggedSentences:
    """Generate the sentences of a split, the same for the same seed."""
    draw, rows = random.Random(f"tags/{seed}/{split}"), []
    while len(rows) < _SIZES[split]:
        drawn = date.fromordinal(draw.randint(_FIRST, _LAST))
        day = Day(drawn.year, drawn.month, drawn.day, drawn.weekday())
        if split_of(day.iso) != split:
            continue
        locale = load_spellings(draw.choice(_LOCALES))
        spelling = locale.choose(draw.choice(locale.spellings), day)
        before, after = draw.choice(_BEFORE).split(), draw.choice(_AFTER).split()
        row = [(word, "O") for word in before] + _tag_date(spelling, day)
        rows.append(row + [(word, "O") for word in after])
    tokens, tags = (tuple(tuple(pair[side] for pair in row) for row in rows) for side in (0, 1))
    lines = tuple(range(1, len(rows) + 1))
    return TaggedSentences(tokens, tags, lines, f"synthetic sentences, {split}")


def _tag_date(spelling: Spelling, day: Day) -> list[tuple[str, str]]:
    """Return the tokens of a date and their tags; the text of the template is tagged O."""
    between = spelling.template.split("%s")
    tagged = [(word, "O") for word in _words(between[0])]
    for (part, table), after in zip(spelling.fields, between[1:], strict=True):
        for i, word in enumerate(_words(table[day[part]])):
            tagged.append((word, f"{'I' if i else 'B'}-{_KINDS[part]}"))
        tagged += [(word, "O") for word in _words(after)]
    return tagged


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)
