"""What recipes share that detect boxes in images and in point clouds."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedBox


class Annotated(Protocol):
    """An image or a cloud with labeled boxes."""

    @property
    def file(self) -> str:
        """Name of its file."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of its boxes."""
        ...

    @property
    def where(self) -> str:
        """Location of the annotation, for messages."""
        ...


class BoxData(Protocol):
    """Data set of images or clouds with boxes."""

    @property
    def items(self) -> Sequence[Annotated]:
        """Its images or clouds."""
        ...

    @property
    def origin(self) -> str:
        """Its name, for messages."""
        ...

    def labels(self) -> tuple[str, ...]:
        """Return all labels that occur, sorted."""
        ...

    def take(self, first: int, last: int, origin: str) -> Any:
        """Return the data set of items `first` to `last` - 1."""
        ...

    def __len__(self) -> int: ...


BoxDataT = TypeVar("BoxDataT", bound=BoxData)


def known_labels(train: BoxData) -> Labels:
    """Return the labels of the training data. Raises UserError if there is none."""
    labels = Labels(train.labels())
    if not labels.names:
        raise UserError(f"{train.origin}: there are no boxes to learn from.")
    return labels


def check_box_count(data: BoxData, most: int) -> None:
    """Raise UserError naming the item that has more boxes than the model has queries."""
    fullest = max(data.items, key=lambda item: len(item.labels))
    if len(fullest.labels) > most:
        raise UserError(
            f"{fullest.where}: {fullest.file[:200]} has {len(fullest.labels)} boxes, but the model detects at most "
            f"{most}: raise model.num_queries."
        )


def hold_out(train: BoxDataT, share: float, noun: str) -> tuple[BoxDataT, BoxDataT]:
    """Return training and validation data: all but the last `share` of the items, and those."""
    cut = len(train) - max(1, round(len(train) * share))
    if cut < 1:
        raise UserError(f"{train.origin}: {len(train)} {noun} are too few to split off a validation set.")
    validation = train.take(cut, len(train), f"{train.origin}, held out for validation")
    return train.take(0, cut, train.origin), validation


def count_labels(labels: Sequence[str]) -> str:
    """Return the number of boxes per label, such as: 2 square, 1 circle."""
    return ", ".join(f"{list(labels).count(name)} {name}" for name in sorted(set(labels))) or "nothing"


def query_axis(boxes: Sequence[DetectedBox]) -> Axis:
    """Return the axis of all queries, with the place of the box of each on the picture "image"."""
    ordered = sorted(boxes, key=lambda box: box.query)
    return Axis(
        labels=tuple(f"{box.label} {box.score:.2f}" for box in ordered),
        kind="box",
        picture="image",
        places=tuple(box.place for box in ordered),
    )
