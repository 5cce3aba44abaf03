"""`regard evaluate RUN`: the metrics of a trained run on its test data, or on other data."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from regard.cli.exits import DONE
from regard.cli.notices import print_notice
from regard.cli.report import score_table
from regard.cli.runs import DecodingOptions, load_trained, read_run_argument
from regard.decode.config import DecodeConfig, DrawingConfig
from regard.recipes.base.config import (
    OtherBoxes,
    OtherData,
    OtherImages,
    OtherLabeled,
    OtherScenes,
    OtherSounds,
    OtherTagged,
    OtherText,
    OtherTracks,
)
from regard.recipes.base.run import Run
from regard.recipes.registry import get_entry
from regard.settings.help import page
from regard.settings.options import parse, wants_help
from regard.settings.tree import collect_groups

USAGE = "regard evaluate RUN [options]"
ABOUT = "Evaluate a trained model on the test data of its run, or on other data of the same kind."


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object per test set instead of tables."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Test data and decoding options."""

    data: OtherData = field(default_factory=OtherData)
    """Pairs to evaluate on instead of the run's own test data."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Decoding; the defaults are the run's own."""


@dataclass(frozen=True, kw_only=True)
class LabeledEvaluationSettings:
    """Test data."""

    data: OtherLabeled = field(default_factory=OtherLabeled)
    """Texts to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class ImageEvaluationSettings:
    """Test data."""

    data: OtherImages = field(default_factory=OtherImages)
    """Images to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TextEvaluationSettings:
    """Test data."""

    data: OtherText = field(default_factory=OtherText)
    """Text to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TrackEvaluationSettings:
    """Test data."""

    data: OtherTracks = field(default_factory=OtherTracks)
    """Recordings to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class BoxEvaluationSettings:
    """Test data."""

    data: OtherBoxes = field(default_factory=OtherBoxes)
    """Images to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class SoundEvaluationSettings:
    """Test data."""

    data: OtherSounds = field(default_factory=OtherSounds)
    """Sounds to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TagEvaluationSettings:
    """Test data."""

    data: OtherTagged = field(default_factory=OtherTagged)
    """Sentences to evaluate on instead of the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class DrawEvaluationSettings:
    """Test data and sampling options."""

    data: OtherScenes = field(default_factory=OtherScenes)
    """Images to evaluate on instead of the run's own test data."""
    decode: DrawingConfig = field(default_factory=DrawingConfig)
    """Sampling of images; the defaults are the run's own."""


_SETTINGS: dict[type, type[Any]] = {
    OtherBoxes: BoxEvaluationSettings,
    OtherData: EvaluationSettings,
    OtherImages: ImageEvaluationSettings,
    OtherLabeled: LabeledEvaluationSettings,
    OtherScenes: DrawEvaluationSettings,
    OtherSounds: SoundEvaluationSettings,
    OtherTagged: TagEvaluationSettings,
    OtherText: TextEvaluationSettings,
    OtherTracks: TrackEvaluationSettings,
}


def run(argv: list[str]) -> int:
    """Parse the options, evaluate and print the scores."""
    folder, record = read_run_argument(argv, USAGE)
    settings = _settings(record)
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*collect_groups(EvaluateOptions()), *collect_groups(settings)]))
        return DONE
    parsed = parse(argv, EvaluateOptions(), settings, max_positionals=1, expected="one run folder, and options")
    trained = load_trained(folder, parsed.own)
    data = parsed.config.data
    tests: list[dict[str, Any]] = [{}]
    if data.test:
        names = [item.name for item in fields(data) if item.name not in ("test", "test_target")]
        options = {name: getattr(data, name) for name in names}
        tests = [{"path": path} | options for path in data.test]
    if isinstance(data, OtherData) and data.test:
        targets = data.test_target or (None,) * len(data.test)
        tests = [test | {"target": target} for test, target in zip(tests, targets, strict=True)]
    if isinstance(parsed.config, EvaluationSettings | DrawEvaluationSettings):
        tests = [test | {"decode": parsed.config.decode} for test in tests]
    for number, test in enumerate(tests):
        scores = trained.evaluate(notify=print_notice, **test)
        if parsed.own.json:
            print(json.dumps(scores, ensure_ascii=False))
        else:
            print("\n" * bool(number) + score_table(scores))
    return DONE


def _settings(record: Run | None) -> Any:
    """Return the default settings for a run of this recipe."""
    if record is None:
        return EvaluationSettings()
    kind = _SETTINGS[get_entry(record.recipe).other]
    if not any(item.name == "decode" for item in fields(kind)):
        return kind()
    decode = getattr(record.config, "decode", None)
    # The recipe of a user may have no decoding options.
    return TextEvaluationSettings() if decode is None else kind(decode=decode)
