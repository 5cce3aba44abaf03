import re
import subprocess
import sys
from datetime import date

import pytest
from babel import Locale
from babel.dates import format_date

from regard.data.embedded.date_formats import Day, load_spellings
from regard.data.embedded.dates_config import LOCALES


def read_values(text, between, fields):
    """Return the values of fields in a text, with other text around and between; None: no such."""
    if not text.startswith(between[0]):
        return None
    text = text.removeprefix(between[0])
    if not fields:
        return None if text else []
    part, table = fields[0]
    if part:
        values = [value for value in reversed(table) if value]  # 12 comes before 1
    else:
        values = re.findall("^[0-9]{4}", text)
    for value in values:
        if text.startswith(value):
            rest = read_values(text.removeprefix(value), between[1:], fields[1:])
            if rest is not None:
                return [value, *rest]
    return None


def read_back(spelling, text):
    """Return (year, month, day) of a text, by matching it against the tables of the spelling."""
    found = read_values(text, spelling.template.split("%s"), spelling.fields)
    assert found is not None
    values = [0, 0, 0, 0]
    for (part, table), value in zip(spelling.fields, found, strict=True):
        assert table.count(value) == 1
        values[part] = table.index(value)
    return tuple(values[:3])


@pytest.mark.parametrize("name", LOCALES)
def test_spellings_equal_babel(name):
    locale = load_spellings(name)
    days = [date(2019, month, 1 + (5 * month) % 28) for month in range(1, 13)]
    days += [date(2024, 2, 29), date(1903, 8, 31)]
    for spelling in locale.spellings:
        if "do" in spelling.pattern:
            continue
        for day in days:
            expected = format_date(day, spelling.pattern, locale=name)
            assert spelling.format(Day(day.year, day.month, day.day, day.weekday())) == expected


@pytest.mark.parametrize("name", LOCALES)
def test_spellings_hold_the_formats_of_the_locale(name):
    day = date(2019, 11, 25)
    written = {spelling.format(Day(2019, 11, 25, 0)) for spelling in load_spellings(name).spellings}
    for style in ("full", "long", "medium", "short"):
        pattern = Locale.parse(name).date_formats[style].pattern
        if "c" in pattern:  # a stand-alone weekday, which Babel can take from another language
            continue
        text = format_date(day, style, locale=name)
        assert text in written or ("2019" not in text and text.replace("19", "2019") in written)


def test_stand_alone_weekday_becomes_the_weekday_of_a_date():
    assert "EEEE d. MMMM y" in {spelling.pattern for spelling in load_spellings("fi").spellings}


def test_spellings_do_not_depend_on_earlier_calls_of_babel():
    # Babel shares stand-alone names between languages after their first use.
    script = """
from babel.dates import format_date
from datetime import date
for name in ("he", "az"):
    format_date(date(2019, 4, 3), "LLLL LLL cccc ccc", locale=name)
from regard.data.embedded.dates_config import LOCALES
from regard.data.embedded.date_formats import Day, load_spellings
day, texts = Day(2019, 4, 3, 2), []
for name in LOCALES:
    texts += [spelling.format(day) for spelling in load_spellings(name).spellings]
print(ascii(texts))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    texts = []
    for name in LOCALES:
        texts += [
            spelling.format(Day(2019, 4, 3, 2)) for spelling in load_spellings(name).spellings
        ]
    assert run.stdout.strip() == ascii(texts)


@pytest.mark.parametrize("name", LOCALES)
def test_every_spelling_determines_its_date(name):
    for number, spelling in enumerate(load_spellings(name).spellings):
        day = Day(2031 + number, 1 + number % 12, 13 + number % 15, number % 7)
        assert read_back(spelling, spelling.format(day)) == day[:3]


@pytest.mark.parametrize(
    ("name", "day", "expected"),
    [
        ("en", Day(2019, 3, 1, 4), "March 1st, 2019"),
        ("en", Day(2019, 3, 12, 1), "12th of March 2019"),
        ("en", Day(2019, 3, 22, 4), "Friday, 22nd March 2019"),
        ("en", Day(2019, 3, 23, 5), "Mar 23rd 2019"),
        ("fr", Day(2019, 3, 1, 4), "vendredi 1er mars 2019"),
        ("fr", Day(2019, 3, 2, 5), "2 mars 2019"),
        ("es", Day(2019, 1, 1, 1), "1\u00ba de enero de 2019"),
        ("pt", Day(2019, 1, 1, 1), "1\u00ba de janeiro de 2019"),
        ("de", Day(2019, 3, 3, 6), "Sonntag, 3. M\u00e4rz 2019"),
        ("nl", Day(2019, 3, 3, 6), "3e maart 2019"),
        ("sv", Day(2019, 3, 3, 6), "den 3:e mars 2019"),
        ("sv", Day(2019, 3, 21, 3), "den 21 mars 2019"),
        ("ru", Day(2019, 3, 3, 6), "3-\u0433\u043e \u043c\u0430\u0440\u0442\u0430 2019"),
        ("fil", Day(2019, 3, 3, 6), "ika-3 ng Marso 2019"),
        ("vi", Day(2019, 3, 3, 6), "ng\u00e0y 3 th\u00e1ng 3 n\u0103m 2019"),
        ("eu", Day(2019, 3, 3, 6), "2019(e)ko martxoaren 3(a), igandea"),
        ("zh", Day(2019, 3, 3, 6), "2019\u5e743\u67083\u65e5\u661f\u671f\u65e5"),
    ],
)
def test_locale_has_idiomatic_spellings(name, day, expected):
    assert expected in {spelling.format(day) for spelling in load_spellings(name).spellings}


def test_month_comes_first_only_where_it_is_unambiguous():
    locale = load_spellings("en")
    american = next(spelling for spelling in locale.spellings if spelling.pattern == "M/d/y")
    for day, expected in [
        (Day(2019, 4, 13, 5), "4/13/2019"),
        (Day(2019, 4, 4, 3), "4/4/2019"),
        (Day(2019, 4, 3, 2), "April 3, 2019"),
    ]:
        assert locale.choose(american, day).format(day) == expected
    firsts = set()
    for name in LOCALES:
        if any(spelling.is_month_first for spelling in load_spellings(name).spellings):
            firsts.add(name)
    assert firsts == {"en", "fil"}
