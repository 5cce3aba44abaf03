"""Recipe `boxes`: object detection, scored by COCO average precision.

    pixels -> stem -> encoder over image positions -> top-k proposals -> decoder queries -> class,
    box

Source: lectures, E.2 (image to set); carion2020.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.annotated import AnnotatedDataset
from regard.data.config import used_augmentation
from regard.data.embedded.shapes import make_shapes
from regard.data.held_out import join_files
from regard.data.images.box_batches import BoxBatches, Frame, resize_and_pad, stack_images
from regard.data.images.boxes import read_boxes
from regard.data.images.files import ENDINGS
from regard.data.tables import TABLES
from regard.look.sample import Sample
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import BoxInImage
from regard.recipes.base.detection import DetectionRecipe
from regard.recipes.base.pictures import patch_axis, to_image
from regard.recipes.base.recipe import Example
from regard.recipes.boxes.config import BoxesRunConfig

Images = AnnotatedDataset[Image.Image]
_AUTO = ("zoom", "flip", "flip-vertical", "color")


class BoxesRecipe(DetectionRecipe[BoxesRunConfig]):
    """Recipe of object detection in images. A row is a resized image with its frame."""

    metric = "ap"
    input_name = "image"
    unit = "images"
    monitored = ("ap", "ap50")
    noun = "images"
    box = BoxInImage
    files_of_folder = ENDINGS
    tables = (*TABLES, ".xml", ".yaml", ".yml")
    digits = 1

    def generate(self, split: str) -> Images:
        return make_shapes(split, self.run.seed, self.config.data)

    def read_split(self, split: str) -> Images:
        data = self.config.data
        images = getattr(data, f"{split}_images") or data.images
        parts = [read_boxes(path, images, data, split) for path in getattr(data, split)]
        places = [(part, i) for part in parts for i in range(len(part))]
        return join_files(parts, load=lambda i: places[i][0].load(places[i][1]))

    def make_batches(
        self, data: Images, *, augment: tuple[str, ...] = (), **options: Any
    ) -> BoxBatches:
        size, options["augment"] = self.config.data, used_augmentation(augment, _AUTO)
        return BoxBatches(
            data, self.labels, width=size.width, height=size.height, seed=self.run.seed, **options
        )

    def model(self) -> Model:
        data, config = self.config.data, self.config.model
        reader = ImageReader(
            (3, data.height, data.width),
            config.core.width,
            downsampling_layers=self.config.downsampling_layers,
            dropout=config.dropout,
        )
        sizes = {"num_classes": len(self.labels), "axes": 2}
        return build_detector(config, reader, **sizes, parts=self.parts())

    def describe(self) -> str:
        data = self.config.data
        return f"images of {data.width} x {data.height}, {len(self.labels)} kinds of boxes"

    @property
    def signature(self) -> str:
        limits = "at most 100 boxes of a class per image; precision, recall and F1 at IoU 0.5"
        return f"COCO AP, {limits}, input size {self.config.data.width} x {self.config.data.height}"

    def collate(self, rows: Sequence[Any]) -> Tensor:
        return stack_images([array for array, *_ in rows])

    def to_boxes(self, regions: Tensor, frames: Sequence[Frame]) -> NDArray[np.float64]:
        sides = np.array([self.config.data.width, self.config.data.height] * 2, np.float32)
        places = (regions.numpy() * sides).astype(np.float64)
        middles, halves = places[..., :2], places[..., 2:] / 2
        corners = np.concatenate((middles - halves, middles + halves), -1)
        boxes = []
        for row, frame in zip(corners, frames, strict=True):
            ends = (row / frame.scale).clip(0, [frame.width, frame.height] * 2)
            boxes.append(np.concatenate((ends[:, :2], ends[:, 2:] - ends[:, :2]), -1))
        return np.stack(boxes)

    def preprocess(self, given: Any, number: int) -> list[tuple[Any, Frame, Image.Image]]:
        """Return the pixels of an image at the size of the model's input, their scale, the image.

        Boxes refer to the image rotated according to its EXIF orientation; arrays have none.
        """
        image, data = to_image(given, f"input {number}").convert("RGB"), self.config.data
        return [(*resize_and_pad(image, data.width, data.height), image)]

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        array, frame, image = example.rows[i]
        sides = np.array([self.config.data.width, self.config.data.height] * 2)
        places = (example.outputs[i].boxes * frame.scale / sides).tolist()
        axis, original = patch_axis(inference.model.reader), np.asarray(image)
        return self.box_sample(example, i, axis, places, pixels=array, original=original)
