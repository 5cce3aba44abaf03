"""Unicode normalization of labels, and warnings about labels that are probably meant to be others. (no torch)

An accented letter is one character, or two, a letter and a mark. They look the same; macOS uses two in names of
folders, most other programs one.

Source: Unicode Standard Annex #15, "Unicode Normalization Forms" (form NFC).
"""

import math
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator

from regard.data.text.numbers import parse_number

_EXCERPT = 60
_MISSING = ("nan", "null", "none", "n/a", "na", "<na>", "nat")
"""Words that programs write in place of a missing value, in lower case."""


class LabelNormalizer(dict[str, str]):
    """Cache of labels in NFC form, which is used for comparison and in messages.

        normalizer = LabelNormalizer()
        labels = [normalizer[label] for label in labels]
        normalizer.warn("train.tsv")
    """  # fmt: skip

    def __missing__(self, label: str) -> str:
        form = self[label] = unicodedata.normalize("NFC", label)
        return form

    def warn(self, origin: str) -> None:
        """Warn of spellings that were merged, and of labels that are probably one class (`RBC` and `rbc`, `1` and
        `1.0`) or none (`nan`).
        """
        for warning in filter(None, (self._merged(), *self._alike(), self._missing())):
            warnings.warn(f"{origin}: {warning}.", stacklevel=3)

    def _merged(self) -> str:
        merged = [form for form, count in Counter(self.values()).items() if count > 1]
        if not merged:
            return ""
        more = f" and {len(merged) - 1:,} more" if len(merged) > 1 else ""
        return (
            "two Unicode spellings of a label, composed and decomposed, are treated as one label: "
            f"{merged[0][:_EXCERPT]!r}{more}"
        )

    def _alike(self) -> Iterator[str]:
        forms = sorted(set(self.values()))
        numbers = [form for form in forms if parse_number(form, most=math.inf) is not None]
        for names, key, reason in ((forms, str.casefold, "differ only in case"), (numbers, float, "are one number")):
            groups: defaultdict[Hashable, list[str]] = defaultdict(list)
            for name in names:
                groups[key(name)].append(name)
            if group := next((group for group in groups.values() if len(group) > 1), None):
                yield f"the labels {' and '.join(repr(name[:_EXCERPT]) for name in group)} {reason}: different classes"

    def _missing(self) -> str:
        missing = next((form for form in self.values() if form.lower() in _MISSING), "")
        return missing and f"{missing!r} is a class; if it stands for a missing label, remove its rows"
