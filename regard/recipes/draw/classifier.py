"""Small convolutional image classifier without attention, used to score other models.

    3 x (3 x 3 convolution, 2 x 2 max pooling, batch norm, relu);  p(c | x) = softmax(W h + b)_c

The last class is that of an empty cell.

Source: lecun1998, section II (convolutions and sub-sampling in turn); batch norm ioffe2015.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.embedded.scenes import NOTHING, SceneDataset, split_cells
from regard.models.model import BatchLoss
from regard.models.writers.classes import ClassWriter
from regard.recipes.base.scoring import device_of

ROWS = 256
"""Images, canvases or texts in a batch of evaluation and prediction."""


class ConvolutionalClassifier(nn.Module):
    """Classifier of images (batch, channels, height, width) with pixels in [0, 1]."""

    def __init__(
        self, shape: tuple[int, int, int], num_classes: int, *, label_smoothing: float = 0.0
    ):
        super().__init__()
        before, height, width = shape
        stages: list[nn.Module] = []
        for number in range(3):
            after = 32 * 2**number
            stages += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            before, height, width = after, -(-height // 2), -(-width // 2)
        self.stages = nn.Sequential(*stages, nn.Flatten())
        settings = {"pool": nn.Identity(), "dropout": 0.3, "label_smoothing": label_smoothing}
        self.writer = ClassWriter(before * height * width, num_classes, **settings)

    def forward(
        self, source: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Return the probabilities of the classes."""
        return self.writer.answer(self.stages(source - 0.5))

    def loss(self, batch: Any) -> BatchLoss:
        total, nll = self.writer.loss(self.stages(batch.source - 0.5), batch.target)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: Any) -> int:
        return len(batch.target)

    @torch.no_grad()
    def classify(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the most likely class of each image, or NOTHING."""
        parts = []
        for part in torch.from_numpy(images).split(ROWS):
            parts.append(self((part.float() / 255).to(device_of(self))))
        classes = torch.cat(parts).argmax(-1).cpu().numpy()
        return np.where(classes == self.writer.output.out_features - 1, NOTHING, classes)

    @torch.no_grad()
    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the features of each image (images, 128): the last stage, mean over positions."""
        parts = []
        for part in torch.from_numpy(images).split(ROWS):
            pixels = (part.float() / 255).to(device_of(self)) - 0.5
            parts.append(self.stages[:-1](pixels).mean((2, 3)))  # without the last, Flatten
        return torch.cat(parts).double().cpu().numpy()

    def classify_cells(self, canvases: NDArray[np.uint8], scenes: SceneDataset) -> list[list[int]]:
        """Return the classes of the cells of each canvas, row by row."""
        classes = self.classify(split_cells(canvases, scenes.config.rows, scenes.config.columns))
        return classes.reshape(len(canvases), -1).tolist()

    def accuracy(self, scenes: SceneDataset) -> float:
        """Return the accuracy on the original images, in percent."""
        classes = self.classify(scenes.images.pixels)
        return 100 * float((classes == np.asarray(scenes.numbers)).mean())
