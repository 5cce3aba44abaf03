"""Recipe `points`: object detection in point clouds, scored by average precision at 3-D IoU 0.25 and 0.5.

    points -> groups of neighbors -> encoder over groups -> top-k proposals -> decoder queries -> class, box

Source: lectures, E.3 (set to set: point clouds to boxes); misra2021.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.embedded.rooms import make_rooms
from regard.data.points.batches import CloudBatches, pad_clouds, to_boxes
from regard.data.points.clouds import CloudDataset, CloudScale, middle_of, read_clouds, thin_cloud
from regard.data.points.files import check_points, parse_cloud
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedBox, Image, Sample
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.points import PointReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.detection import check_box_count, count_labels, hold_out, known_labels, query_axis
from regard.recipes.base.likelihood import set_log_prob
from regard.recipes.base.recipe import Examples, File, Prepared, Recipe, describe_skipped, plan_by_count
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.detection import Detections, average_precision_of_clouds
from regard.recipes.points.config import PointsPrediction, PointsRunConfig
from regard.recipes.points.top_view import draw_top_view, place_on_top_view
from regard.trace import Trace

_LABELS = "labels.json"
_ROWS = 16
_PATCH = 0.02
"""Side of the place of a group on the top view, as a share of its sides."""


class SpaceBox(NamedTuple):
    """Detected box: its center and its sizes along the axes, in meters."""

    label: str
    score: float
    x: float
    y: float
    z: float
    dx: float
    dy: float
    dz: float


class PreparedCloud(NamedTuple):
    """Points as the model takes them, and where their middle is."""

    points: NDArray[np.float32]
    middle: NDArray[np.float64]


class DetectedInCloud(NamedTuple):
    """Detections of all queries in a cloud, and those with a sufficient score, which are the first of them."""

    detections: Detections
    boxes: list[SpaceBox]


class PointsRecipe(Recipe[PointsRunConfig]):
    """Recipe of object detection in point clouds."""

    metric = "ap25"
    monitored = ("ap25", "ap50")
    labels: Labels
    scale: CloudScale

    def read(self, split: str, other: Any = None) -> Examples[CloudDataset]:
        """Return the clouds of a split, or of a table of boxes."""
        data = self.config.data
        if other is not None:
            clouds = read_clouds(other.test[0], replace(data, on_bad=other.on_bad))
        elif data.train is None and (split != "test" or data.test is None):
            clouds = make_rooms(split, self.run.seed, data)
        elif split == "test":
            assert data.test is not None
            clouds = read_clouds(data.test, data)
        else:
            clouds = self._splits[split == "val"]
        return Examples(
            clouds,
            clouds.origin,
            len(clouds),
            input=clouds.load,
            name=lambda i: clouds.items[i].file,
            reference=lambda i: count_labels(clouds.items[i].labels),
            skipped=describe_skipped(clouds.origin, "clouds or boxes", clouds.skipped),
        )

    def usable(self, examples: Examples[CloudDataset]) -> Examples[CloudDataset]:
        """Return the clouds with their batches."""
        return replace(examples, targets=self.make_batches(examples.data))

    def check_examples(self, split: str, examples: Examples[CloudDataset]) -> None:
        """Check that all labels are known, and that the model can detect as many boxes."""
        CloudBatches(examples.data, known_labels(self.train.data), CloudScale((1.0, 1.0, 1.0)), rows=1, seed=0)
        check_box_count(examples.data, self.config.model.num_queries)

    def learn(self, folder: Path) -> None:
        """Save the labels, the extent and the scales of the features of the training data."""
        Labels(self.train.data.labels()).save(folder / _LABELS)
        CloudScale.measure(self.train.data).save(folder)

    def open(self, folder: Path) -> None:
        """Load the labels and the scales."""
        self.labels = Labels.load(folder / _LABELS)
        self.scale = CloudScale.load(folder, len(self.config.data.features))

    def batches(self) -> CloudBatches:
        """Return batches of the training clouds, augmented differently in each epoch."""
        return self.make_batches(self.train.data, rows=self.config.batch, is_fixed=False, augment=self.config.augment)

    def make_batches(
        self, data: CloudDataset, *, rows: int = _ROWS, is_fixed: bool = True, augment: bool = False
    ) -> CloudBatches:
        """Return batches of the clouds."""
        settings = {"rows": rows, "seed": self.run.seed, "is_fixed": is_fixed, "augment": augment}
        return CloudBatches(data, self.labels, self.scale, **settings)

    def model(self) -> Model:
        """Return a detector for these labels and this extent."""
        config = self.config
        reads = PointReader(
            config.model.core.width,
            extent=self.scale.extent,
            features=len(config.data.features),
            groups=config.groups,
            neighbors=config.neighbors,
            radius=config.radius,
            dropout=config.model.dropout,
        )
        return build_detector(config.model, reads, num_classes=len(self.labels), axes=3)

    def describe(self) -> str:
        """Return the extent and the number of classes."""
        return f"clouds of up to {_sides(self.scale.extent)} m, {len(self.labels)} kinds of boxes"

    def score(self, inference: ActiveModel, examples: Examples[CloudDataset], options: Any) -> dict[str, Any]:
        """Return AP25, AP50 and the AP25 of each class."""
        batches: CloudBatches = examples.targets
        detections: list[Detections] = []
        for rows in batches.plan(0):
            middles = [middle_of(batches.data.load(i)) for i in rows]
            detections += self.detect(inference.model, batches.collate(0, rows).source, middles)
        boxes = [_from_corner(item.boxes) for item in batches.data.items]
        detections = [found._replace(boxes=_from_corner(found.boxes)) for found in detections]
        return average_precision_of_clouds(detections, boxes, batches.classes, self.labels.names)

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Padded, middles: Sequence[NDArray[np.float64]]) -> list[Detections]:
        """Detect boxes (center and sizes), in meters of the coordinates of the clouds."""
        predictions = model(source.to(device_of(model)))
        (score, label, region), order = predictions.best(), predictions.order()
        boxes = to_boxes(region.double().cpu().numpy(), self.scale)
        boxes[..., :3] += np.stack(middles)[:, None]
        parts = score.double().cpu().numpy(), label.cpu().numpy(), boxes, order.cpu().numpy()
        return [Detections(*row) for row in zip(*parts, strict=True)]

    def report(self, inference: ActiveModel, examples: Examples[CloudDataset]) -> dict[str, Any]:
        """Return the description of the metric and the classes."""
        names = ", ".join(self.labels.names)
        return {"signature": f"AP at 3-D IoU 0.25 and 0.5, boxes parallel to the axes, classes {names}"}

    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        """Return the points of each cloud, thinned as in training.

        inputs: files of points (.npz, .csv, .ply, .pcd), or arrays (points, 3 + features) in meters.
        """
        prepared, config = Prepared(len(inputs)), self.config.data
        for owner, given in enumerate(inputs):
            where = f"input {first + owner}"
            if isinstance(given, File):
                points = parse_cloud(given.content, f"{where}: {given.name}", config.features)
            else:
                points = _to_points(given, 3 + len(config.features), where)
            points = thin_cloud(points, config.points)
            sides, extent = points[:, :3].max(0) - points[:, :3].min(0), self.scale.extent
            if (sides > extent).any():
                prepared.notes.append(
                    f"{where}: spans {_sides(sides)} m; boxes are found in the {_sides(extent)} m around its "
                    "middle, the extent of the training clouds"
                )
            prepared.add(owner, PreparedCloud(self.scale.normalize(points), middle_of(points)))
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        """Return batches of clouds."""
        return plan_by_count(rows, _ROWS)

    def answer(
        self,
        inference: ActiveModel,
        rows: Sequence[PreparedCloud],
        options: PointsPrediction,
        trace: Trace | None = None,
    ) -> list[DetectedInCloud]:
        """Return the boxes of each cloud with a score of at least the threshold, highest score first."""
        answers = []
        source = pad_clouds([row.points for row in rows])
        for found in self.detect(inference.model, source, [row.middle for row in rows]):
            boxes = [
                SpaceBox(self.labels.names[c], float(score), *map(float, box))
                for score, c, box in zip(found.scores, found.classes, found.boxes, strict=True)
                if score >= options.threshold
            ]
            answers.append(DetectedInCloud(found, boxes))
        return answers

    def values(self, answers: list[DetectedInCloud]) -> list[list[SpaceBox]]:
        """Return the boxes of each cloud."""
        return [answer.boxes for answer in answers]

    def lines(self, answer: DetectedInCloud) -> list[str]:
        """Return label, score, center and sizes of each box, separated by tabs."""
        return [
            f"{box.label}\t{box.score:.3f}\t" + "\t".join(f"{number:.3f}" for number in box[2:]) for box in answer.boxes
        ]

    def json(self, answer: DetectedInCloud) -> dict[str, Any]:
        """Return the boxes."""
        return {"boxes": [box._asdict() for box in answer.boxes]}

    def title(self, answer: DetectedInCloud) -> str:
        """Return the number of boxes per label."""
        return count_labels([box.label for box in answer.boxes])

    def sample(
        self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[DetectedInCloud]
    ) -> Sample:
        """Return the cloud from above with the boxes of all queries; groups of points are places on it."""
        cloud, (found, boxes) = prepared.rows[row], answers[row]
        extent, queries = np.array(self.scale.extent), found.queries
        assert queries is not None
        regions = [
            DetectedBox(
                label=self.labels.names[c],
                score=float(score),
                place=place_on_top_view((box[:2] - cloud.middle[:2]) / extent[:2] + 0.5, box[3:5] / extent[:2]),
                query=int(query),
            )
            for score, c, box, query in zip(found.scores, found.classes, found.boxes, queries, strict=True)
        ]
        with torch.no_grad():
            placed = inference.model.reads(pad_clouds([cloud.points]).to(device_of(inference.model)))
        centers = placed.centers[0, : int(placed.lengths[0])].double().cpu().numpy()
        points = (centers - 0.5) * extent + cloud.middle
        groups = Axis(
            labels=tuple("x {:.2f}, y {:.2f}, z {:.2f} m".format(*point) for point in points),
            kind="group of points",
            picture="image",
            places=tuple(place_on_top_view(center[:2], np.array([_PATCH, _PATCH])) for center in centers),
        )
        pixels = draw_top_view(cloud.points[:, :3], self.scale.extent)
        return Sample(
            title=f"{prepared.name_of(row)} -> {self.title(answers[row])}",
            axes={"source": groups, "queries": query_axis(regions)},
            pictures={"image": Image(pixels=pixels, boxes=tuple(regions[: len(boxes)]))},
        )

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: DetectedInCloud) -> Tensor:
        """Return the sum of log p of the detected boxes."""
        found, count = answer.detections, len(answer.boxes)
        assert found.queries is not None
        pairs = zip(found.queries[:count].tolist(), found.classes[:count].tolist(), strict=True)
        return set_log_prob(model(pad_clouds([prepared.rows[row].points]).to(device_of(model))), pairs, "box")

    @cached_property
    def _splits(self) -> tuple[CloudDataset, CloudDataset]:
        """Training and validation clouds from files."""
        data = self.config.data
        assert data.train is not None
        train = read_clouds(data.train, data)
        if data.val is not None:
            return train, read_clouds(data.val, data)
        first, validation = hold_out(train, data.val_share, "clouds")
        return replace(first, skipped=train.skipped), validation


def _to_points(given: Any, width: int, where: str) -> NDArray[np.float64]:
    """Return points from an array. Raises UserError naming the input."""
    points = np.asarray(given)
    if points.dtype.kind not in "iuf" or points.ndim != 2 or points.shape[1] != width:
        raise UserError(
            f"{where}: points must be numbers (points, {width}): x, y, z"
            f"{' and features' if width > 3 else ''}, got {points.dtype} of {points.shape}"
        )
    return check_points(points, where)


def _from_corner(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return first corner and sizes of boxes given by center and sizes."""
    return np.concatenate((boxes[..., :3] - boxes[..., 3:] / 2, boxes[..., 3:]), -1)


def _sides(sides: Sequence[float] | NDArray[np.float64]) -> str:
    return " x ".join(f"{side:.3g}" for side in sides)
