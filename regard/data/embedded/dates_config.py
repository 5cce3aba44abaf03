"""Settings of the data set `dates`: locales, years, sizes, probabilities. Imports no torch."""

from typing import Annotated

from regard.settings.declare import settings
from regard.settings.ranges import Fraction, Range

# One locale per language, in 17 scripts. Arabic is that of Egypt, which has native digits.
LOCALES = (
    *("en", "fr", "de", "es", "pt", "it", "nl", "ca", "eu", "ga", "cy"),
    *("da", "sv", "nb", "fi", "is", "et", "lv", "lt"),
    *("pl", "cs", "sk", "sl", "hr", "sr", "bg", "mk", "ru", "uk", "be"),
    *("ro", "hu", "sq", "el", "tr", "az", "kk", "hy", "ka"),
    *("he", "ar_EG", "fa", "ur", "am", "sw"),
    *("hi", "mr", "bn", "ta", "te", "th", "my"),
    *("vi", "id", "fil", "ja", "zh", "ko"),
)


@settings
class DatesConfig:
    """Human-written dates and their ISO 8601 form, generated on the fly from the Unicode CLDR."""

    locales: tuple[str, ...] = LOCALES
    """CLDR locales of the dates, such as `de` or `pt_BR`, equally probable; no model input."""
    first_year: Annotated[int, Range(1_000, 9_999)] = 1900
    """First year of the dates."""
    last_year: Annotated[int, Range(1_000, 9_999)] = 2099
    """Last year of the dates (included)."""
    epoch_size: Annotated[int, Range(1, 10_000_000)] = 50_000
    """Number of training examples in an epoch. They are new in every epoch."""
    val_size: Annotated[int, Range(1, 1_000_000)] = 2_000
    """Number of validation examples, the same for every seed."""
    test_size: Annotated[int, Range(1, 1_000_000)] = 2_000
    """Number of test examples, the same for every seed."""
    case_noise: Fraction = 0.4
    """Fraction of the examples in lower case, upper case or title case."""
    space_noise: Fraction = 0.2
    """Fraction of the examples with superfluous spaces before, after or between words."""
    native_digits: Fraction = 0.5
    """Fraction of examples in native digits, in locales with others than 0-9 (Arabic, ...)."""

    def __post_init__(self):
        if not self.locales or len(set(self.locales)) < len(self.locales):
            raise ValueError(f"`locales` must be one or more different names, got {self.locales!r}")
        first, last = self.first_year, self.last_year
        if first > last:
            raise ValueError(f"`first_year` must be at most {last}, got {first}")
