"""A reader of your own: sets of points in the plane.

    item = W [sin(2^k pi x), cos(2^k pi x), sin(2^k pi y), cos(2^k pi y)] + b        k = 0, 1, 2

A Transformer encoder without positions learns in which quarter of the square most points are.

    python own_reader.py train FILE      trains, saves the parameters, prints the answer
    python own_reader.py load FILE       loads them, prints the same answer
"""

import sys
from math import pi

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import Batch, ClassWriter, Model, NoPositions, Padded, Reader, Transformer


class PointReader(Reader):
    """Reader of points (batch, point, 2) and their number in each row; gives items (batch, point,
    dim)."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim  # a model checks it: the width of its core
        self.map = nn.Linear(12, dim)

    def forward(self, source: Padded) -> Padded:
        angles = torch.cat([2**k * pi * source.items for k in range(3)], -1)
        return Padded(self.map(torch.cat((angles.sin(), angles.cos()), -1)), source.lengths)


def build() -> Model:
    core = Transformer(
        layers=1, width=16, heads=2, feedforward=32, positions=NoPositions(), decodes=False
    )
    return Model(
        reader=PointReader(16), core=core, writer=ClassWriter(core.memory_dim, num_classes=4)
    )


def batch(rows: int = 32) -> Batch[Padded, Tensor]:
    lengths, quarter = torch.randint(1, 6, (rows,)), torch.randint(4, (rows,))
    corner = torch.stack((quarter % 2, quarter // 2), -1) / 2
    points = corner[:, None] + 0.6 * torch.rand(rows, 5, 2) - 0.05
    return Batch(Padded(points, lengths), quarter)


def train(model: Model, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.loss(batch())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def answer(model: Model) -> Tensor:
    return model.eval()(Padded(torch.tensor([[[0.9, 0.2], [0.7, 0.3]]]), torch.tensor([2])))


if __name__ == "__main__":
    command, path = sys.argv[1:]
    model = build()
    if command == "train":
        train(model, steps=100)
        save_model(model, path)
    load_model(model, path)
    print(answer(model))
