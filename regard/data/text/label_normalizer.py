"""Unicode normalization of labels, so that composed and decomposed spellings are one label. (no torch)

An accented letter is one character, or two, a letter and a mark. They look the same; macOS uses two in names of
folders, most other programs one.

Source: Unicode Standard Annex #15, "Unicode Normalization Forms" (form NFC).
"""

import unicodedata
import warnings
from collections import Counter

_EXCERPT = 60


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
