"""Limit on the length of normalized texts, checked before memory is allocated for the result.

A character becomes up to 18 in NFKC (U+FDFA) and up to 3 in NFC, so a small file can expand to a very long text.
"""

import unicodedata
from typing import Literal

MOST_CHARACTERS = 1_000_000
"""Maximum length of one text; a longer one is probably a file without line ends."""
_MOST_FACTOR = 18
_MOST_GROWTH = 2
_BLOCK = 1 << 14
_FORMS: dict[str, Literal["NFC", "NFKC"]] = {"nfc": "NFC", "nfkc": "NFKC"}


def check_growth(text: str, normalize: str) -> None:
    """Check that a normalized text has at most MOST_CHARACTERS, or twice as many as the text if that is more.

    normalize:  nfc, nfkc or none.
    Raises:     ValueError naming the length before, the limit and the form.
    """
    most = max(MOST_CHARACTERS, _MOST_GROWTH * len(text))
    if normalize == "none" or len(text) * _MOST_FACTOR <= most or text.isascii():
        return
    form, grown = _FORMS[normalize], 0
    for start in range(0, len(text), _BLOCK):
        # Characters are not composed across the end of a block, which overestimates the length slightly.
        grown += len(unicodedata.normalize(form, text[start : start + _BLOCK]))
        if grown > most:
            raise ValueError(f"a text of {len(text):,} characters has more than {most:,} after normalization ({form})")
