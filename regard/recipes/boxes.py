"""The recipe `boxes`: images to the boxes that are in them; scored by COCO's average precision.

    pixels -> stem -> places that read one another -> the surest propose -> queries read all places -> class, box

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

from regard.data.box_batches import BoxBatches, fitted
from regard.data.boxes import Annotated, read_boxes
from regard.data.config import OnBad
from regard.data.image_files import ImageFiles, prepare_image
from regard.data.labeled import Labels
from regard.data.made_shapes import made_shapes
from regard.digests import recorded
from regard.errors import UserError
from regard.look.map import Seen
from regard.look.scene import Axis, Scene
from regard.look.scene import Box as Region
from regard.look.scene import Image as Picture
from regard.models.build import build_detector
from regard.models.detector import Detector
from regard.models.reads.images import ImageReader
from regard.recipes.config import Boxes
from regard.recipes.detection import FoundBoxes, average_precision
from regard.recipes.folder import Run
from regard.recipes.likelihood import of_found
from regard.recipes.pictures import patches
from regard.recipes.task import Task, Trained, numbered
from regard.telling import showing

Given = str | Path | Image.Image | NDArray[Any]
"""An image, or its file."""
_LABELS = "labels.json"
_ROWS, _SAMPLES = 16, 5


class Box(NamedTuple):
    """A box in an image: pixels from its top left corner."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


class Listed(NamedTuple):
    """The boxes of an image, a line each: label, score, x, y, width, height; and the mean score."""

    text: str
    score: float


class BoxesTask(Task):
    """Images with boxes, and a detector."""

    metric = "ap"
    labels: Labels

    @property
    def config(self) -> Boxes:
        """All settings of the run."""
        assert isinstance(self.run.config, Boxes)
        return self.run.config

    def check(self) -> None:
        """Read all boxes and open all images."""
        train, val = self._learned
        sets = [train, val]
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                sets.append(self.test_data())
        labels = Labels(train.labels())
        if not labels.names:
            raise UserError(f"{train.origin}: there is no box in it to learn from.")
        for data in sets:
            self.prepared(data, labels)
        fullest = max((item for data in sets for item in data.items), key=lambda item: len(item.labels))
        most = len(fullest.labels)
        if most > self.config.model.num_queries:
            raise UserError(
                f"{fullest.where}: {fullest.file[:200]} has {most} boxes, but the model finds "
                f"{self.config.model.num_queries} at most: raise model.num_queries."
            )

    def learn(self, folder: Path) -> None:
        """The labels that occur."""
        Labels(self._learned[0].labels()).save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """The labels."""
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> BoxBatches:
        """All training images, changed anew in each epoch."""
        settings = {"rows": self.config.batch, "is_fixed": False, "augment": self.config.augment}
        return self.prepared(self._learned[0], self.labels, **settings)

    def prepared(
        self, data: Annotated, labels: Labels, *, rows: int = _ROWS, is_fixed: bool = True, augment: bool = False
    ) -> BoxBatches:
        """Batches of any images."""
        settings = {"width": self.config.data.width, "height": self.config.data.height, "seed": self.run.seed}
        return BoxBatches(data, labels, rows=rows, is_fixed=is_fixed, augment=augment, **settings)

    def model(self) -> Detector:
        """For images of this size and these labels."""
        data, config = self.config.data, self.config.model
        shape = (3, data.height, data.width)
        reads = ImageReader(shape, config.core.width, halvings=self.config.halvings, dropout=config.dropout)
        return build_detector(config, reads, num_classes=len(self.labels), axes=2)

    def describe(self) -> str:
        """What is read and found."""
        data = self.config.data
        return f"images of {data.width} x {data.height}, {len(self.labels)} kinds of boxes"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """AP and AP50 of the validation images."""
        found = self.scores(model, self._val)
        return {name: found[name] for name in ("ap", "ap50")}

    def scores(self, model: nn.Module, batches: BoxBatches) -> dict[str, Any]:
        """AP, AP50, AP75 and AP50 of each class, of any images."""
        found: list[FoundBoxes] = []
        for rows in batches.plan(0):
            found += self.found(model, batches.collate(0, rows).source, [batches.scale(i) for i in rows])
        boxes = [item.boxes for item in batches.data.items]
        return average_precision(found, boxes, batches.classes, self.labels.names)

    @torch.no_grad()
    def found(self, model: nn.Module, source: Tensor, scales: Sequence[float]) -> list[FoundBoxes]:
        """What is found in images, in pixels of the images as they were before they were scaled."""
        said = model(source.to(next(model.parameters()).device))
        (score, label, region), order = said.best(), said.order()
        sides = torch.tensor([self.config.data.width, self.config.data.height] * 2)
        region = (region.float().cpu() * sides).double().numpy()
        boxes = np.concatenate((region[..., :2] - region[..., 2:] / 2, region[..., 2:]), -1)
        return [
            FoundBoxes(
                score[i].double().cpu().numpy(), label[i].cpu().numpy(), boxes[i] / scale, order[i].cpu().numpy()
            )
            for i, scale in enumerate(scales)
        ]

    def has_test(self) -> bool:
        """Always for drawn shapes."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_data(self) -> Annotated:
        """The run's test images."""
        data = self.config.data
        if data.test is None:
            return made_shapes("test", self.run.seed, data)
        return self.told(read_boxes(data.test, data.test_images, data))

    def told(self, data: Annotated) -> Annotated:
        """The images; what was left out is told."""
        for line in data.notices:
            self.tell(line)
        if data.skipped:
            self.tell(f"{data.origin}: left out {len(data.skipped)} images or boxes; first: {data.skipped[0]}")
        return data

    def trained(self, model: nn.Module, folder: Path) -> "TrainedBoxes":
        """The model with its labels."""
        return TrainedBoxes(self, model, folder)

    @cached_property
    def _val(self) -> BoxBatches:
        return self.prepared(self._learned[1], self.labels)

    @cached_property
    def _learned(self) -> tuple[Annotated, Annotated]:
        """Images to learn from and to choose by."""
        data = self.config.data
        if data.train is None:
            return made_shapes("train", self.run.seed, data), made_shapes("val", self.run.seed, data)
        train = self.told(read_boxes(data.train, data.train_images, data))
        if data.val is not None:
            return train, self.told(read_boxes(data.val, data.val_images, data))
        cut = len(train) - max(1, round(len(train) * data.val_share))
        if cut < 1:
            raise UserError(f"{train.origin}: {len(train)} images are too few to keep some for validation.")
        return train.take(0, cut, train.origin), train.take(cut, len(train), f"{train.origin}, kept for validation")


class TrainedBoxes(Trained):
    """A detector in use."""

    task: BoxesTask

    def predict(self, inputs: Sequence[Given], *, threshold: float | None = None) -> list[list[Box]]:
        """The boxes found in each image, the surest first; those of at least `threshold` (the run's own).

        inputs: image files, Pillow images, or bytes (height, width, 3). Files and Pillow images are turned upright as
                their EXIF orientation says, and boxes are those of the upright image; bytes are taken as they are.
        """
        return self._boxes(inputs, threshold, 1)

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[Listed]]:
        """For each image its boxes."""
        rows = []
        for boxes in self._boxes(inputs, None, first):
            text = "\n".join(
                f"{box.label}\t{box.score:.3f}\t" + "\t".join(f"{number:.1f}" for number in box[2:]) for box in boxes
            )
            rows.append([Listed(text, sum(box.score for box in boxes) / max(1, len(boxes)))])
        return rows

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        images: str | Path | None = None,
        on_bad: OnBad = "error",
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """AP, AP50, AP75 and AP50 of each class on the run's test images, or on others."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        config = replace(self.config.data, on_bad=on_bad)
        data = self.task.test_data() if path is None else self.task.told(read_boxes(path, images, config))
        scores = self.task.scores(self._model, self.task.prepared(data, self.task.labels))
        size = f"{config.width} x {config.height}"
        signature = f"COCO AP, at most 100 boxes an image, seen at {size}, classes {', '.join(self.task.labels.names)}"
        samples = [self._sample(data, i) for i in range(min(_SAMPLES, len(data)))]
        return {"data": data.origin, "examples": len(data), **scores, "signature": signature, "samples": samples}

    def likelihood(self, given: Given, seen: Seen) -> Tensor:
        """Sum of log p of the boxes that were found."""
        data, names = self.config.data, self.task.labels.names
        array, _ = fitted(self._image(given, 1), data.width, data.height)
        said = self._model(_source(array).to(next(self._model.parameters()).device))
        picture = seen.scene.pictures["image"]
        assert isinstance(picture, Picture)
        return of_found(said, [(box.query, names.index(box.label)) for box in picture.boxes], "box")

    def test_input(self, index: int) -> Image.Image:
        """An image of the test data."""
        self._check_test()
        data = self.task.test_data()
        return self._named(data.draw(numbered(range(len(data)), index, data.origin)), f"test image {index}")

    def _boxes(self, inputs: Sequence[Given], threshold: float | None, first: int) -> list[list[Box]]:
        rows = []
        for number, one in enumerate(inputs, start=first):
            rows.append(self._found(self._image(one, number), threshold, self._called(one, f"image {number}")))
        return rows

    def _image(self, one: Given, number: int) -> Image.Image:
        if isinstance(one, Image.Image):
            return prepare_image(one, f"input {number}").image.convert("RGB")
        if isinstance(one, np.ndarray):
            if one.dtype != np.uint8 or one.ndim != 3 or one.shape[2] != 3 or 0 in one.shape:
                raise UserError(
                    f"input {number}: pixels must be bytes (uint8) of (height, width, 3), but are {one.dtype} of "
                    f"{one.shape}"
                )
            return Image.fromarray(one)
        if not isinstance(one, str | Path):
            raise UserError(f"input {number}: expected an image file, an image or an array, got {type(one).__name__}")
        path = Path(one)
        return ImageFiles.of(path.parent).open(path.name, "input").image

    def _found(self, image: Image.Image, threshold: float | None, name: str) -> list[Box]:
        data = self.config.data
        array, scale = fitted(image, data.width, data.height)
        with showing(lambda: [Scene(axes={"source": patches(self._model.reads)})]) as scenes:
            (found,) = self.task.found(self._model, _source(array), [scale])
        least = self.config.threshold if threshold is None else threshold
        boxes = [
            Box(self.task.labels.names[c], float(score), *map(float, box))
            for score, c, box in zip(found.scores, found.classes, found.boxes, strict=True)
            if score >= least
        ]
        for scene in scenes:
            scene.title = f"{name} -> {_counted([box.label for box in boxes])}"
            self._complete(scene, array, found, scale, len(boxes))
        return boxes

    def _complete(self, scene: Scene, array: NDArray[np.uint8], found: FoundBoxes, scale: float, count: int) -> None:
        """What the queries said, on the image as the model saw it; the first `count` boxes are the answer."""
        assert found.queries is not None
        sides = np.array([self.config.data.width, self.config.data.height] * 2)
        regions = []
        for score, c, box, query in zip(found.scores, found.classes, found.boxes, found.queries, strict=True):
            left, top, width, height = map(float, box * scale / sides)
            place, label = (left, top, width, height), self.task.labels.names[c]
            regions.append(Region(label=label, score=float(score), place=place, query=int(query)))
        scene.pictures["image"] = Picture(pixels=array, boxes=tuple(regions[:count]))
        ordered = sorted(regions, key=lambda one: one.query)
        scene.axes["queries"] = Axis(
            labels=tuple(f"{one.label} {one.score:.2f}" for one in ordered),
            what="box",
            on="image",
            places=tuple(one.place for one in ordered),
        )

    def _sample(self, data: Annotated, i: int) -> dict[str, str]:
        found = self._found(data.draw(i), None, data.items[i].file)
        counts = [_counted([box.label for box in found]), _counted(data.items[i].labels)]
        return dict(zip(("source", "output", "reference"), (data.items[i].file, *counts), strict=True))


def _source(array: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(array).permute(2, 0, 1)[None].float() / 255


def _counted(labels: Sequence[str]) -> str:
    """Such as: 2 square, 1 circle."""
    return ", ".join(f"{list(labels).count(name)} {name}" for name in sorted(set(labels))) or "nothing"


def task(run: Run, tell: Callable[[str], None]) -> BoxesTask:
    """This recipe at work."""
    return BoxesTask(run, tell)
