"""What sentences say, and how."""

import pytest

from regard.data.sentences import article, phrase, plural, related, sentence


@pytest.mark.parametrize(
    ("one", "two"),
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
        ("a knife", "two knives"),
        ("a woman", "two women"),
        ("a sheep", "two sheep"),
        ("an hour", "two hours"),
        ("a unicorn", "two unicorns"),
        ("an umbrella", "two umbrellas"),
        ("an x-ray", "two x-rays"),
    ],
)
def test_articles_and_plurals(one, two):
    name = one.split(" ", 1)[1]
    assert phrase(1, name) == one
    assert phrase(2, name) == two


def test_items_are_counted_in_the_order_in_which_they_first_come():
    assert sentence(["bag"]) == "a bag"
    assert sentence(["bag", "shirt"]) == "a bag and a shirt"
    assert sentence(["shirt", "ankle boot", "shirt"]) == "two shirts and an ankle boot"
    assert sentence(["a", "b", "c"]) == "an a, a b and a c"
    assert sentence(["dot"] * 13) == "13 dots"


def test_relations_name_one_of_each():
    assert related("ankle boot", "left of", "bag") == "an ankle boot left of a bag"
    with pytest.raises(ValueError, match="relation must be one of left of, right of, above, below, but is 'near'"):
        related("bag", "near", "bag")


def test_what_cannot_be_said_is_refused():
    with pytest.raises(ValueError, match="count must be at least 1, but is 0"):
        phrase(0, "bag")
    with pytest.raises(ValueError, match="names must have one at least"):
        sentence([])


def test_capitals_stay():
    assert plural("Child") == "Children"
    assert article("Umbrella") == "an"
