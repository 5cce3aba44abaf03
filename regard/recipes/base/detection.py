"""Base class of the recipes that detect boxes, in images and in point clouds."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedBox, format_score
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import BoxesAnswer
from regard.recipes.base.config import DetectionOptions
from regard.recipes.base.likelihood import set_log_prob
from regard.recipes.base.recipe import (
    ConfigT,
    Examples,
    Prepared,
    Recipe,
    count_labels,
    describe_labels,
    describe_skipped,
    plan_by_count,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.detection import Detections
from regard.system.progress import track
from regard.trace import Trace

ROWS = 16
"""Images or clouds in a batch of evaluation and prediction."""
_LABELS = "labels.json"


class DetectionBatches(Protocol):
    """Batches of annotated images or clouds."""

    @property
    def data(self) -> AnnotatedDataset[Any]:
        """Images or clouds of the batches."""
        ...

    def plan(self, epoch: int) -> Any:
        """Return the indices of the examples of each batch."""
        ...

    def collate(self, epoch: int, indices: Sequence[int]) -> Any:
        """Return the tensors of the given examples."""
        ...


class Detected(NamedTuple):
    """Detections of all queries, and boxes of those with a sufficient score, which are the first of
    them."""

    detections: Detections
    boxes: list[Any]


class DetectionRecipe(Recipe[ConfigT]):
    """Recipe that detects labeled boxes. A row is an array, and the frame that relates its regions
    to boxes."""

    noun: ClassVar[str]
    """What boxes are detected in, for messages: images or clouds."""
    box: ClassVar[type[Any]]
    """NamedTuple of label, score and the numbers of a box."""
    digits: ClassVar[int]
    """Decimal places of the numbers of a box as text."""
    labels: Labels

    # Data

    @abstractmethod
    def generate(self, split: str) -> AnnotatedDataset[Any]:
        """Return the synthetic data of a split."""

    @abstractmethod
    def read_split(self, split: str) -> AnnotatedDataset[Any]:
        """Return the data of the files of a split, whose names are given."""

    @abstractmethod
    def read_other(self, other: Any) -> AnnotatedDataset[Any]:
        """Return other data to evaluate on."""

    @abstractmethod
    def make_batches(
        self,
        data: AnnotatedDataset[Any],
        labels: Labels,
        *,
        rows: int = ROWS,
        is_fixed: bool = True,
        augment: bool = False,
    ) -> Any:
        """Return batches of the data, in its order unless they are for training."""

    def read(self, split: str, other: Any = None) -> Examples[AnnotatedDataset[Any]]:
        files: Any = self._config.data
        if other is not None:
            data = self.read_other(other)
        elif files.train is None and (split != "test" or files.test is None):
            data = self.generate(split)
        else:
            data = self.read_split("test") if split == "test" else self._splits[split == "val"]
        return Examples(
            data,
            data.origin,
            len(data),
            input=data.load,
            name=lambda i: data.items[i].file,
            reference=lambda i: count_labels(data.items[i].labels),
            reference_json=lambda i: self._to_json(data.items[i]),
            skipped=(
                *data.notices,
                *describe_skipped(data.origin, f"{self.noun} or boxes", data.skipped),
            ),
        )

    def _to_json(self, item: Annotated) -> list[dict[str, Any]]:
        """Return the annotated boxes as `json` gives detected ones, without scores."""
        names = self.box._fields[2:]
        rows = zip(item.labels, item.boxes.tolist(), strict=True)
        return [{"label": label} | dict(zip(names, box, strict=True)) for label, box in rows]

    @cached_property
    def _splits(self) -> tuple[AnnotatedDataset[Any], AnnotatedDataset[Any]]:
        """Training and validation data from files."""
        train = self.read_split("train")
        if self._config.data.val is not None:
            return train, self.read_split("val")
        return train.hold_out(self._config.data.val_share, self.noun, seed=self.run.seed)

    @property
    def _config(self) -> Any:
        return self.config

    def check_examples(self, split: str, examples: Examples[AnnotatedDataset[Any]]) -> None:
        labels, most = self.train.data.labels, self._config.model.num_queries
        if not labels.names:
            raise UserError(f"{self.train.origin}: there are no boxes to learn from.")
        examples.data.class_indices(labels, self.noun)
        if split == "train" and self._config.data.train is not None:
            names = [label for item in examples.data.items for label in item.labels]
            self.notify(describe_labels(examples.origin, "boxes", names))
        fullest = max(examples.data.items, key=lambda item: len(item.labels))
        if len(fullest.labels) > most:
            raise UserError(
                f"{fullest.where}: {fullest.file[:200]} has {len(fullest.labels)} boxes, but the "
                f"model detects at most "
                f"{most}: raise --model.num-queries."
            )

    def usable(self, examples: Examples[AnnotatedDataset[Any]]) -> Examples[AnnotatedDataset[Any]]:
        return replace(examples, targets=self.make_batches(examples.data, self.labels))

    def learn(self, folder: Path) -> None:
        self.train.data.labels.save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> Any:
        config = self._config
        return self.make_batches(
            self.train.data, self.labels, rows=config.batch, is_fixed=False, augment=config.augment
        )

    # Answers

    @abstractmethod
    def source(self, arrays: Sequence[Any]) -> Any:
        """Return the input of the model."""

    @abstractmethod
    def frame(self, batches: Any, i: int) -> Any:
        """Return the frame of example i."""

    @abstractmethod
    def detect(self, model: nn.Module, source: Any, frames: Sequence[Any]) -> list[Detections]:
        """Return the detections of all queries, by decreasing score, as boxes of the images or
        clouds."""

    def detect_all(self, inference: ActiveModel, batches: DetectionBatches) -> list[Detections]:
        """Return the detections in all examples."""
        detections: list[Detections] = []
        for rows in track(batches.plan(0), self.noun, len(batches.data)):
            frames = [self.frame(batches, i) for i in rows]
            detections += self.detect(inference.model, batches.collate(0, rows).source, frames)
        return detections

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_count(rows, ROWS)

    def answer(
        self,
        inference: ActiveModel,
        rows: Sequence[Any],
        options: DetectionOptions,
        trace: Trace | None = None,
    ) -> list[Detected]:
        source = self.source([array for array, _ in rows])
        return [
            Detected(
                found,
                [
                    self.box(self.labels.names[c], float(score), *map(float, box))
                    for score, c, box in zip(found.scores, found.classes, found.boxes, strict=True)
                    if score >= options.threshold
                ],
            )
            for found in self.detect(inference.model, source, [frame for _, frame in rows])
        ]

    def values(self, answers: list[Detected]) -> list[list[Any]]:
        return [answer.boxes for answer in answers]

    def lines(self, answer: Detected) -> list[str]:
        return [
            "\t".join(
                (
                    box.label,
                    f"{box.score:.3f}",
                    *(f"{number:.{self.digits}f}" for number in box[2:]),
                )
            )
            for box in answer.boxes
        ]

    def json(self, answer: Detected) -> BoxesAnswer:
        return {"boxes": [box._asdict() for box in answer.boxes]}

    def title(self, answer: Detected) -> str:
        return count_labels([box.label for box in answer.boxes])

    def regions(
        self, found: Detections, places: Sequence[tuple[float, float, float, float]]
    ) -> list[DetectedBox]:
        """Return the detections as boxes on the picture, at these places."""
        assert found.queries is not None
        return [
            DetectedBox(
                label=self.labels.names[c], score=float(score), place=place, query=int(query)
            )
            for score, c, place, query in zip(
                found.scores, found.classes, places, found.queries, strict=True
            )
        ]

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: Detected) -> Tensor:
        found, count = answer.detections, len(answer.boxes)
        assert found.queries is not None
        pairs = zip(found.queries[:count].tolist(), found.classes[:count].tolist(), strict=True)
        source: Any = self.source([prepared.rows[row][0]])
        return set_log_prob(model(source.to(device_of(model))), pairs, "box")


def query_axis(boxes: Sequence[DetectedBox]) -> Axis:
    """Return the axis of all queries, with the place of the box of each on the picture "image"."""
    ordered = sorted(boxes, key=lambda box: box.query)
    return Axis(
        labels=tuple(f"{box.label} {format_score(box.score)}" for box in ordered),
        kind="box",
        picture="image",
        places=tuple(box.place for box in ordered),
    )
