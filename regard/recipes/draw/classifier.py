"""Small convolutional image classifier without attention, used to score other models.

    3 x (3 x 3 convolution, 2 x 2 max pooling, batch norm, relu);  p(c | x) = softmax(W h + b)_c

Source: lecun1998, section II (convolutions and sub-sampling in turn); batch norm ioffe2015.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.models.model import BatchLoss, SourceTargetBatch
from regard.models.writers.classes import ClassWriter

_STAGES = 3


class ConvolutionalClassifier(nn.Module):
    """Classifier of images (batch, channels, height, width) with pixels in [0, 1]."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: int = 32,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        before, height, width = shape
        stages: list[nn.Module] = []
        for number in range(_STAGES):
            after = channels * 2**number
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

    def loss(self, batch: SourceTargetBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its rows."""
        assert isinstance(batch.source, Tensor)
        total, nll = self.writer.loss(self.stages(batch.source - 0.5), batch.target)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: SourceTargetBatch) -> int:
        """Return the number of rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return [self.stages]
