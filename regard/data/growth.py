"""How much longer normalization makes a text, counted before memory is used for the result.

A character becomes up to 18 in NFKC (U+FDFA), 3 in NFC, so a small file can hold a very long text.
"""

import unicodedata
from typing import Literal

MOST_CHARACTERS = 1_000_000
"""Of one text of a file of many: what is longer is no sentence and no review, but a file without line ends."""
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
        # Pieces that a block's end separates are not composed, which adds a few characters at most.
        grown += len(unicodedata.normalize(form, text[start : start + _BLOCK]))
        if grown > most:
            raise ValueError(f"a text of {len(text):,} characters has more than {most:,} after normalization ({form})")
