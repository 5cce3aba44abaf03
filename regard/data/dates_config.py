"""What the embedded data set `dates` holds: locales, years, sizes, shares. Needs neither torch nor Babel."""

from dataclasses import dataclass

__all__ = ["LOCALES", "DatesConfig"]

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

    first_year: int = 1900
    """First year of the dates, at least 1000: a year always has four digits."""

    last_year: int = 2099
    """Last year of the dates (included), at most 9999."""

    epoch_size: int = 50_000
    """Training examples in one epoch. They are made anew in every epoch."""

    val_size: int = 2_000
    """Validation examples: always the same ones, whatever the seed."""

    test_size: int = 2_000
    """Test examples: always the same ones, whatever the seed."""

    stray_case: float = 0.4
    """Share of the examples put in lower case, upper case or title case, 0 to 1."""

    stray_space: float = 0.2
    """Share of the examples with needless spaces in front, behind or between words, 0 to 1."""

    native_digits: float = 0.5
    """Share of native digits where the locale's own are not 0-9 (Arabic, Bengali ...), 0 to 1."""

    def __post_init__(self):
        if not self.locales or len(set(self.locales)) < len(self.locales):
            raise ValueError(f"`locales` must be one or more different names, but is {self.locales!r}.")
        if not 1000 <= self.first_year <= self.last_year <= 9999:
            raise ValueError(
                "`first_year` and `last_year` must satisfy 1000 <= first_year <= last_year <= 9999, "
                f"but are {self.first_year} and {self.last_year} instead."
            )
        for name in ("epoch_size", "val_size", "test_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {getattr(self, name)} instead.")
        for name in ("stray_case", "stray_space", "native_digits"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be between 0 and 1, but is {getattr(self, name)} instead.")
