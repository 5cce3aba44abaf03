"""Options that recipes share: limits on lengths, other data to evaluate on, outputs to predict. (no
torch)"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, Self, TypeVar

from regard.data.config import Header, OnBad, PairFormat, TextsFormat
from regard.decode.config import DecodeConfig
from regard.errors import UserError
from regard.models.config import ModelConfig
from regard.models.cores.config import max_length_of
from regard.settings.declare import settings
from regard.settings.ranges import Count, Fraction, Range, short_repr
from regard.settings.tree import apply_changes

Options = TypeVar("Options")

_READING = (
    *("format", "header", "separator"),
    *(f"{name}_column" for name in ("source", "target", "text", "label", "token", "tag", "file")),
)
"""Settings of data that say how a file is read."""


def limit_input_length(max_length: int, model: ModelConfig) -> int:
    """Return max_length, limited to the number of learned positions minus one for EOS."""
    limit = max_length_of(model.core)
    return max_length if limit is None else min(max_length, limit - 1)


def defaults_of_run(kind: type[Options], config: Any) -> Options:
    """Return the options of a command with the run's own values as defaults.

    These are the fields that have the name and the type of a field of the run's settings: decode,
    threshold; and of `data`, which names other files, those that say how a file is read: format and
    columns.
    """
    options: Any = kind()
    names = [item.name for item in dataclasses.fields(options)]
    shared = [
        name for name in names if type(getattr(config, name, None)) is type(getattr(options, name))
    ]
    values = {name: getattr(config, name, None) for name in shared}
    if isinstance(other := getattr(options, "data", None), OtherData):
        values["data"] = replace_shared(other, config.data, _READING)
    return dataclasses.replace(options, **values)


def replace_shared(options: Options, source: Any, names: Iterable[str] | None = None) -> Options:
    """Return options with the values that `source` has of fields of the same names: of these, or
    all except `test`."""
    given: Any = options
    own = {item.name for item in dataclasses.fields(given)}
    shared = [item.name for item in dataclasses.fields(source) if item.name in own]
    values = {
        name: getattr(source, name)
        for name in shared
        if (name != "test" if names is None else name in names)
    }
    return dataclasses.replace(given, **values)


def set_options(options: Options, values: dict[str, Any]) -> Options:
    """Return options with the values of these fields, which may also be fields of the dataclasses
    in them.

    The value of a dataclass may be a dictionary of those of its fields that change.

    Raises: TypeError for a name that is no option, or is given both by itself and in a dictionary;
            UserError for a wrong value, and an unknown name in a dictionary.
    """
    given: Any = options
    inner = {
        below.name: item.name
        for item in dataclasses.fields(given)
        if dataclasses.is_dataclass(getattr(given, item.name))
        for below in dataclasses.fields(getattr(given, item.name))
    }
    names = inner | {item.name: "" for item in dataclasses.fields(given)}
    unknown = [name for name in values if name not in names]
    if unknown:
        expected = ", ".join(names) or "none"
        raise TypeError(f"unknown option {unknown[0]!r}; the options are: {expected}")
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        above = values.get(names[name])
        if value is not None and isinstance(above, Mapping) and name in above:
            raise TypeError(f"{name!r} is given twice: as an option and in {names[name]}")
        if value is not None:
            changes.setdefault(names[name], {})[name] = value
    own = {
        name: _apply_change(name, getattr(given, name), value)
        for name, value in changes.pop("", {}).items()
    }
    given = dataclasses.replace(given, **own)
    parts = {
        name: dataclasses.replace(getattr(given, name), **fields)
        for name, fields in changes.items()
    }
    return dataclasses.replace(given, **parts)


def _apply_change(name: str, before: Any, value: Any) -> Any:
    """Return the value of an option; a dictionary changes fields of the dataclass that it had
    before."""
    if not dataclasses.is_dataclass(before) or type(value) is type(before):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{name} must hold settings by name, got {short_repr(value)}")
    return apply_changes(before, value, called=lambda path: f"{name}.{path}")


@settings
class Reading:
    """Options for reading files of inputs."""

    @classmethod
    def of_run(cls, config: Any) -> Self:
        """Return the columns and the header of a run; the format is that of each file."""
        return replace_shared(cls(), config.data, [name for name in _READING if name != "format"])


@settings
class TableReading(Reading):
    """Options for reading tables of inputs."""

    header: Header = "auto"
    """Header row of TSV and CSV. Default: as in training."""


@settings
class TextsReading(TableReading):
    """Options for reading files of texts."""

    format: TextsFormat = "auto"
    """File format. auto: by the file suffix; other files have a text in each line."""


@settings
class ImagesReading(TableReading):
    """Options for reading files that refer to images."""

    images: str | None = None
    """Folder or tar of the images. If not given: as for the training data, a folder or tar beside
    the file that is named like the last part of its name or `images`, then the folder of the
    file."""


@settings
class PairsReading(TextsReading):
    """Options for reading files of source texts, with or without target texts."""

    source_column: Count | str | None = None
    """Column of the source text: number (from 1) or header name in TSV and CSV, else field name.
    Default: as in training."""


@settings
class OtherData:
    """Data to evaluate on instead of the run's own test data."""

    test: tuple[str, ...] = ()
    """Files. Several are evaluated one by one. Default: the run's test data."""

    def split(self) -> list[Any]:
        """Return the options for each file."""
        return [dataclasses.replace(self, test=(path,)) for path in self.test]


@settings
class Evaluation:
    """Test data."""

    data: OtherData = field(default_factory=OtherData)
    """Data to evaluate on instead of the run's own test data."""


@settings
class NoOptions:
    """No options."""


@settings
class RankedPrediction:
    """Classification options."""

    n_best: Annotated[int, Range(1, 1_000)] = 1
    """Number of classes to print for each input, most probable first, with their probabilities."""


@settings
class DetectionOptions:
    """Detection options."""

    threshold: Fraction = 0.4
    """Minimum score of the boxes; the default is the run's own."""


@settings
class PairsPrediction:
    """Decoding options."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Decoding; the defaults are the run's own."""

    @property
    def n_best(self) -> int:
        """Number of outputs per text."""
        return self.decode.n_best


@settings
class OtherPairs(PairsReading, OtherData):
    """Other text pairs to evaluate a model on."""

    test: tuple[str, ...] = ()
    """Pairs: FILE.tsv, FILE.jsonl, the source side of two text files, hf:NAME; also with .gz.
    Several are evaluated one by one. Default: the run's test data."""
    test_target: tuple[str, ...] = ()
    """Target side of each file in `test`, for text files."""
    references: tuple[str, ...] = ()
    """More reference translations of one test set: text files with one line per pair, besides its
    target side."""
    format: PairFormat = "auto"
    """File format. auto: text if a target file is given, else by the file suffix or `hf:`."""
    target_column: Count | str | None = None
    """Column of the target text, as `source_column`."""
    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty side, not UTF-8, too long): error stops; skip
    leaves them out and counts them."""

    def __post_init__(self) -> None:
        if self.test_target and len(self.test_target) != len(self.test):
            raise ValueError(
                f"test_target must name one file for each file in test ({len(self.test)}), got "
                f"{len(self.test_target)}"
            )
        if self.references and len(self.test) != 1:
            raise ValueError(
                f"references are of one test set: test must name one file, got {len(self.test)}"
            )

    def split(self) -> list[Any]:
        targets = [(target,) for target in self.test_target] or [()] * len(self.test)
        pairs = zip(self.test, targets, strict=True)
        return [
            dataclasses.replace(self, test=(path,), test_target=target) for path, target in pairs
        ]


@settings
class PairsEvaluation:
    """Test data and decoding options."""

    data: OtherPairs = field(default_factory=OtherPairs)
    """Pairs to evaluate on instead of the run's own test data."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Decoding; the defaults are the run's own."""


@settings
class OtherImages(OtherData):
    """Other images to evaluate a model on, in the format of its training data."""

    test: tuple[str, ...] = ()
    """A folder with one subfolder per class, or an IDX file. Several are evaluated one by one.
    Default: the run's test data."""
    on_bad: OnBad = "error"
    """Handling of files that are not images or have an unknown class: error stops; skip leaves them
    out and counts them."""


@settings
class ImagesEvaluation:
    """Test data."""

    data: OtherImages = field(default_factory=OtherImages)
    """Images to evaluate on instead of the run's own test data."""
