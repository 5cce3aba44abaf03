"""Sentences about items: articles, plurals, counts and relations."""

import pytest

from regard.data.embedded.sentences import (
    article,
    count_phrase,
    describe_items,
    describe_relation,
    plural,
)


@pytest.mark.parametrize(
    ("singular", "plural_of_two"),
    [
        ("a sandal", "two sandals"),
        ("an ankle boot", "two ankle boots"),
        ("a T-shirt/top", "two T-shirts/tops"),
        ("a dress", "two dresses"),
        ("a three", "two threes"),
        ("a six", "two sixes"),
        ("an eight", "two eights"),
        ("a one", "two ones"),
        ("an 8", "two 8s"),
        ("an 18", "two 18s"),
        ("a 110", "two 110s"),
        ("a city", "two cities"),
        ("a toy", "two toys"),
        ("a church", "two churches"),
        ("an umbrella", "two umbrellas"),
    ],
)
def test_articles_and_plurals(singular, plural_of_two):
    name = singular.split(" ", 1)[1]
    assert count_phrase(1, name) == singular
    assert count_phrase(2, name) == plural_of_two


def test_items_are_counted_in_order_of_first_occurrence():
    assert describe_items(["bag"]) == "a bag"
    assert describe_items(["bag", "shirt"]) == "a bag and a shirt"
    assert describe_items(["shirt", "ankle boot", "shirt"]) == "two shirts and an ankle boot"
    assert describe_items(["a", "b", "c"]) == "an a, a b and a c"
    assert describe_items(["dot"] * 13) == "13 dots"


def test_relation_of_two_items():
    assert describe_relation("ankle boot", "left of", "bag") == "an ankle boot left of a bag"


def test_capitals_are_kept():
    assert plural("Box") == "Boxes"
    assert article("Umbrella") == "an"
