"""What the embedded data set `dates` holds: locales, years, sizes, shares. Needs neither torch nor Babel."""

from dataclasses import dataclass
from typing import Annotated

from regard.ranges import Range, Share, check_ranges

# One locale a language, written in 17 scripts. Arabic is Egypt's, which writes its own digits.
LOCALES = (
    *("en", "fr", "de", "es", "pt", "it", "nl", "ca", "eu", "ga", "cy"),
    *("da", "sv", "nb", "fi", "is", "et", "lv", "lt"),
    *("pl", "cs", "sk", "sl", "hr", "sr", "bg", "mk", "ru", "uk", "be"),
    *("ro", "hu", "sq", "el", "tr", "az", "kk", "hy", "ka"),
    *("he", "ar_EG", "fa", "ur", "am", "sw"),
    *("hi", "mr", "bn", "ta", "te", "th", "my"),
    *("vi", "id", "fil", "ja", "zh", "ko"),
)


@dataclass(frozen=True, kw_only=True)
class DatesConfig:
    """Human-written dates to ISO 8601, made on the fly from the Unicode CLDR.

    Raises:  ValueError if a field is out of its range (the field, the rule and the value are in the message).
    """

    locales: tuple[str, ...] = LOCALES
    """CLDR locales to write in, each equally often, such as `de` or `pt_BR`. The model is not told which."""

    first_year: Annotated[int, Range(1_000, 9_999)] = 1900
    """First year of the dates: a year always has four digits."""

    last_year: Annotated[int, Range(1_000, 9_999)] = 2099
    """Last year of the dates (included)."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 50_000
    """Training examples in one epoch. They are made anew in every epoch."""

    val_size: Annotated[int, Range(1, 1_000_000)] = 2_000
    """Validation examples: always the same ones, whatever the seed."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 2_000
    """Test examples: always the same ones, whatever the seed."""

    stray_case: Share = 0.4
    """Share of the examples put in lower case, upper case or title case."""

    stray_space: Share = 0.2
    """Share of the examples with needless spaces in front, behind or between words."""

    native_digits: Share = 0.5
    """Share of native digits where the locale's own are not 0-9 (Arabic, Bengali ...)."""

    def __post_init__(self):
        if not self.locales or len(set(self.locales)) < len(self.locales):
            raise ValueError(f"`locales` must be one or more different names, but is {self.locales!r}.")
        check_ranges(self)
        if self.first_year > self.last_year:
            raise ValueError(f"first_year must be at most last_year={self.last_year}, but is {self.first_year}")
