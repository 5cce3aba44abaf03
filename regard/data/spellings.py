"""Labels in one spelling: an accented letter is one character or two, a letter and a mark. (no torch)

macOS names folders with two, most other programs write one; people see no difference.

Source: Unicode Standard Annex #15, "Unicode Normalization Forms" (form NFC).
"""

import unicodedata
import warnings
from collections import Counter

_EXCERPT = 60


class Spellings(dict[str, str]):
    """Each label that was looked up, with its form NFC, by which labels are compared and shown.

        spellings = Spellings()
        labels = [spellings[label] for label in labels]
        spellings.warn_merged("train.tsv")
    """  # fmt: skip

    def __missing__(self, label: str) -> str:
        form = self[label] = unicodedata.normalize("NFC", label)
        return form

    def warn_merged(self, origin: str) -> None:
        """Warn if labels of several spellings have become one."""
        merged = [form for form, count in Counter(self.values()).items() if count > 1]
        if merged:
            more = f" and {len(merged) - 1:,} more" if len(merged) > 1 else ""
            warnings.warn(
                f"{origin}: two Unicode spellings of a label, composed and decomposed, are read as one label: "
                f"{merged[0][:_EXCERPT]!r}{more}.",
                stacklevel=3,
            )
