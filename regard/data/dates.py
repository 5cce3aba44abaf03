"""Human-written dates to ISO 8601, in more than fifty languages: the embedded data set `dates`.

    "vendredi 1er mars 2019"  ->  "2019-03-01"        "  2019. MARCIUS 1., pentek "  ->  "2019-03-01"

An example is a pure function of (seed, split, epoch, index): nothing is stored, no order of calls matters.
The three splits hold different dates (a date is in one split by a hash of its ISO form), so that every test
date is new to the model. Validation and test examples depend on the index only: two runs with different seeds
are scored on the same ones.

A reader who is not told the language cannot always tell the date: "3 listopada 2019" is October in Croatian,
November in Polish. `Dates.ceiling` says how often such a reader can be right at best.
"""

import struct
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import cache, cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple, NoReturn

from regard.data.dates_config import DatesConfig
from regard.data.dates_spelling import Day, Locution, locution, month_names

_VAL_PERCENT = 5
_TEST_PERCENT = 5
_DRAWS = struct.Struct("<8I")
_RANGE = 1 << 32


class DateExample(NamedTuple):
    """A date as somebody wrote it (`text`) and what it means (`iso`), with its locale and CLDR pattern."""

    text: str
    iso: str
    locale: str
    pattern: str


class Written(NamedTuple):
    """A text that the data set can hold (normalized), its meaning, its locale and its probability."""

    text: str
    iso: str
    locale: str
    probability: float


class Ambiguity(NamedTuple):
    """A text with several readings: what it costs, and its dates, the likeliest first, with their locales."""

    text: str
    loss: float
    readings: dict[str, tuple[str, ...]]


class Ceiling(NamedTuple):
    """The best accuracy that any reader can reach, and what stands in the way, the costliest first."""

    accuracy: float
    ambiguities: tuple[Ambiguity, ...]


class Report(NamedTuple):
    """How varied the data set is: counts of different things."""

    num_languages: int
    num_locales: int
    num_patterns: int
    num_spellings: int
    """Pairs of locale and pattern."""
    num_month_names: int
    """Names and short names of months, normalized; plain numbers are not counted."""


def normalize(text: str) -> str:
    """The text without what does not matter: NFKC form, lower case, single spaces, none at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def ceiling(written: Iterable[Written]) -> Ceiling:
    """The best accuracy of a reader who sees only the text, and the texts that it must get wrong at times.

        accuracy = sum over texts of max over dates of P(text, date)

    The probabilities are divided by their sum first. The reader knows the distribution and the calendar: a
    weekday tells the language, and whether a date fits it.
    """
    by_text: dict[str, list[Written]] = {}
    for one in written:
        by_text.setdefault(one.text, []).append(one)
    total = sum(one.probability for same in by_text.values() for one in same)
    if total <= 0:
        raise ValueError(f"`written` must have a positive total probability, but has {total} instead.")
    ambiguities = []
    for text, same in by_text.items():
        if any(one.iso != same[0].iso for one in same):
            ambiguities.append(_ambiguity(text, same, total))
    ambiguities.sort(key=lambda found: (-found.loss, found.text))
    return Ceiling(1 - sum(found.loss for found in ambiguities), tuple(ambiguities))


class Dates:
    """The data set: examples by number, and what they are drawn from.

    An example's date is uniform over the dates of its split, its locale over the locales; its pattern goes by
    the weights of the locale's spellings. Native digits, stray case and stray spaces follow, by the shares in
    the config. Stray case and spaces never change the normalized text.

    Raises:  UserError if Babel lacks a locale; ValueError if the years are too few to give each split a date.
    """

    def __init__(self, config: DatesConfig | None = None, *, seed: int = 0):
        self.config = config or DatesConfig()
        self.seed = seed

    def example(self, split: str, *, epoch: int = 0, index: int) -> DateExample:
        """Example number `index` of a split. The seed and the epoch matter for `train` only."""
        if index < 0 or epoch < 0:
            raise ValueError(f"`index` and `epoch` must be at least 0, but are {index} and {epoch} instead.")
        days = self._days[split] if split in self._days else _refuse(split)
        key = f"train {self.seed} {epoch} {index}" if split == "train" else f"{split} {index}"
        which_day, which_locale, which_pattern, digits, case, space, kind, place = _draw(key)
        day = days[which_day * len(days) // _RANGE]
        ways, weights = self._locutions[which_locale * len(self._locutions) // _RANGE]
        spelling = ways.spellings[bisect(weights, which_pattern * weights[-1] // _RANGE)]
        spelling = ways.choose(spelling, day)
        text = spelling.write(day)
        if ways.digits and digits < self.config.native_digits * _RANGE:
            text = text.translate(ways.digits)
        if case < self.config.stray_case * _RANGE:
            text = _stray_case(text, kind=kind)
        if space < self.config.stray_space * _RANGE:
            text = _stray_space(text, place=place)
        return DateExample(text, day.iso, ways.locale, spelling.pattern)

    def examples(self, split: str, *, epoch: int = 0) -> list[DateExample]:
        """All examples of a split: those of one training epoch, or the fixed ones of `val` or `test`."""
        sizes = {"train": self.config.epoch_size, "val": self.config.val_size, "test": self.config.test_size}
        size = sizes[split] if split in sizes else _refuse(split)
        return [self.example(split, epoch=epoch, index=index) for index in range(size)]

    def written(self, year: int) -> Iterator[Written]:
        """Every normalized text of a year, of dates in any split, with its probability; they sum to 1."""
        calendar = _calendar(year, year)
        for ways, weights in self._locutions:
            for spelling in ways.spellings:
                each = spelling.weight / (weights[-1] * len(self._locutions) * len(calendar))
                for day in calendar:
                    text = normalize(ways.choose(spelling, day).write(day))
                    if ways.digits and self.config.native_digits:
                        native = each * self.config.native_digits
                        yield Written(text.translate(ways.digits), day.iso, ways.locale, native)
                        yield Written(text, day.iso, ways.locale, each - native)
                    else:
                        yield Written(text, day.iso, ways.locale, each)

    def ceiling(self, years: Sequence[int] = (2023, 2024)) -> Ceiling:
        """The best accuracy of a reader who is not told the language, by writing out whole years.

        The year is in every text, so that years differ only in their weekdays and 29 February: by default a
        common year and a leap year stand for all. Case and spaces are taken as no hint. Seconds a year.
        """
        parts = [ceiling(self.written(year)) for year in years]
        found = [one._replace(loss=one.loss / len(parts)) for part in parts for one in part.ambiguities]
        found.sort(key=lambda one: (-one.loss, one.text))
        return Ceiling(sum(part.accuracy for part in parts) / len(parts), tuple(found))

    def report(self) -> Report:
        """Counts of languages, patterns and names."""
        every = [ways for ways, _ in self._locutions]
        names = {normalize(name) for ways in every for month in month_names(ways.locale) for name in month}
        return Report(
            num_languages=len({ways.language for ways in every}),
            num_locales=len(every),
            num_patterns=len({spelling.pattern for ways in every for spelling in ways.spellings}),
            num_spellings=sum(len(ways.spellings) for ways in every),
            num_month_names=len(names),
        )

    @cached_property
    def _days(self) -> dict[str, tuple[Day, ...]]:
        """The dates of each split."""
        return _days_by_split(self.config.first_year, self.config.last_year)

    @cached_property
    def _locutions(self) -> tuple[tuple[Locution, tuple[int, ...]], ...]:
        """Each locale's spellings with their weights added up."""
        every = [locution(name) for name in self.config.locales]
        return tuple((ways, tuple(accumulate(one.weight for one in ways.spellings))) for ways in every)


def split_of(iso: str) -> str:
    """The split a date is in, whatever the config and the machine: 90 % `train`, 5 % `val`, 5 % `test`."""
    percent = int.from_bytes(blake2b(iso.encode(), digest_size=8).digest(), "little") % 100
    if percent < _TEST_PERCENT:
        return "test"
    return "val" if percent < _TEST_PERCENT + _VAL_PERCENT else "train"


@cache
def _days_by_split(first_year: int, last_year: int) -> dict[str, tuple[Day, ...]]:
    days: dict[str, list[Day]] = {"train": [], "val": [], "test": []}
    for day in _calendar(first_year, last_year):
        days[split_of(day.iso)].append(day)
    for split, found in days.items():
        if not found:
            raise ValueError(
                "`first_year` to `last_year` must give each split a date, but "
                f"{first_year} to {last_year} gives `{split}` none."
            )
    return {split: tuple(found) for split, found in days.items()}


def _calendar(first_year: int, last_year: int) -> list[Day]:
    first, last = date(first_year, 1, 1).toordinal(), date(last_year, 12, 31).toordinal()
    days = map(date.fromordinal, range(first, last + 1))
    return [Day(day.year, day.month, day.day, day.weekday()) for day in days]


def _draw(key: str) -> tuple[int, ...]:
    """Eight uniform 32-bit numbers, a pure function of the key."""
    return _DRAWS.unpack(blake2b(key.encode(), digest_size=_DRAWS.size).digest())


def _stray_case(text: str, *, kind: int) -> str:
    """The text in another case; as it was where lower-casing does not lead back (Turkish dotless i)."""
    if kind % 3 == 0:
        changed = text.lower()
    elif kind % 3 == 1:
        changed = text.upper()
    else:
        changed = " ".join(map(str.capitalize, text.split(" ")))
    return changed if text.isascii() or _lower_forms(changed) == _lower_forms(text) else text


def _lower_forms(text: str) -> tuple[str, str]:
    """Lower case of the whole text, and letter by letter (a final sigma differs; tokenizers do either)."""
    whole = unicodedata.normalize("NFKC", text)
    return whole.lower(), "".join(map(str.lower, whole))


def _stray_space(text: str, *, place: int) -> str:
    """The text with a needless space or two: in front, behind, on both sides, or between two words."""
    width = " " * (1 + place // 4 % 2)
    side = place % 4
    if side == 0:
        return width + text
    if side == 1:
        return text + width
    pieces = text.split(" ")
    if side == 2 or len(pieces) == 1:
        return f"{width}{text} "
    cut = 1 + place // 8 % (len(pieces) - 1)
    return " ".join(pieces[:cut]) + width + " " + " ".join(pieces[cut:])


def _ambiguity(text: str, same: list[Written], total: float) -> Ambiguity:
    mass: dict[str, float] = {}
    locales: dict[str, set[str]] = {}
    for one in same:
        mass[one.iso] = mass.get(one.iso, 0.0) + one.probability
        locales.setdefault(one.iso, set()).add(one.locale)
    order = sorted(mass, key=lambda iso: (-mass[iso], iso))
    readings = {iso: tuple(sorted(locales[iso])) for iso in order}
    return Ambiguity(text, sum(mass[iso] for iso in order[1:]) / total, readings)


def _refuse(split: str) -> NoReturn:
    raise ValueError(f"`split` must be one of train, val, test, but is {split!r} instead.")
