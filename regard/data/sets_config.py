"""Settings of data whose targets are sets: boxes in images, events in sound. Imports no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from regard.data.config import OnBad
from regard.errors import UserError
from regard.ranges import Range, ShareWithin, check_ranges


@dataclass(frozen=True, kw_only=True)
class BoxesConfig:
    """Where images and the boxes in them are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is one of

        instances.json     COCO: images, annotations with bbox = [x, y, width, height] in pixels, categories; those with
                           iscrowd = 1 are left out, and counted
        boxes.csv          a header, then a box a line: file,x,y,width,height,label; only file: an image without boxes
        boxes.jsonl        an image a line: {"file": "1.png", "boxes": [{"x":, "y":, "width":, "height":, "label":}]}

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Boxes to learn from. Shapes drawn on the fly if not given."""

    train_images: str | None = None
    """Folder or tar of the training images. If not given: beside the boxes, in a folder or tar that is named like the
    last part of the file's name (instances_train.json: train or train.tar) or in `images`, then in its folder."""

    val: str | None = None
    """Boxes that choose the best weights. A share of the training images if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images."""

    test: str | None = None
    """Boxes to test on."""

    test_images: str | None = None
    """Folder or tar of the test images."""

    val_share: ShareWithin = 0.1
    """Share of the training images that is kept for validation where `val` is not given, the last ones."""

    width: Annotated[int, Range(1, 4_096)] = 320
    """Width of what the model sees, in pixels; images are scaled to fit in, and gray is added on the right or below."""

    height: Annotated[int, Range(1, 4_096)] = 240
    """Height of what the model sees."""

    on_bad: OnBad = "error"
    """What an image does that is missing or damaged, and a box that has no area, lies outside its image or names none:
    error stops, skip leaves it out and counts it."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class EventsConfig:
    """Where sound and the events in it are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is one of

        events.csv         a header, then an event a line: file,onset,duration,label, of sound files (WAV, FLAC,
                           Ogg, MP3 and others) beside it; offset in place of duration; only file: a file without
                           events
        recordings.npz     single recordings (samples, offsets, label, index, sample_rate), of which scenes are made
    """

    train: str | None = None
    """Events to learn from. Made-up tones and noises if not given."""

    val: str | None = None
    """Events that choose the best weights; for made-up scenes the same recordings file if not given."""

    test: str | None = None
    """Events to test on; for made-up scenes the same recordings file if not given."""

    seconds: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 4.0
    """Length of what the model hears at once; longer files are cut into pieces of it, shorter ones end in silence."""

    sample_rate: Annotated[int, Range(1, 768_000)] = 8000
    """Samples a second; files of another rate are resampled."""

    bands: Annotated[int, Range(1, 1_024)] = 40
    """Mel bands of the spectrogram."""

    hop: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 0.01
    """Seconds from one spectrum to the next; halves tell onsets more exactly, in twice the time."""

    scenes: Annotated[int, Range(1, 10_000_000)] = 10000
    """Made-up training scenes in an epoch."""

    val_scenes: Annotated[int, Range(1, 1_000_000)] = 500
    """Made-up scenes that choose the best weights."""

    test_scenes: Annotated[int, Range(1, 1_000_000)] = 1000
    """Made-up scenes to test on."""

    unit: Literal["seconds", "samples"] = "seconds"
    """What onset and duration are given in, in CSV files."""

    on_bad: OnBad = "error"
    """What an event does that has no duration or lies outside its file: error stops, skip leaves it out and counts it.
    A sound file that is cut off or damaged: error stops, skip reads it up to there."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError(
                f"`hop` must be two samples at least and a quarter of `seconds` at most, but is {self.hop}."
            )
