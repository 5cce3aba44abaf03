"""Embedded data set `dates`: human-written dates in over fifty languages, and their ISO 8601 form.

    "vendredi 1er mars 2019"        ->  "2019-03-01"
    "  2019. MARCIUS 1., pentek "   ->  "2019-03-01"

An example is a pure function of (seed, split, epoch, index): nothing is stored, and the order of
calls does not matter. The splits are disjoint in their dates (a hash of the ISO form assigns each
date to one split), so no test date occurs in training. Validation and test examples depend on the
index only: runs with different seeds are evaluated on the same examples.
"""

import struct
import unicodedata
from bisect import bisect
from datetime import date
from functools import cache, cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from regard.data.embedded.date_formats import Day, LocaleSpellings, load_spellings
from regard.data.embedded.dates_config import DatesConfig

_DRAWS = struct.Struct("<8I")
_RANGE = 1 << 32


class DateExample(NamedTuple):
    """Date as people write it (`text`) and in ISO form (`iso`), with locale and CLDR pattern."""

    text: str
    iso: str
    locale: str
    pattern: str


def normalize(text: str) -> str:
    """Normalize a text: NFKC form, lower case, single spaces, none at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


class DatesDataset:
    """Data set of human-written dates, indexed by number.

    The date of an example is uniform over the dates of its split, its locale over the locales; its
    pattern is sampled by the weights of the locale. Native digits, stray case and stray spaces are
    applied with the probabilities in the config. Stray case and spaces never change the normalized
    text.

    Raises:  UserError if Babel lacks a locale; ValueError if the years are too few to give each
             split a date.
    """

    def __init__(self, config: DatesConfig | None = None, *, seed: int = 0):
        self.config = config or DatesConfig()
        self.seed = seed

    def example(self, split: str, *, epoch: int = 0, index: int) -> DateExample:
        """Return example number `index` of a split. Seed and epoch are used for `train` only."""
        days = _days_by_split(self.config.first_year, self.config.last_year)[split]
        key = f"train {self.seed} {epoch} {index}" if split == "train" else f"{split} {index}"
        digest = blake2b(key.encode(), digest_size=_DRAWS.size).digest()
        draws = _DRAWS.unpack(digest)  # uniform
        day_draw, locale_draw, pattern_draw, digits, case, space, kind, position = draws
        day = days[day_draw * len(days) // _RANGE]
        locale, weights = self._locales[locale_draw * len(self._locales) // _RANGE]
        spelling = locale.spellings[bisect(weights, pattern_draw * weights[-1] // _RANGE)]
        spelling = locale.choose(spelling, day)
        text = spelling.format(day)
        if locale.digits and digits < self.config.native_digits * _RANGE:
            text = text.translate(locale.digits)
        if case < self.config.case_noise * _RANGE:
            text = _change_case(text, kind=kind)
        if space < self.config.space_noise * _RANGE:
            text = _add_space(text, position=position)
        return DateExample(text, day.iso, locale.locale, spelling.pattern)

    def examples(self, split: str, *, epoch: int = 0) -> list[DateExample]:
        """Return a split's examples: of one epoch of training, or fixed of `val` and `test`."""
        config = self.config
        size = {"train": config.epoch_size, "val": config.val_size, "test": config.test_size}[split]
        return [self.example(split, epoch=epoch, index=index) for index in range(size)]

    @cached_property
    def _locales(self) -> tuple[tuple[LocaleSpellings, tuple[int, ...]], ...]:
        locales = []
        for locale in map(load_spellings, self.config.locales):
            weights = accumulate(spelling.weight for spelling in locale.spellings)
            locales.append((locale, tuple(weights)))
        return tuple(locales)


def split_of(iso: str) -> str:
    """Return the split of a date, always the same: 90 % `train`, 5 % `val`, 5 % `test`."""
    percent = int.from_bytes(blake2b(iso.encode(), digest_size=8).digest(), "little") % 100
    if percent < 5:
        return "test"
    return "val" if percent < 10 else "train"


@cache
def _days_by_split(first_year: int, last_year: int) -> dict[str, list[Day]]:
    days: dict[str, list[Day]] = {"train": [], "val": [], "test": []}
    for day in list_days(first_year, last_year):
        days[split_of(day.iso)].append(day)
    return days


def list_days(first_year: int, last_year: int) -> list[Day]:
    """Return all days of some years."""
    first, last = date(first_year, 1, 1).toordinal(), date(last_year, 12, 31).toordinal()
    days = map(date.fromordinal, range(first, last + 1))
    return [Day(day.year, day.month, day.day, day.weekday()) for day in days]


def _change_case(text: str, *, kind: int) -> str:
    """Return the text in another case, unless lower-casing would not restore it (Turkish)."""
    if kind % 3 == 0:
        changed = text.lower()
    elif kind % 3 == 1:
        changed = text.upper()
    else:
        changed = " ".join(map(str.capitalize, text.split(" ")))
    return changed if text.isascii() or _lower_forms(changed) == _lower_forms(text) else text


def _lower_forms(text: str) -> tuple[str, str]:
    """Lowercase the text as a whole, and by letter (a final sigma differs)."""
    whole = unicodedata.normalize("NFKC", text)
    return whole.lower(), "".join(map(str.lower, whole))


def _add_space(text: str, *, position: int) -> str:
    """Add one or two superfluous spaces: before, after, on both sides, or between two words."""
    width = " " * (1 + position // 4 % 2)
    side = position % 4
    if side == 0:
        return width + text
    if side == 1:
        return text + width
    words = text.split(" ")
    if side == 2 or len(words) == 1:
        return f"{width}{text} "
    cut = 1 + position // 8 % (len(words) - 1)
    return " ".join(words[:cut]) + width + " " + " ".join(words[cut:])
