"""Synthetic reviews, the default data of the recipe `reviews`.

    the plot was never dull and i loved every minute     ->  positive: "never" negates "dull"

The class of a review is the sign of the sum over its clauses, each of which has a positive or a
negative word that may be negated; counting words is therefore not sufficient. Its labels are the
things that it praises, its number is the number of positive minus that of negative clauses. No text
is in two splits.
"""

import hashlib
import json
import random
from collections.abc import Iterator

from regard.data.config import TargetKind
from regard.data.text.pairs import Pairs

_THINGS = (
    *("plot", "acting", "music", "ending", "script", "cast", "pace"),
    *("camera work", "dialogue", "story", "humour"),
)
_GOOD = (
    *("gripping", "moving", "clever", "funny", "fresh", "charming"),
    *("honest", "beautiful", "sharp", "warm", "bold"),
)
_BAD = (
    *("dull", "clumsy", "tired", "flat", "silly", "cold"),
    *("lazy", "hollow", "noisy", "stale", "shallow", "endless"),
)
_NEGATIONS = ("not", "never", "hardly", "anything but", "far from")
_OPENINGS = (
    *("", "well , ", "to be fair , ", "my friends said that "),
    *("in the end ", "as always , ", "this time "),
)
_SIZES = {"train": 4000, "val": 500, "test": 1000}


def make_reviews(split: str, seed: int, target: TargetKind = "class") -> Pairs:
    """Generate the reviews of a split and their targets, the same for the same seed."""
    texts, labels, reviews = [], [], _generate(split, seed)
    while len(texts) < _SIZES[split]:
        text, praised, sign = next(reviews)
        if _split_of(text) == split:
            name = "positive" if sign > 0 else "negative"
            kinds = {"class": name, "labels": json.dumps(praised), "number": str(sign)}
            texts.append(text)
            labels.append(kinds[target])
    return Pairs(texts, labels, list(range(1, len(texts) + 1)), f"synthetic reviews, {split}")


def _generate(split: str, seed: int) -> Iterator[tuple[str, list[str], int]]:
    draw = random.Random(f"reviews/{seed}/{split}")
    while True:
        clauses, praised, sign = [], [], 0
        for _ in range(draw.choice((1, 1, 3))):
            is_good, is_negated = draw.random() < 0.5, draw.random() < 0.5
            word = draw.choice(_GOOD if is_good else _BAD)
            sign += 1 if is_good != is_negated else -1
            modifier = draw.choice(("", "very ", "really ") if not is_negated else _NEGATIONS)
            modifier += " " if is_negated else ""
            thing = draw.choice(_THINGS)
            clauses.append(f"the {thing} was {modifier}{word}")
            praised += [thing] if is_good != is_negated else []
        yield draw.choice(_OPENINGS) + " , ".join(clauses), praised, sign


def _split_of(text: str) -> str:
    number = hashlib.sha256(text.encode()).digest()[0]  # below 256
    if number < 32:
        return "val"
    return "test" if number < 80 else "train"
