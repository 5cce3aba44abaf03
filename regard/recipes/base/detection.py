"""Base class of the recipes that detect boxes, in images and in point clouds."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.annotated import MIN_SIDE, Annotated, AnnotatedDataset
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedBox, Image, Sample, format_score
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.recipe import Answer, ConfigT, Dataset, Example, FileRecipe, View
from regard.recipes.base.scoring import device_of, set_log_prob
from regard.recipes.metrics.detection import Detections, Truth, average_precision
from regard.system.progress import track
from regard.trace import Trace

_LABELS = "labels.json"


class DetectionRecipe(FileRecipe[ConfigT]):
    """Recipe that detects labeled boxes. A row is an array, and its frame of boxes."""

    noun: ClassVar[str]
    """What boxes are detected in, for messages: images or clouds."""
    box: ClassVar[type[Any]]
    """NamedTuple of label, score and the numbers of a box."""
    signature: str
    """Description of the metrics."""
    digits: ClassVar[int]
    """Decimal places of the numbers of a box as text."""
    batch_rows = 16
    labels: Labels

    @abstractmethod
    def make_batches(self, data: Any, **options: Any) -> Any:
        """Return batches of the data; options: rows, is_fixed and augment (BatchesByCount)."""

    def to_dataset(self, data: AnnotatedDataset[Any]) -> Dataset[AnnotatedDataset[Any]]:
        return Dataset(
            data,
            data.origin,
            inputs=View(len(data), data.load),
            references=View(len(data), lambda i: self._reference(data.items[i])),
            names=View(len(data), lambda i: data.items[i].file),
            notes=data.notices,
        )

    def _reference(self, item: Annotated) -> list[dict[str, Any]]:
        names = self.box._fields[2:]
        rows = zip(item.labels, item.boxes.tolist(), strict=True)
        return [{"label": label} | dict(zip(names, box, strict=True)) for label, box in rows]

    def hold_out(self, train: AnnotatedDataset[Any]) -> tuple[Any, Any]:
        return self.split_off(train, self.noun, labels=[item.labels for item in train.items])

    def encode(self, dataset: Dataset[AnnotatedDataset[Any]]) -> Dataset[AnnotatedDataset[Any]]:
        data, most = dataset.data, self.settings.model.num_queries
        fullest = max(data.items, key=lambda item: len(item.labels))
        if len(fullest.labels) > most:
            size = f"{len(fullest.labels)} boxes, above --model.num-queries {most}"
            raise UserError(f"{fullest.where}: {fullest.file} has {size}")
        batches = self.make_batches(data, rows=self.batch_rows, is_fixed=True)
        return replace(dataset, targets=batches)

    def fit(self, train: Dataset[AnnotatedDataset[Any]]) -> dict[str, Any]:
        if not train.data.labels.names:
            raise UserError(f"{train.origin}: there are no boxes to learn from")
        return {_LABELS: train.data.labels}

    def open(self, folder: Path) -> None:
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> Any:
        config = self.settings
        data = self.encode(self.train).data
        return self.make_batches(data, rows=config.batch, augment=config.augment)

    @abstractmethod
    def to_boxes(self, regions: Tensor, frames: Sequence[Any]) -> NDArray[np.float64]:
        """Return regions (rows, queries, sides) as boxes of the images or clouds."""

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Any, frames: Sequence[Any]) -> list[Detections]:
        """Return the detections of all queries, by decreasing score, as boxes of the inputs."""
        predictions = model(source.to(device_of(model)))
        scores, classes, regions = predictions.best()
        boxes, order = self.to_boxes(regions.float().cpu(), frames), predictions.order()
        columns = scores.double().cpu().numpy(), classes.cpu().numpy(), boxes, order.cpu().numpy()
        return [Detections(*row) for row in zip(*columns, strict=True)]

    def metrics(self, inference: ActiveModel, dataset: Dataset[Any]) -> dict[str, Any]:
        batches, names = dataset.targets, self.labels.names
        detections: list[Detections] = []
        for rows in track(batches.plan(0), self.noun, len(batches.data)):
            frames = [batches.frame(i) for i in rows]
            source = batches.collate(0, rows).source
            for found in self.detect(inference.model, source, frames):
                detections.append(found._replace(boxes=self.to_corners(found.boxes)))
        pairs = zip(batches.data.items, batches.classes, strict=True)
        truths = [self.truth(item, classes) for item, classes in pairs]
        threshold = self.settings.threshold
        scores = average_precision(detections, truths, names, threshold=threshold)
        return scores | {"signature": f"{self.signature}, classes {', '.join(names)}"}

    def truth(self, item: Annotated, classes: NDArray[np.int64]) -> Truth:
        """Return the annotations of an image or a cloud, with the classes of its objects."""
        names, boxes = self.labels.names, self.to_corners(item.boxes)
        areas = item.areas or boxes[:, boxes.shape[1] // 2 :].prod(1)
        # Crowds of other classes matter to no detection.
        crowds = [(names.index(label), box) for label, box in item.crowds if label in names]
        is_crowd = np.arange(len(boxes) + len(crowds)) >= len(boxes)
        for c, box in crowds:
            boxes, classes = np.vstack((boxes, box)), np.append(classes, c)
        return Truth(boxes, classes, np.append(areas, np.zeros(len(crowds))), is_crowd)

    def to_corners(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return boxes of the data by first corner and sizes."""
        return boxes

    def forward(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> list[Detections]:
        return self.detect(inference.model, self.collate(rows), [row[1] for row in rows])

    def count_detected(self, found: Detections) -> int:
        """Return the number of boxes with a score of at least the threshold; they come first."""
        return int((found.scores >= self.settings.threshold).sum())

    def postprocess(self, example: Example) -> Answer:
        (found,), boxes, lines = example.outputs, [], []
        for i in range(self.count_detected(found)):
            label, numbers = self.labels.names[found.classes[i]], found.boxes[i].tolist()
            box = self.box(label, float(found.scores[i]), *numbers)
            cells = [f"{number:.{self.digits}f}" for number in numbers]
            lines.append("\t".join([label, f"{box.score:.3f}", *cells]))
            boxes.append(box)
        return Answer(boxes, {"boxes": [box._asdict() for box in boxes]}, lines)

    @property
    def columns(self) -> Mapping[str, type]:
        return get_type_hints(self.box)

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        """Return the boxes, without those that have no size and so could not be read again."""
        count = len(self.columns) // 2 - 1
        boxes = answer.json["boxes"]
        return [box for box in boxes if min([*box.values()][-count:]) >= MIN_SIDE]

    def box_sample(
        self, example: Example, i: int, source: Axis, places: Sequence[Any], **picture: Any
    ) -> Sample:
        """Return the detections of row i, at these places on a picture, as a sample."""
        found = example.outputs[i]
        columns = found.scores.tolist(), found.classes, places, found.queries.tolist()
        boxes = []
        for score, number, place, query in zip(*columns, strict=True):
            label = self.labels.names[number]
            boxes.append(DetectedBox(label=label, score=score, place=tuple(place), query=query))
        detected = boxes[: self.count_detected(found)]
        counts = sorted(Counter(box.label for box in detected).items())
        summary = ", ".join(f"{name} {count:,}" for name, count in counts) or "nothing"
        ordered = sorted(boxes, key=lambda box: box.query)
        queries = Axis(
            labels=tuple(f"{box.label} {format_score(box.score)}" for box in ordered),
            kind="box",
            picture="image",
            places=tuple(box.place for box in ordered),
        )
        return Sample(
            title=f"{example.name} -> {summary}",
            axes={"source": source, "queries": queries},
            pictures={"image": Image(boxes=tuple(detected), labels=self.labels.names, **picture)},
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        found, source = example.outputs[i], self.collate([example.rows[i]])
        pairs = [*zip(found.queries.tolist(), found.classes.tolist(), strict=True)]
        detected = pairs[: self.count_detected(found)]
        return set_log_prob(model(source.to(device_of(model))), detected, "box")
