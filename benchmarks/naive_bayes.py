"""Word-count baseline on reviews: multinomial naive Bayes on unigrams and bigrams.

    python benchmarks/naive_bayes.py TRAIN TEST

    class = argmax_c sum over the text's words and pairs w of log (n(w, c) + 1) / (sum_w n(w, c) +
    number of w)

Files in the format of `regard train reviews`; the prior is uniform over the classes.
"""

import argparse
import itertools
import math
from collections import Counter

from regard.data.config import LabeledConfig
from regard.data.text.labels import read_labeled


def grams(text: str) -> list[str]:
    """Return the unigrams and bigrams of a text."""
    words = text.lower().split()
    return [*words, *(f"{first} {second}" for first, second in itertools.pairwise(words))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("test")
    options = parser.parse_args()
    train, test = (
        read_labeled(LabeledConfig(), path, "train") for path in (options.train, options.test)
    )
    counts: dict[str, Counter[str]] = {}
    for text, label in train:
        counts.setdefault(label, Counter()).update(grams(text))
    vocabulary = set().union(*counts.values())
    totals = {label: sum(counter.values()) + len(vocabulary) for label, counter in counts.items()}

    def score(words: list[str], label: str) -> float:
        return sum(
            math.log((counts[label][word] + 1) / totals[label])
            for word in words
            if word in vocabulary
        )

    hits = 0
    for text, label in test:
        words = grams(text)
        hits += max(counts, key=lambda name: score(words, name)) == label  # used at once
    print(
        f"{100 * hits / len(test):.2f} % of {len(test):,} texts, {len(vocabulary):,} unigrams and "
        f"bigrams"
    )


if __name__ == "__main__":
    main()
