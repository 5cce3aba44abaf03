"""Settings of data sets for set prediction: boxes in images, events in sounds. Does not import torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from regard.data.config import OnBad
from regard.errors import UserError
from regard.ranges import FractionWithin, Range, check_ranges


@dataclass(frozen=True, kw_only=True)
class BoxesConfig:
    """Data sets of images with boxes for training, validation and test.

    Each of `train`, `val`, `test` is one of

        instances.json     COCO: images, annotations with bbox = [x, y, width, height] in pixels, categories;
                           annotations with iscrowd = 1 are left out and counted
        boxes.csv          a header, then a box a line: file,x,y,width,height,label; only file: an image without boxes
        boxes.jsonl        an image a line: {"file": "1.png", "boxes": [{"x":, "y":, "width":, "height":, "label":}]}

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Training boxes. Synthetic images of shapes if not given."""

    train_images: str | None = None
    """Folder or tar of the training images. If not given: a folder or tar beside the boxes that is named like the last
    part of the file name (instances_train.json: train or train.tar) or `images`, then the folder of the file."""

    val: str | None = None
    """Validation boxes. A fraction of the training images if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images."""

    test: str | None = None
    """Test boxes."""

    test_images: str | None = None
    """Folder or tar of the test images."""

    val_share: FractionWithin = 0.1
    """Fraction of the training images, the last ones, that is used for validation if `val` is not given."""

    width: Annotated[int, Range(1, 4_096)] = 320
    """Width of the input of the model, in pixels; images are scaled to fit, and padded with gray on the right or
    bottom."""

    height: Annotated[int, Range(1, 4_096)] = 240
    """Height of the input of the model, in pixels."""

    on_bad: OnBad = "error"
    """Handling of missing or damaged images, and of boxes without area, outside their image or without a known image:
    error stops, skip skips and counts them."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class EventsConfig:
    """Data sets of sounds with events for training, validation and test.

    Each of `train`, `val`, `test` is one of

        events.csv         a header, then an event a line: file,onset,duration,label, of sound files (WAV, FLAC,
                           Ogg, MP3 and others) beside it; offset in place of duration; only file: a file without
                           events
        recordings.npz     single recordings (samples, offsets, label, index, sample_rate), which are mixed into scenes
    """

    train: str | None = None
    """Training events. Synthetic tones and noises if not given."""

    val: str | None = None
    """Validation events; for scenes of recordings the same file if not given."""

    test: str | None = None
    """Test events; for scenes of recordings the same file if not given."""

    seconds: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 4.0
    """Length of the input of the model; longer files are split into segments, shorter ones padded with silence."""

    sample_rate: Annotated[int, Range(1, 768_000)] = 8000
    """Sample rate in Hz; files of another rate are resampled."""

    bands: Annotated[int, Range(1, 1_024)] = 40
    """Number of mel bands of the spectrogram."""

    hop: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 0.01
    """Hop length of the spectrogram in seconds; half of it resolves onsets more precisely, at twice the cost."""

    scenes: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of synthetic training scenes in an epoch."""

    val_scenes: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of synthetic validation scenes."""

    test_scenes: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of synthetic test scenes."""

    unit: Literal["seconds", "samples"] = "seconds"
    """Unit of onset and duration in CSV files."""

    on_bad: OnBad = "error"
    """Handling of events without duration or outside their file: error stops, skip skips and counts them. Truncated or
    damaged sound files: error stops, skip reads them up to the damage."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError(f"`hop` must be at least two samples and at most a quarter of `seconds`, got {self.hop}.")
