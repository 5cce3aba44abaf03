"""Recipe `boxes`: object detection, scored by COCO average precision.

    pixels -> stem -> encoder over image positions -> top-k proposals -> decoder queries -> class, box

Source: lectures, E (image to set); carion2020.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.embedded.shapes import make_shapes
from regard.data.images.box_batches import BoxBatches, resize_and_pad
from regard.data.images.boxes import BoxDataset, read_boxes
from regard.data.images.files import ImageFiles, prepare_image
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, DetectedBox, Sample
from regard.look.sample import Image as Picture
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.likelihood import set_log_prob
from regard.recipes.base.pictures import patch_axis
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.boxes.config import BoxesRunConfig
from regard.recipes.metrics.detection import ImageDetections, average_precision
from regard.system.fingerprints import record_digests

Given = str | Path | Image.Image | NDArray[Any]
"""An image or an image file."""
_LABELS = "labels.json"
_ROWS, _SAMPLES = 16, 5


class Box(NamedTuple):
    """Detected box, in pixels from the image's top left corner."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


class BoxLines(NamedTuple):
    """Boxes of an image as lines of label, score, x, y, width, height; and their mean score."""

    text: str
    score: float


class BoxesRecipe(Recipe):
    """Recipe of object detection."""

    metric = "ap"
    labels: Labels

    @property
    def config(self) -> BoxesRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, BoxesRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all boxes and open all images."""
        train, val = self._splits
        sets = [train, val]
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                sets.append(self.test_data())
        labels = Labels(train.labels())
        if not labels.names:
            raise UserError(f"{train.origin}: there are no boxes to learn from.")
        for data in sets:
            self.make_batches(data, labels)
        fullest = max((item for data in sets for item in data.items), key=lambda item: len(item.labels))
        most = len(fullest.labels)
        if most > self.config.model.num_queries:
            raise UserError(
                f"{fullest.where}: {fullest.file[:200]} has {most} boxes, but the model detects at most "
                f"{self.config.model.num_queries}: raise model.num_queries."
            )

    def learn(self, folder: Path) -> None:
        """Save the labels of the training data."""
        Labels(self._splits[0].labels()).save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """Load the labels."""
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> BoxBatches:
        """Return batches of the training images, augmented differently in each epoch."""
        settings = {"rows": self.config.batch, "is_fixed": False, "augment": self.config.augment}
        return self.make_batches(self._splits[0], self.labels, **settings)

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

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return AP and AP50 on the validation images."""
        scores = self.score(model, self._val)
        return {name: scores[name] for name in ("ap", "ap50")}

    def score(self, model: nn.Module, batches: BoxBatches) -> dict[str, Any]:
        """Return AP, AP50, AP75 and the AP50 of each class."""
        detections: list[ImageDetections] = []
        for rows in batches.plan(0):
            detections += self.detect(model, batches.collate(0, rows).source, [batches.scale(i) for i in rows])
        boxes = [item.boxes for item in batches.data.items]
        return average_precision(detections, boxes, batches.classes, self.labels.names)

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Tensor, scales: Sequence[float]) -> list[ImageDetections]:
        """Detect boxes, in pixels of the images before they were scaled."""
        predictions = model(source.to(next(model.parameters()).device))
        (score, label, region), order = predictions.best(), predictions.order()
        sides = torch.tensor([self.config.data.width, self.config.data.height] * 2)
        region = (region.float().cpu() * sides).double().numpy()
        boxes = np.concatenate((region[..., :2] - region[..., 2:] / 2, region[..., 2:]), -1)
        return [
            ImageDetections(
                score[i].double().cpu().numpy(), label[i].cpu().numpy(), boxes[i] / scale, order[i].cpu().numpy()
            )
            for i, scale in enumerate(scales)
        ]

    def has_test(self) -> bool:
        """Return True if there is test data; drawn shapes always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_data(self) -> BoxDataset:
        """Return the test images of the run."""
        data = self.config.data
        if data.test is None:
            return make_shapes("test", self.run.seed, data)
        return self.report_skipped(read_boxes(data.test, data.test_images, data))

    def report_skipped(self, data: BoxDataset) -> BoxDataset:
        """Report what was left out, and return the images."""
        for line in data.notices:
            self.notify(line)
        if data.skipped:
            self.notify(f"{data.origin}: left out {len(data.skipped)} images or boxes; first: {data.skipped[0]}")
        return data

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedBoxes":
        """Return the trained run of this model."""
        return TrainedBoxes(self, model, folder)

    @cached_property
    def _val(self) -> BoxBatches:
        return self.make_batches(self._splits[1], self.labels)

    @cached_property
    def _splits(self) -> tuple[BoxDataset, BoxDataset]:
        """Training and validation images."""
        data = self.config.data
        if data.train is None:
            return make_shapes("train", self.run.seed, data), make_shapes("val", self.run.seed, data)
        train = self.report_skipped(read_boxes(data.train, data.train_images, data))
        if data.val is not None:
            return train, self.report_skipped(read_boxes(data.val, data.val_images, data))
        cut = len(train) - max(1, round(len(train) * data.val_share))
        if cut < 1:
            raise UserError(f"{train.origin}: {len(train)} images are too few to split off a validation set.")
        return train.take(0, cut, train.origin), train.take(cut, len(train), f"{train.origin}, held out for validation")


class TrainedBoxes(TrainedRun):
    """Trained run of the recipe `boxes`."""

    recipe: BoxesRecipe

    def predict(self, inputs: Sequence[Given], *, threshold: float | None = None) -> list[list[Box]]:
        """Detect boxes with a score of at least `threshold` (default: the run's) in each image, highest score first.

        inputs: image files, Pillow images, or uint8 arrays (height, width, 3). Files and Pillow images are rotated
                according to their EXIF orientation, and boxes refer to the rotated image; arrays are used as they are.
        """
        return self._detect_all(inputs, threshold, 1)

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[BoxLines]]:
        """Return the detected boxes of each image as lines of text."""
        rows = []
        for boxes in self._detect_all(inputs, None, first):
            text = "\n".join(
                f"{box.label}\t{box.score:.3f}\t" + "\t".join(f"{number:.1f}" for number in box[2:]) for box in boxes
            )
            rows.append([BoxLines(text, sum(box.score for box in boxes) / max(1, len(boxes)))])
        return rows

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        images: str | Path | None = None,
        on_bad: OnBad = "error",
        notify: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Return AP, AP50, AP75 and the AP50 of each class on the run's test images, or on other images."""
        if path is None:
            self._check_test()
        config = replace(self.config.data, on_bad=on_bad)
        data = self.recipe.test_data() if path is None else self.recipe.report_skipped(read_boxes(path, images, config))
        scores = self.recipe.score(self._model, self.recipe.make_batches(data, self.recipe.labels))
        size = f"{config.width} x {config.height}"
        names = ", ".join(self.recipe.labels.names)
        signature = f"COCO AP, at most 100 boxes per image, input size {size}, classes {names}"
        samples = [self._sample(data, i) for i in range(min(_SAMPLES, len(data)))]
        return {"data": data.origin, "examples": len(data), **scores, "signature": signature, "samples": samples}

    def likelihood(self, given: Given, maps: SampleMaps) -> Tensor:
        """Return the sum of log p of the detected boxes."""
        data, names = self.config.data, self.recipe.labels.names
        array, _ = resize_and_pad(self._load_image(given, 1), data.width, data.height)
        predictions = self._model(_source(array).to(next(self._model.parameters()).device))
        picture = maps.sample.pictures["image"]
        assert isinstance(picture, Picture)
        return set_log_prob(predictions, [(box.query, names.index(box.label)) for box in picture.boxes], "box")

    def test_input(self, index: int) -> Image.Image:
        """Return an image of the test data."""
        self._check_test()
        data = self.recipe.test_data()
        return self._set_name(data.draw(get_input(range(len(data)), index, data.origin)), f"test image {index}")

    def _detect_all(self, inputs: Sequence[Given], threshold: float | None, first: int) -> list[list[Box]]:
        rows = []
        for number, given in enumerate(inputs, start=first):
            rows.append(
                self._detect(self._load_image(given, number), threshold, self._get_name(given, f"image {number}"))
            )
        return rows

    def _load_image(self, given: Given, number: int) -> Image.Image:
        if isinstance(given, Image.Image):
            return prepare_image(given, f"input {number}").image.convert("RGB")
        if isinstance(given, np.ndarray):
            if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3 or 0 in given.shape:
                raise UserError(
                    f"input {number}: pixels must be bytes (uint8) of (height, width, 3), got {given.dtype} of "
                    f"{given.shape}"
                )
            return Image.fromarray(given)
        if not isinstance(given, str | Path):
            raise UserError(f"input {number}: expected an image file, an image or an array, got {type(given).__name__}")
        path = Path(given)
        return ImageFiles.from_path(path.parent).open(path.name, "input").image

    def _detect(self, image: Image.Image, threshold: float | None, name: str) -> list[Box]:
        data = self.config.data
        array, scale = resize_and_pad(image, data.width, data.height)
        with self._segment(lambda: [Sample(axes={"source": patch_axis(self._model.reads)})]) as samples:
            (detections,) = self.recipe.detect(self._model, _source(array), [scale])
        threshold = self.config.threshold if threshold is None else threshold
        boxes = [
            Box(self.recipe.labels.names[c], float(score), *map(float, box))
            for score, c, box in zip(detections.scores, detections.classes, detections.boxes, strict=True)
            if score >= threshold
        ]
        for sample in samples:
            sample.title = f"{name} -> {_count_labels([box.label for box in boxes])}"
            self._complete(sample, array, detections, scale, len(boxes))
        return boxes

    def _complete(
        self, sample: Sample, array: NDArray[np.uint8], detections: ImageDetections, scale: float, count: int
    ) -> None:
        """Add the boxes of all queries on the model's input image; the first `count` are the answer."""
        assert detections.queries is not None
        sides = np.array([self.config.data.width, self.config.data.height] * 2)
        regions = []
        columns = detections.scores, detections.classes, detections.boxes, detections.queries
        for score, c, box, query in zip(*columns, strict=True):
            left, top, width, height = map(float, box * scale / sides)
            place, label = (left, top, width, height), self.recipe.labels.names[c]
            regions.append(DetectedBox(label=label, score=float(score), place=place, query=int(query)))
        sample.pictures["image"] = Picture(pixels=array, boxes=tuple(regions[:count]))
        ordered = sorted(regions, key=lambda region: region.query)
        sample.axes["queries"] = Axis(
            labels=tuple(f"{region.label} {region.score:.2f}" for region in ordered),
            kind="box",
            picture="image",
            places=tuple(region.place for region in ordered),
        )

    def _sample(self, data: BoxDataset, i: int) -> dict[str, str]:
        boxes = self._detect(data.draw(i), None, data.items[i].file)
        counts = [_count_labels([box.label for box in boxes]), _count_labels(data.items[i].labels)]
        return dict(zip(("source", "output", "reference"), (data.items[i].file, *counts), strict=True))


def create_recipe(run: Run, notify: Callable[[str], None]) -> BoxesRecipe:
    """Create the recipe of a run."""
    return BoxesRecipe(run, notify)


def _source(array: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(array).permute(2, 0, 1)[None].float() / 255


def _count_labels(labels: Sequence[str]) -> str:
    """Return the number of boxes per label, such as: 2 square, 1 circle."""
    return ", ".join(f"{list(labels).count(name)} {name}" for name in sorted(set(labels))) or "nothing"
