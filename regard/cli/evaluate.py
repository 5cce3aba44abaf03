"""`regard evaluate RUN`: the task's metric on the run's test data, or on other pairs."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.notices import tell
from regard.cli.options import parse, wants_help
from regard.cli.report import score_table
from regard.cli.use import DecodingOptions, one_run, opened
from regard.decode.config import DecodeConfig, DrawingConfig
from regard.recipes.folder import Run
from regard.recipes.other_data import (
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
from regard.recipes.registry import entry
from regard.recipes.settings import groups

USAGE = "regard evaluate RUN [options]"
ABOUT = "Score a trained model on its run's own test data, or on other pairs of the same kind."


@dataclass(frozen=True, kw_only=True)
class Options(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object a test instead of tables."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is scored, and how its outputs are searched for."""

    data: OtherData = field(default_factory=OtherData)
    """Other pairs than the run's own test data."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """How outputs are searched for; the defaults are the run's own."""


@dataclass(frozen=True, kw_only=True)
class LabeledSettings:
    """What is scored."""

    data: OtherLabeled = field(default_factory=OtherLabeled)
    """Other texts than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """What is scored."""

    data: OtherImages = field(default_factory=OtherImages)
    """Other images than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What is scored."""

    data: OtherText = field(default_factory=OtherText)
    """Another text than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """What is scored."""

    data: OtherTracks = field(default_factory=OtherTracks)
    """Other recordings than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class BoxSettings:
    """What is scored."""

    data: OtherBoxes = field(default_factory=OtherBoxes)
    """Other images than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings:
    """What is scored."""

    data: OtherSounds = field(default_factory=OtherSounds)
    """Other sounds than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class TagSettings:
    """What is scored."""

    data: OtherTagged = field(default_factory=OtherTagged)
    """Other sentences than the run's own test data."""


@dataclass(frozen=True, kw_only=True)
class DrawSettings:
    """What is scored, and how images are drawn."""

    data: OtherScenes = field(default_factory=OtherScenes)
    """Other images than the run's own test data."""
    decode: DrawingConfig = field(default_factory=DrawingConfig)
    """How images are drawn; the defaults are the run's own."""


_SETTINGS: dict[type, type[Any]] = {
    OtherBoxes: BoxSettings,
    OtherData: Settings,
    OtherImages: ImageSettings,
    OtherLabeled: LabeledSettings,
    OtherScenes: DrawSettings,
    OtherSounds: SoundSettings,
    OtherTagged: TagSettings,
    OtherText: TextSettings,
    OtherTracks: TrackSettings,
}


def run(argv: list[str]) -> int:
    """Read the options; score; print."""
    folder, record = one_run(argv, USAGE)
    settings = _settings(record)
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*groups(Options()), *groups(settings)]))
        return DONE
    parsed = parse(argv, Options(), settings, most_positionals=1, what="one run folder, and options")
    trained = opened(folder, parsed.own)
    data = parsed.config.data
    tests: list[dict[str, Any]] = [{}]
    if data.test:
        names = [one.name for one in fields(data) if one.name not in ("test", "test_target")]
        given = {name: getattr(data, name) for name in names}
        tests = [{"path": path} | given for path in data.test]
    if isinstance(data, OtherData) and data.test:
        targets = data.test_target or (None,) * len(data.test)
        tests = [test | {"target": target} for test, target in zip(tests, targets, strict=True)]
    if isinstance(parsed.config, Settings | DrawSettings):
        tests = [test | {"decode": parsed.config.decode} for test in tests]
    for number, test in enumerate(tests):
        scores = trained.evaluate(tell=tell, **test)
        if parsed.own.json:
            print(json.dumps(scores, ensure_ascii=False))
        else:
            print("\n" * bool(number) + score_table(scores))
    return DONE


def _settings(record: Run | None) -> Any:
    """What can be set for a run of this kind."""
    if record is None:
        return Settings()
    kind = _SETTINGS[entry(record.recipe).other]
    if not any(one.name == "decode" for one in fields(kind)):
        return kind()
    decode = getattr(record.config, "decode", None)
    # A user's own recipe searches for nothing and says no more than which files.
    return TextSettings() if decode is None else kind(decode=decode)
