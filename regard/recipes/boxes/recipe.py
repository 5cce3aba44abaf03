"""Recipe `boxes`: object detection, scored by COCO average precision.

    pixels -> stem -> encoder over image positions -> top-k proposals -> decoder queries -> class, box

Source: lectures, E.2 (image to set); carion2020.
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

from regard.data.embedded.shapes import make_shapes
from regard.data.images.box_batches import BoxBatches, resize_and_pad
from regard.data.images.boxes import BoxDataset, read_boxes
from regard.data.text.labels import Labels
from regard.look.sample import DetectedBox, Sample
from regard.look.sample import Image as Picture
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.detection import check_box_count, count_labels, hold_out, known_labels, query_axis
from regard.recipes.base.likelihood import set_log_prob
from regard.recipes.base.pictures import patch_axis, to_color_image
from regard.recipes.base.recipe import Examples, Prepared, Recipe, describe_skipped, plan_by_count
from regard.recipes.base.scoring import device_of
from regard.recipes.boxes.config import BoxesPrediction, BoxesRunConfig
from regard.recipes.metrics.detection import Detections, average_precision
from regard.trace import Trace

_LABELS = "labels.json"
_ROWS = 16


class Box(NamedTuple):
    """Detected box, in pixels from the image's top left corner."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


class Detected(NamedTuple):
    """Detections of all queries in an image, and those with a sufficient score, which are the first of them."""

    detections: Detections
    boxes: list[Box]


class BoxesRecipe(Recipe[BoxesRunConfig]):
    """Recipe of object detection."""

    metric = "ap"
    monitored = ("ap", "ap50")
    labels: Labels

    def read(self, split: str, other: Any = None) -> Examples[BoxDataset]:
        """Return the images of a split, or of a file of boxes."""
        data = self.config.data
        if other is not None:
            images = read_boxes(other.test[0], other.images, replace(data, on_bad=other.on_bad))
        elif data.train is None and (split != "test" or data.test is None):
            images = make_shapes(split, self.run.seed, data)
        elif split == "test":
            assert data.test is not None
            images = read_boxes(data.test, data.test_images, data)
        else:
            images = self._splits[split == "val"]
        return Examples(
            images,
            images.origin,
            len(images),
            input=images.draw,
            name=lambda i: images.items[i].file,
            reference=lambda i: count_labels(images.items[i].labels),
            skipped=(*images.notices, *describe_skipped(images.origin, "images or boxes", images.skipped)),
        )

    def usable(self, examples: Examples[BoxDataset]) -> Examples[BoxDataset]:
        """Return the images with their batches, which keep them in memory."""
        return replace(examples, targets=self.make_batches(examples.data, self.labels))

    def check_examples(self, split: str, examples: Examples[BoxDataset]) -> None:
        """Open all images, and check that the model can detect as many boxes."""
        self.make_batches(examples.data, known_labels(self.train.data))
        check_box_count(examples.data, self.config.model.num_queries)

    def learn(self, folder: Path) -> None:
        """Save the labels of the training data."""
        Labels(self.train.data.labels()).save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """Load the labels."""
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> BoxBatches:
        """Return batches of the training images, augmented differently in each epoch."""
        settings = {"rows": self.config.batch, "is_fixed": False, "augment": self.config.augment}
        return self.make_batches(self.train.data, self.labels, **settings)

    def make_batches(
        self, data: BoxDataset, labels: Labels, *, rows: int = _ROWS, is_fixed: bool = True, augment: bool = False
    ) -> BoxBatches:
        """Return batches of the images."""
        settings = {"width": self.config.data.width, "height": self.config.data.height, "seed": self.run.seed}
        return BoxBatches(data, labels, rows=rows, is_fixed=is_fixed, augment=augment, **settings)

    def model(self) -> Model:
        """Return a detector for this image size and these labels."""
        data, config = self.config.data, self.config.model
        shape = (3, data.height, data.width)
        reads = ImageReader(
            shape, config.core.width, downsampling_layers=self.config.downsampling_layers, dropout=config.dropout
        )
        return build_detector(config, reads, num_classes=len(self.labels), axes=2)

    def describe(self) -> str:
        """Return the input size and the number of classes."""
        data = self.config.data
        return f"images of {data.width} x {data.height}, {len(self.labels)} kinds of boxes"

    def score(self, inference: ActiveModel, examples: Examples[BoxDataset], options: Any) -> dict[str, Any]:
        """Return AP, AP50, AP75 and the AP50 of each class."""
        batches: BoxBatches = examples.targets
        detections: list[Detections] = []
        for rows in batches.plan(0):
            scales = [batches.scale(i) for i in rows]
            detections += self.detect(inference.model, batches.collate(0, rows).source, scales)
        boxes = [item.boxes for item in batches.data.items]
        return average_precision(detections, boxes, batches.classes, self.labels.names)

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Tensor, scales: Sequence[float]) -> list[Detections]:
        """Detect boxes, in pixels of the images before they were scaled."""
        predictions = model(source.to(device_of(model)))
        (score, label, region), order = predictions.best(), predictions.order()
        sides = torch.tensor([self.config.data.width, self.config.data.height] * 2)
        region = (region.float().cpu() * sides).double().numpy()
        boxes = np.concatenate((region[..., :2] - region[..., 2:] / 2, region[..., 2:]), -1)
        return [
            Detections(
                score[i].double().cpu().numpy(), label[i].cpu().numpy(), boxes[i] / scale, order[i].cpu().numpy()
            )
            for i, scale in enumerate(scales)
        ]

    def report(self, inference: ActiveModel, examples: Examples[BoxDataset]) -> dict[str, Any]:
        """Return the description of the metric and the classes."""
        size = f"{self.config.data.width} x {self.config.data.height}"
        names = ", ".join(self.labels.names)
        return {"signature": f"COCO AP, at most 100 boxes per image, input size {size}, classes {names}"}

    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        """Return each image at the size of the model's input, and its scale.

        inputs: image files, Pillow images, or uint8 arrays (height, width, 3). Files and Pillow images are rotated
                according to their EXIF orientation, and boxes refer to the rotated image; arrays are used as they are.
        """
        prepared, data = Prepared(len(inputs)), self.config.data
        for owner, given in enumerate(inputs):
            image = to_color_image(given, f"input {first + owner}")
            prepared.add(owner, resize_and_pad(image, data.width, data.height))
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        """Return batches of images."""
        return plan_by_count(rows, _ROWS)

    def answer(
        self, inference: ActiveModel, rows: Sequence[Any], options: BoxesPrediction, trace: Trace | None = None
    ) -> list[Detected]:
        """Return the boxes of each image with a score of at least the threshold, highest score first."""
        answers = []
        for found in self.detect(inference.model, _source([array for array, _ in rows]), [scale for _, scale in rows]):
            boxes = [
                Box(self.labels.names[c], float(score), *map(float, box))
                for score, c, box in zip(found.scores, found.classes, found.boxes, strict=True)
                if score >= options.threshold
            ]
            answers.append(Detected(found, boxes))
        return answers

    def values(self, answers: list[Detected]) -> list[list[Box]]:
        """Return the boxes of each image."""
        return [answer.boxes for answer in answers]

    def lines(self, answer: Detected) -> list[str]:
        """Return label, score, x, y, width and height of each box, separated by tabs."""
        return [
            f"{box.label}\t{box.score:.3f}\t" + "\t".join(f"{number:.1f}" for number in box[2:]) for box in answer.boxes
        ]

    def json(self, answer: Detected) -> dict[str, Any]:
        """Return the boxes."""
        return {"boxes": [box._asdict() for box in answer.boxes]}

    def title(self, answer: Detected) -> str:
        """Return the number of boxes per label."""
        return count_labels([box.label for box in answer.boxes])

    def sample(self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[Detected]) -> Sample:
        """Return the model's input image with the boxes of all queries."""
        (array, scale), (found, boxes) = prepared.rows[row], answers[row]
        sides = np.array([self.config.data.width, self.config.data.height] * 2)
        regions = []
        assert found.queries is not None
        for score, c, box, query in zip(found.scores, found.classes, found.boxes, found.queries, strict=True):
            left, top, width, height = map(float, box * scale / sides)
            place, label = (left, top, width, height), self.labels.names[c]
            regions.append(DetectedBox(label=label, score=float(score), place=place, query=int(query)))
        return Sample(
            title=f"{prepared.name_of(row)} -> {self.title(answers[row])}",
            axes={"source": patch_axis(inference.model.reads), "queries": query_axis(regions)},
            pictures={"image": Picture(pixels=array, boxes=tuple(regions[: len(boxes)]))},
        )

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: Detected) -> Tensor:
        """Return the sum of log p of the detected boxes."""
        found, count = answer.detections, len(answer.boxes)
        assert found.queries is not None
        pairs = zip(found.queries[:count].tolist(), found.classes[:count].tolist(), strict=True)
        return set_log_prob(model(_source([prepared.rows[row][0]]).to(device_of(model))), pairs, "box")

    @cached_property
    def _splits(self) -> tuple[BoxDataset, BoxDataset]:
        """Training and validation images from files."""
        data = self.config.data
        assert data.train is not None
        train = read_boxes(data.train, data.train_images, data)
        if data.val is not None:
            return train, read_boxes(data.val, data.val_images, data)
        first, validation = hold_out(train, data.val_share, "images")
        return replace(first, notices=train.notices, skipped=train.skipped), validation


def _source(arrays: Sequence[NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255
