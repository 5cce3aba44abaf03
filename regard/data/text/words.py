"""Words of a text with their offsets.

A word is a run of letters, digits and underscores; a Han, Hiragana or Katakana character; or any
other character that is not white space, such as each one of a run of punctuation.
"""

import sys

from tokenizers import Regex, pre_tokenizers

from regard.errors import UserError

_SINGLE = r"\p{Han}\p{Hiragana}\p{Katakana}"
"""Scripts without spaces between words."""
_INSIDE = r"\w\u00AD\u200C\u200D"
"""Characters of a word: also a soft hyphen, and the (non-)joiners of Persian and Hindi."""
WORDS = pre_tokenizers.Split(
    Regex(rf"[{_SINGLE}]|[{_INSIDE}&&[^{_SINGLE}]]+|[^\w\s]"), behavior="removed", invert=True
)


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a text, and for each the index of its first character and of the one
    after it. Raises UserError for a lone surrogate."""
    try:
        found = WORDS.pre_tokenize_str(text)
    except UnicodeEncodeError as error:
        raise UserError(describe_surrogate(text, error)) from None
    return [word for word, _ in found], [offsets for _, offsets in found]


def describe_surrogate(text: str, error: UnicodeEncodeError) -> str:
    """Return what is wrong with a text that has a lone surrogate, of wrongly decoded bytes."""
    problem = f"not valid Unicode: {text[:60]!r} ({error.reason})"
    if sys.getfilesystemencoding() != "utf-8":  # of arguments
        problem += "; the locale is not UTF-8: set PYTHONUTF8=1"
    return problem
