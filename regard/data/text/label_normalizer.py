"""Unicode normalization of labels, and warnings about labels that are probably meant to be others.
(no torch)

An accented letter is one character, or two, a letter and a mark. They look the same; macOS uses two
in names of folders, most other programs one.

Source: Unicode Standard Annex #15, "Unicode Normalization Forms" (form NFC).
"""

import math
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from itertools import takewhile

from regard.data.text.numbers import parse_number

_EXCERPT = 60
_RARE, _COMMON = 2, 100
"""Most occurrences of a label that may be a typo, and fewest of the label that it may stand for."""
_SHORTEST = 4
"""Length of labels of which one may be a typo of the other: cat and car are two classes."""
_MISSING = ("nan", "null", "none", "n/a", "na", "<na>", "nat")
"""Words that programs write in place of a missing value, in lower case."""


class LabelNormalizer(dict[str, str]):
    """Cache of labels in NFC form, which is used for comparison and in messages.

        normalizer = LabelNormalizer()
        labels = [normalizer[label] for label in labels]
        normalizer.warn("train.tsv")
    """  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def __getitem__(self, label: str) -> str:
        form = super().__getitem__(label)
        self._counts[form] += 1
        return form

    def __missing__(self, label: str) -> str:
        form = self[label] = unicodedata.normalize("NFC", label)
        return form

    def warn(self, origin: str) -> None:
        """Warn of spellings that were merged, and of labels that are probably one class (`RBC` and
        `rbc`, `1` and `1.0`, one `postive` among hundreds of `positive`) or none (`nan`).
        """
        for warning in filter(
            None,
            (
                self._describe_merged(),
                *self._describe_similar(),
                self._describe_typo(),
                self._describe_missing(),
            ),
        ):
            warnings.warn(f"{origin}: {warning}.", stacklevel=3)

    def _describe_merged(self) -> str:
        merged = [form for form, count in Counter(self.values()).items() if count > 1]
        if not merged:
            return ""
        more = f" and {len(merged) - 1:,} more" if len(merged) > 1 else ""
        return (
            "two Unicode spellings of a label, composed and decomposed, are treated as one label: "
            f"{merged[0][:_EXCERPT]!r}{more}"
        )

    def _describe_similar(self) -> Iterator[str]:
        forms = sorted(set(self.values()))
        numbers = [form for form in forms if parse_number(form, most=math.inf) is not None]
        for names, key, reason in (
            (forms, str.casefold, "differ only in case"),
            (numbers, float, "are one number"),
        ):
            groups: defaultdict[Hashable, list[str]] = defaultdict(list)
            for name in names:
                groups[key(name)].append(name)
            if group := next((group for group in groups.values() if len(group) > 1), None):
                yield f"the labels {' and '.join(repr(name[:_EXCERPT]) for name in group)} {reason}: different classes"

    def _describe_typo(self) -> str:
        common = [label for label, count in self._counts.items() if count >= _COMMON]
        for rare in (label for label, count in self._counts.items() if count <= _RARE):
            if near := next((label for label in common if _is_one_edit_apart(rare, label)), ""):
                return (
                    f"the label {rare[:_EXCERPT]!r} occurs "
                    f"{('once', 'twice')[self._counts[rare] - 1]}, and "
                    f"{near[:_EXCERPT]!r} {self._counts[near]:,} times: different classes; correct "
                    f"it if it is a typo"
                )
        return ""

    def _describe_missing(self) -> str:
        missing = next((form for form in self.values() if form.lower() in _MISSING), "")
        return (
            missing and f"{missing!r} is a class; if it stands for a missing label, remove its rows"
        )


def _is_one_edit_apart(rare: str, common: str) -> bool:
    """Return True if one letter, not the first, is left out, added or another, or if two neighbors
    are exchanged."""
    if min(len(rare), len(common)) < _SHORTEST or abs(len(rare) - len(common)) > 1:
        return False
    start = _count_equal(rare, common)
    end = _count_equal(rare[start:][::-1], common[start:][::-1])
    changed, other = rare[start : len(rare) - end], common[start : len(common) - end]
    is_edit = max(len(changed), len(other)) == 1 or (len(changed) == 2 and changed == other[::-1])
    return start > 0 and is_edit and (changed + other).isalpha()


def _count_equal(first: str, second: str) -> int:
    """Return the number of equal characters at the start."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
