"""Unicode normalization of labels, so that composed and decomposed spellings are one label; doubtful labels. (no torch)

An accented letter is one character, or two, a letter and a mark. They look the same; macOS uses two in names of
folders, most other programs one.

Source: Unicode Standard Annex #15, "Unicode Normalization Forms" (form NFC).
"""

import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable

_EXCERPT = 60
_MISSING = ("nan", "null", "none", "n/a", "na", "<na>", "nat")
"""Words that programs write in place of a missing value, in lower case."""


class LabelNormalizer(dict[str, str]):
    """Cache of labels in NFC form, which is used for comparison and in messages.

        normalizer = LabelNormalizer()
        labels = [normalizer[label] for label in labels]
        normalizer.warn_merged("train.tsv")
    """  # fmt: skip

    def __missing__(self, label: str) -> str:
        form = self[label] = unicodedata.normalize("NFC", label)
        return form

    def warn_merged(self, origin: str) -> None:
        """Warn if labels of different spellings were merged."""
        merged = [form for form, count in Counter(self.values()).items() if count > 1]
        if merged:
            more = f" and {len(merged) - 1:,} more" if len(merged) > 1 else ""
            warnings.warn(
                f"{origin}: two Unicode spellings of a label, composed and decomposed, are treated as one label: "
                f"{merged[0][:_EXCERPT]!r}{more}.",
                stacklevel=3,
            )


def warn_of_doubtful_labels(names: Iterable[str], origin: str) -> None:
    """Warn of classes that are probably one class (`RBC` and `rbc`, `1` and `1.0`) or none (`nan`)."""
    known = sorted(set(names))
    numbers = [name for name in known if _number(name) is not None]
    for reason, group in (
        ("differ only in upper and lower case", _first_group(known, str.casefold)),
        ("are the same number", _first_group(numbers, _number)),
    ):
        if group:
            warnings.warn(
                f"{origin}: the labels {' and '.join(repr(name[:_EXCERPT]) for name in group)} {reason}, and are "
                "different classes",
                stacklevel=3,
            )
    missing = next((name for name in known if name.lower() in _MISSING), None)
    if missing is not None:
        warnings.warn(
            f"{origin}: {missing!r} is a class; if it stands for a missing label, remove its rows", stacklevel=3
        )


def _first_group(names: Iterable[str], key: Callable[[str], Hashable]) -> list[str]:
    """Return the first names that have the same key, or nothing."""
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return next((group for group in groups.values() if len(group) > 1), [])


def _number(name: str) -> float | None:
    try:
        value = float(name)
    except ValueError:
        return None
    return value if value == value else None  # noqa: PLR0124  # NaN is no number
