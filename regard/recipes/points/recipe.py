"""Recipe `points`: object detection in point clouds, scored by AP at 3-D IoU 0.25 and 0.5.

    points -> groups of neighbors -> encoder over groups -> top-k proposals -> decoder queries ->
    class, box

Source: lectures, E.3 (set to set: point clouds to boxes); misra2021.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.annotated import AnnotatedDataset
from regard.data.batches import pad_arrays
from regard.data.embedded.rooms import make_rooms
from regard.data.points.batches import CloudBatches, to_boxes
from regard.data.points.clouds import CloudScale, middle_of, read_clouds, thin_cloud
from regard.data.points.files import AXES, check_points, parse_cloud
from regard.data.tables import FILE_COLUMNS, read_lines
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.points import PointReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import BoxInSpace
from regard.recipes.base.detection import DetectionRecipe
from regard.recipes.base.recipe import Dataset, Example, File
from regard.recipes.base.scoring import device_of
from regard.recipes.points.config import PointsRunConfig
from regard.system.files import plain_name

Clouds = AnnotatedDataset[NDArray[np.float64]]
_SCALE = "points.json"
_SIDE, _DOT = 400, 2
_LIGHT, _DARK = np.array([205.0, 214.0, 224.0]), np.array([20.0, 40.0, 80.0])
_PATCH = 0.02
"""Side of the place of a group on the top view, as a share of its sides."""


class PointsRecipe(DetectionRecipe[PointsRunConfig]):
    """Recipe of object detection in point clouds. A row: a cloud from its middle, that middle."""

    metric = "ap25"
    unit = "clouds"
    monitored = ("ap25", "ap50")
    noun = "clouds"
    box = BoxInSpace
    files_of_folder = (".npz", ".csv", ".ply", ".pcd")
    signature = "AP at 3-D IoU 0.25 and 0.5, boxes parallel to the axes"
    digits = 3
    scale: CloudScale

    def is_table(self, path: Path) -> bool:
        if not plain_name(path).endswith((".csv", ".tsv", ".tab")):
            return super().is_table(path)
        header = next(read_lines(path), b"").decode("utf-8", "replace").replace("\t", ",")
        names = {cell.strip() for row in csv.reader([header]) for cell in row}
        return not set(AXES) <= names or not names.isdisjoint(FILE_COLUMNS)

    def generate(self, split: str) -> Clouds:
        return make_rooms(split, self.run.seed, self.config.data)

    def read_split(self, split: str) -> Clouds:
        return read_clouds(getattr(self.config.data, split), self.config.data)

    def fit(self, train: Dataset[Clouds]) -> dict[str, Any]:
        return super().fit(train) | {_SCALE: CloudScale.measure(train.data)}

    def open(self, folder: Path) -> None:
        super().open(folder)
        self.scale = CloudScale.load(folder / _SCALE)

    def make_batches(self, data: Clouds, **options: Any) -> CloudBatches:
        return CloudBatches(data, self.labels, self.scale, seed=self.run.seed, **options)

    def model(self) -> Model:
        config = self.config
        reader = PointReader(
            config.model.core.width,
            extent=self.scale.extent,
            features=len(config.data.features),
            groups=config.groups,
            neighbors=config.neighbors,
            radius=config.radius,
            dropout=config.model.dropout,
        )
        sizes = {"num_classes": len(self.labels), "axes": 3}
        return build_detector(config.model, reader, **sizes, parts=self.parts())

    def describe(self) -> str:
        return f"clouds of up to {_sides(self.scale.extent)} m, {len(self.labels)} kinds of boxes"

    def to_corners(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate((boxes[..., :3] - boxes[..., 3:] / 2, boxes[..., 3:]), -1)

    def collate(self, rows: Sequence[Any]) -> Padded:
        return pad_arrays([cloud for cloud, _ in rows])

    def to_boxes(self, regions: Tensor, frames: Sequence[Any]) -> NDArray[np.float64]:
        boxes = to_boxes(regions.double().numpy(), self.scale)
        boxes[..., :3] += np.stack(frames)[:, None]
        return boxes

    def preprocess(self, given: Any, number: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the points of a cloud, thinned as in training, and their middle.

        given: a file of points (.npz, .csv, .ply, .pcd), or an array (points, 3 + features) in
               meters.
        """
        config, where = self.config.data, f"input {number}"
        if isinstance(given, File):
            points = parse_cloud(given.content, f"{where}: {given.name}", config.features)
        else:
            try:
                points = np.asarray(given, np.float64)
            except (ValueError, TypeError) as error:
                raise UserError(f"{where}: points must be numbers: {error}") from error
            width = 3 + len(config.features)
            if points.ndim != 2 or points.shape[1] != width:
                raise UserError(f"{where}: points must be (points, {width}), got {points.shape}")
            check_points(points, where)
        points = thin_cloud(points, config.points)
        sides, extent = np.ptp(points[:, :3], axis=0), self.scale.extent
        if (sides > extent).any():
            known = f"boxes are found in the {_sides(extent)} m around its middle"
            self.notify(f"{where}: spans {_sides(sides)} m; {known}")
        return [(self.scale.normalize(points), middle_of(points))]

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        (cloud, middle), extent = example.rows[i], np.array(self.scale.extent)
        places = []
        for box in example.outputs[i].boxes:
            center = (box[:2] - middle[:2]) / extent[:2] + 0.5
            places.append(place_on_top_view(center, box[3:5] / extent[:2]))
        source = pad_arrays([cloud]).to(device_of(inference.model))
        with torch.no_grad():
            placed = inference.model.reader(source)
        centers = placed.centers[0, : int(placed.lengths[0])].double().cpu().numpy()
        points = (centers - 0.5) * extent + middle
        patch = np.array([_PATCH, _PATCH])
        groups = Axis(
            labels=tuple("x {:.2f}, y {:.2f}, z {:.2f} m".format(*point) for point in points),
            kind="group of points",
            picture="image",
            places=tuple(place_on_top_view(center[:2], patch) for center in centers),
        )
        pixels = draw_top_view(cloud[:, :3], self.scale.extent)
        return self.box_sample(example, i, groups, places, pixels=pixels)


def draw_top_view(points: NDArray[Any], extent: Sequence[float]) -> NDArray[np.uint8]:
    """Return an image (height, width, 3) of points (points, 3) from above, 400 pixels long.

    x is to the right, y upward; higher points are darker.
    """
    longest = max(extent[:2])
    width, height = (max(1, round(_SIDE * side / longest)) for side in extent[:2])
    image = np.full((height, width, 3), 255, np.uint8)
    x, y, z = (points.astype(np.float64) / np.array(extent) + 0.5).clip(0, 1).T
    span = max(float(np.ptp(z)), 1e-9)
    for i in np.argsort(z, kind="stable"):  # higher points cover lower ones
        left, top = round(x[i] * (width - _DOT)), round((1 - y[i]) * (height - _DOT))
        share = (z[i] - z.min()) / span
        color = _LIGHT + share * (_DARK - _LIGHT)
        image[max(top, 0) : top + _DOT, max(left, 0) : left + _DOT] = color
    return image


def place_on_top_view(center: NDArray[Any], sides: NDArray[Any]) -> tuple[float, ...]:
    """Return left, top, width, height of an area on the top view, as shares of the image's sides.

    center, sides: x and y, relative to the extent.
    """
    (x, y), (wide, high) = center.tolist(), sides.tolist()
    return x - wide / 2, 1 - y - high / 2, wide, high


def _sides(sides: Sequence[float] | NDArray[np.float64]) -> str:
    return " x ".join(f"{side:.3g}" for side in sides)
