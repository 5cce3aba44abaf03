"""Settings of data whose targets are sets: boxes in images, events in sound. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from regard.data.config import OnBad
from regard.errors import UserError

__all__ = ["BoxesConfig", "EventsConfig"]


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
    last part of the file's name (instances_train.json: train or train.tar), in `images`, or the files' own folder."""

    val: str | None = None
    """Boxes that choose the best weights. A share of the training images if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images."""

    test: str | None = None
    """Boxes to test on."""

    test_images: str | None = None
    """Folder or tar of the test images."""

    val_share: float = 0.1
    """Share of the training images that is kept for validation where `val` is not given, the last ones."""

    width: int = 320
    """Width of what the model sees, in pixels; images are scaled to fit in, and grey is added on the right or below."""

    height: int = 240
    """Height of what the model sees."""

    on_bad: OnBad = "error"
    """What a box does that has no area or lies outside its image: error stops, skip leaves it out and counts it."""

    def __post_init__(self) -> None:
        _check_sizes(self, "width", "height")
        _check_share(self.val_share)


@dataclass(frozen=True, kw_only=True)
class EventsConfig:
    """Where sound and the events in it are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is one of

        events.csv         a header, then an event a line: file,onset,duration,label, of sound files (WAV, FLAC,
                           Ogg) beside it; only file: a file without events
        recordings.npz     single recordings (samples, offsets, label, index, sample_rate), of which scenes are made
    """

    train: str | None = None
    """Events to learn from. Made-up tones and noises if not given."""

    val: str | None = None
    """Events that choose the best weights; for made-up scenes the same recordings file if not given."""

    test: str | None = None
    """Events to test on; for made-up scenes the same recordings file if not given."""

    seconds: float = 4.0
    """Length of what the model hears at once; longer files are cut into pieces of it, shorter ones end in silence."""

    sample_rate: int = 8000
    """Samples a second; files of another rate are resampled."""

    bands: int = 40
    """Mel bands of the spectrogram."""

    hop: float = 0.01
    """Seconds from one spectrum to the next; halves tell onsets more exactly, in twice the time."""

    scenes: int = 10000
    """Made-up training scenes in an epoch."""

    val_scenes: int = 500
    """Made-up scenes that choose the best weights."""

    test_scenes: int = 1000
    """Made-up scenes to test on."""

    unit: Literal["seconds", "samples"] = "seconds"
    """What onset and duration are given in, in CSV files."""

    on_bad: OnBad = "error"
    """What an event does that has no duration or lies outside its file: error stops, skip counts it."""

    def __post_init__(self) -> None:
        _check_sizes(self, "sample_rate", "bands", "scenes", "val_scenes", "test_scenes")
        if not 0 < self.seconds < 3600:
            raise UserError(f"`seconds` must be above 0 and below 3600, but is {self.seconds}.")
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError(
                f"`hop` must be two samples at least and a quarter of `seconds` at most, but is {self.hop}."
            )


def _check_sizes(config: BoxesConfig | EventsConfig, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"`{name}` must be a whole number of at least 1, but is {value!r}.")


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UserError(f"`val_share` must be above 0 and below 1, but is {share}.")
