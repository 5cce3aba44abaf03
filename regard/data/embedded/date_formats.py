"""Spellings of dates in each language: CLDR patterns, compiled into templates and tables of names.

    pattern "EEEE, d 'de' MMMM 'de' y"  ->  template "%s, %s de %s de %s" + one table of names for
    each %s

so that formatting a date is four look-ups. The patterns are those of the CLDR (as shipped with
Babel) for the locale, with a four-digit year, and a few that are common everywhere. A pattern is in
the syntax of the CLDR, as for Babel's `format_date`, except that `do` is a day with its ordinal:
1st, 1er.

Two rules make a numeric date unambiguous without the language. After the year comes the month.
Before the year, the day comes first, and 03/04/2019 is always 3 April: a locale with the month
first (English, Filipino) uses that order only where it is visible, as in 04/13/2019, or makes no
difference, as in 03/03/2019; on other days it uses its pattern with the name of the month.

Source:  Unicode Technical Standard 35, part 4 (dates); the data is Babel's.
"""

import re
from datetime import date
from functools import cache
from typing import Any, NamedTuple

from regard.errors import UserError

# Weights within a locale. A pattern that occurs twice keeps its first weight.
_CLDR = {"full": 4, "long": 4, "medium": 4, "short": 2}
_SKELETONS = {"yMMMMd": 2, "yMMMd": 2, "yMMMEd": 2, "yMMMMEEEEd": 2, "yMd": 2, "yMEd": 1}
_WRITTEN = {
    **{"d MMMM y": 3, "d MMM y": 3, "dd MMMM y": 1, "dd-MMM-y": 1, "MMMM d, y": 2, "MMM d y": 2},
    **{"y MMMM d": 2, "EEEE d MMMM y": 2, "EEE d MMM y": 2, "EEEE, MMMM d, y": 1},
}
_NUMERIC = dict.fromkeys(("d/M/y", "dd/MM/y", "d.M.y", "dd.MM.y", "d-M-y", "dd-MM-y"), 1)
_YEAR_FIRST = dict.fromkeys(("y-MM-dd", "y/MM/dd", "y.MM.dd", "yMMdd"), 1)
_IBERIAN = ("do 'de' MMMM 'de' y", "EEEE, do 'de' MMMM 'de' y")
_OWN = {
    "en": ("MMMM do, y", "MMM do y", "do MMMM y", "do 'of' MMMM y", "EEEE, do MMMM y"),
    "fr": ("do MMMM y", "EEEE do MMMM y"),
    "es": _IBERIAN,
    "pt": _IBERIAN,
    "ca": ("d MMMM 'de' y", "d MMMM y"),
    "it": ("do MMMM y", "EEEE do MMMM y"),
    "nl": ("do MMMM y",),
    "sv": ("'den' do MMMM y",),
    "el": ("do MMMM y", "EEEE do MMMM y"),
    "ru": ("do MMMM y",),
    "uk": ("do MMMM y",),
    "vi": ("'ng\u00e0y' d MMMM 'n\u0103m' y", "EEEE, 'ng\u00e0y' d MMMM 'n\u0103m' y"),
    "fil": ("do 'ng' MMMM y",),
}

# Babel has no ordinals. `d` is replaced by the day; other days have no ordinal. English: see
# _ordinal.
_EACH_DAY = range(1, 32)
_ORDINALS = {
    "fr": ("der", (1,)),
    "es": ("d\u00ba", (1,)),
    "pt": ("d\u00ba", (1,)),
    "it": ("d\u00ba", (1,)),
    "nl": ("de", _EACH_DAY),
    "sv": ("d:e", frozenset(_EACH_DAY) - {1, 2, 21, 22, 31}),
    "el": ("d\u03b7", (1,)),
    "ru": ("d-\u0433\u043e", _EACH_DAY),
    "uk": ("d-\u0433\u043e", _EACH_DAY),
    "fil": ("ika-d", _EACH_DAY),
}

_Tables = dict[str, tuple[str, ...]]
_ZEROS = {
    **{"arab": 0x660, "arabext": 0x6F0, "deva": 0x966},
    **{"beng": 0x9E6, "mymr": 0x1040, "tibt": 0xF20},
}
_PARTS = {"y": 0, "M": 1, "d": 2, "E": 3}
_YEARS = tuple(map(str, range(10_000)))
_IN_A_DATE = str.maketrans("Lc", "ME")


class Day(NamedTuple):
    """Day of the Gregorian calendar: month and day from 1, weekday from 0 (Monday)."""

    year: int
    month: int
    day: int
    weekday: int

    @property
    def iso(self) -> str:
        """ISO 8601 form, such as `2019-03-04`."""
        return f"{self.year:04d}-{self.month:02d}-{self.day:02d}"


class Spelling(NamedTuple):
    """Compiled pattern of one locale, which formats any day."""

    pattern: str
    weight: int
    template: str
    fields: tuple[tuple[int, tuple[str, ...]], ...]
    is_month_first: bool

    def format(self, day: Day) -> str:
        """Format a day, in the case of the CLDR and in ASCII digits."""
        return self.template % tuple([table[day[part]] for part, table in self.fields])


class LocaleSpellings(NamedTuple):
    """All spellings of dates in one locale."""

    locale: str
    language: str
    spellings: tuple[Spelling, ...]
    plain: Spelling
    digits: dict[int, str] | None
    """Mapping from ASCII to native digits, for `str.translate`; None if the locale uses 0-9."""

    def choose(self, spelling: Spelling, day: Day) -> Spelling:
        """Return the spelling; the long one of the CLDR (month by name) if ambiguous."""
        is_ambiguous = spelling.is_month_first and day.day <= 12 and day.day != day.month
        return self.plain if is_ambiguous else spelling


@cache
def load_spellings(name: str) -> LocaleSpellings:
    """Compile all spellings of a locale; cached. Raises UserError if Babel has no such locale."""
    from babel import Locale, UnknownLocaleError  # noqa: PLC0415

    try:
        locale = Locale.parse(name)
    except (UnknownLocaleError, ValueError) as error:
        raise UserError(f"`locales` must be CLDR locales such as pt_BR, got {name!r}.") from error
    tables: _Tables = {}
    spellings = []
    for pattern, weight in _patterns(locale).items():
        spelling = _compile(locale, pattern, weight, tables)
        if spelling is not None:
            spellings.append(spelling)
    plain = _compile(locale, locale.date_formats["long"].pattern, 0, tables)
    if plain is None or plain.is_month_first:
        raise UserError(f"`locales`: the long date format of {name!r} is numeric.")
    zero = _ZEROS.get(locale.default_numbering_system)
    digits = {ord("0") + i: chr(zero + i) for i in range(10)} if zero else None
    return LocaleSpellings(name, locale.language, tuple(spellings), plain, digits)


def _patterns(locale: Any) -> dict[str, int]:
    weighted = [(locale.date_formats[name].pattern, weight) for name, weight in _CLDR.items()]
    skeletons = locale.datetime_skeletons
    for name, weight in _SKELETONS.items():
        if name in skeletons:
            weighted.append((skeletons[name].pattern, weight))
    patterns: dict[str, int] = {}
    for pattern, weight in weighted:
        patterns.setdefault(_adapt(pattern), weight)
    # A month that is a number and a word (Japanese, Vietnamese) or includes its "of" (Catalan) is
    # not moved.
    movable = not re.search(r"[\d ]", "".join(locale.months["format"]["abbreviated"].values()))
    own = dict.fromkeys(_OWN.get(locale.language, ()), 2)
    for more in (_WRITTEN if movable else {}, own, _NUMERIC, _YEAR_FIRST):
        for pattern, weight in more.items():
            patterns.setdefault(pattern, weight)
    return patterns


def _adapt(pattern: str) -> str:
    """Return the pattern with a four-digit year, and names used in dates, not stand-alone ones,
    which Babel can return in another language (python-babel/babel#1234)."""
    parts = re.split("('[^']*')", pattern)  # odd ones are quoted text
    parts[::2] = [re.sub("(?<!y)yy(?!y)", "y", part).translate(_IN_A_DATE) for part in parts[::2]]
    return "".join(parts)


def _compile(locale: Any, pattern: str, weight: int, tables: _Tables) -> Spelling | None:
    """Compile a pattern into a template and its tables; None for one with fields other than those
    of a date, or with numbers in an ambiguous order."""
    from babel.dates import format_date, parse_pattern  # noqa: PLC0415

    source = str(parse_pattern(pattern).format)
    if pattern in _OWN.get(locale.language, ()):
        source = source.replace("%(d)so", "%(do)s")
    day = date(2000, 1, 1)
    source = re.sub(r"%\((G+)\)s", lambda era: format_date(day, era[1], locale), source)
    names = re.findall(r"%\((\w+)\)s", source)
    if any(name[0] not in _PARTS for name in names):
        return None
    for name in names:
        if name not in tables:
            tables[name] = _table(locale, name)
    order = "".join(name[0] for name in names if name[0] in "yMd")
    is_numeric = "M" in names or "MM" in names
    if is_numeric and order in ("ydM", "dyM", "Myd"):
        return None
    fields = tuple((_PARTS[name[0]], tables[name]) for name in names)
    template = re.sub(r"%\(\w+\)s", "%s", source)
    return Spelling(pattern, weight, template, fields, is_month_first=is_numeric and order == "Mdy")


def _table(locale: Any, field: str) -> tuple[str, ...]:
    """Return the texts of a field, indexed by year, month, day or weekday."""
    if field == "do":
        return ("", *(_ordinal(locale.language, day) for day in range(1, 32)))
    from babel.dates import format_date  # noqa: PLC0415

    part = _PARTS[field[0]]
    if part == 0:
        return _YEARS
    days = {
        1: [date(2000, month, 1) for month in range(1, 13)],
        2: [date(2000, 1, day) for day in range(1, 32)],
        3: [date(2000, 1, day) for day in range(3, 10)],  # from a Monday
    }
    texts = [format_date(day, field, locale) for day in days[part]]
    return tuple(texts) if part == 3 else ("", *texts)


def _ordinal(language: str, day: int) -> str:
    if language == "en":
        ending = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        return f"{day}{ending}"
    form, days = _ORDINALS[language]
    return form.replace("d", str(day)) if day in days else str(day)
