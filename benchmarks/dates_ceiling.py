"""Best accuracy on the embedded dates: some are ambiguous without their language.

    python -m benchmarks.dates_ceiling

    accuracy = sum over texts of max over dates of P(text, date)

It is that of a Bayes classifier that is given the text only. It knows the distribution and the
calendar: a weekday determines the language, and whether a date matches it. The year is in every
text, so years differ only in their weekdays and 29 February: a common year and a leap year
represent all. Case and spaces are ignored.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regard.data.embedded.dates import DatesDataset, list_days, normalize

YEARS = 2023, 2024


class DateText(NamedTuple):
    """A normalized text of the data set, with its ISO date and its probability."""

    text: str
    iso: str
    probability: float


def compute_ceiling(texts: Iterable[DateText]) -> float:
    """Return the accuracy; the probabilities are normalized first."""
    by_text: dict[str, list[DateText]] = {}
    for item in texts:
        by_text.setdefault(item.text, []).append(item)
    total = sum(item.probability for items in by_text.values() for item in items)
    losses = []
    for text, items in by_text.items():
        mass: dict[str, float] = {}
        for item in items:
            mass[item.iso] = mass.get(item.iso, 0.0) + item.probability
        order = sorted(mass, key=lambda iso: (-mass[iso], iso))
        if len(order) > 1:
            losses.append((-sum(mass[iso] for iso in order[1:]) / total, text))
    return 1 - sum(-loss for loss, _ in sorted(losses))


def texts_of_year(data: DatesDataset, year: int) -> Iterator[DateText]:
    """Yield every normalized text of a year, over all splits. The probabilities sum to 1."""
    calendar = list_days(year, year)
    for locale, weights in data._locales:
        for spelling in locale.spellings:
            probability = spelling.weight / (weights[-1] * len(data._locales) * len(calendar))
            for day in calendar:
                text = normalize(locale.choose(spelling, day).format(day))
                native = 0.0
                if locale.digits and data.config.native_digits:
                    native = probability * data.config.native_digits
                    yield DateText(text.translate(locale.digits), day.iso, native)
                yield DateText(text, day.iso, probability - native)


def main() -> None:
    data = DatesDataset()
    ceilings = [compute_ceiling(texts_of_year(data, year)) for year in YEARS]
    print(f"{100 * sum(ceilings) / len(ceilings):.2f} %")


if __name__ == "__main__":
    main()
