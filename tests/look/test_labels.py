"""Labels of tokens in any script."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.look.figures.labels import families_for, isolate_sides, readable

SANS = ["DejaVu Sans"]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("word", "word"),
        (" ", "\u2423"),
        ("a b", "a\u2423b"),
        ("\u00a0", "\u2423"),
        ("\n", "\u21b5"),
        ("\x00", "<0000>"),
        ("\u202e", "<202E>"),
        ("\ud800", "<D800>"),
        ("", "\u2205"),
        ("\u0301", "\u25cc\u0301"),
        ("e\u0301t", "e\u0301t"),
        ("\u0645\u06cc\u200c\u0634", "\u0645\u06cc\u200c\u0634"),
        ("\u200d", "<200D>"),
        ("x" * 30, "x" * 23 + "\u2026"),
    ],
)
def test_readable_shows(token, shown):
    assert readable(token) == shown


@given(st.text(st.characters(), max_size=40))
def test_readable_is_visible_for_every_text(token):
    shown = readable(token)
    assert shown
    assert not any(unicodedata.category(c) in ("Cc", "Cs") or c.isspace() for c in shown)
    assert not unicodedata.combining(shown[0])
    shown.encode()  # no half of a surrogate pair


@pytest.mark.parametrize("date", ["\u0663 \u0645\u0627\u0631\u0633", "\u05d0 3"])
def test_sides_of_a_title_that_is_written_from_right_to_left_are_ordered_apart(date):
    isolated = f"\u2068{date}\u2069 -> \u20682019-03-03\u2069"
    assert isolate_sides(f"{date} -> 2019-03-03") == isolated
    assert isolate_sides("3 mei -> 2019-05-03") == "3 mei -> 2019-05-03"
    assert isolate_sides(date) == date


def test_first_family_draws_common_scripts_alone():
    latin, cyrillic, arabic = "m\u00e4rz", "\u041c\u0430\u0440\u0442", "\u0645\u0627\u0631\u0633"
    assert families_for([latin, cyrillic, arabic, "\u2192"]) == SANS
