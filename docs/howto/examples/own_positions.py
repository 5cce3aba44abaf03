"""A positional encoding of your own: queries and keys are rotated by position, at learned rates.

    rotate(x)_i = R(i) x_i        R(i): the pair of numbers j and j + d/2 is rotated by the angle i
    r_j, r learned

It overrides `rotate`. An encoding that is added to the items overrides `add` instead, and a bias of
the scores `bias`. A decoder-only Transformer with this encoding learns to repeat four letters.

    python own_positions.py train FILE      trains, saves the parameters, prints the answer
    python own_positions.py load FILE       loads them, prints the same answer
"""

import sys

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import (
    Batch,
    Model,
    Padded,
    PositionalEncoding,
    TokenReader,
    TokenWriter,
    Transformer,
    embedding_table,
)


class LearnedRates(PositionalEncoding):
    """Rotary positional encoding with learned rates, for heads of size `dim`."""

    def __init__(self, dim: int):
        super().__init__()
        self.rates = nn.Parameter(10000 ** -torch.linspace(0, 1, dim // 2))

    def rotate(self, vectors: Tensor, start: int | Tensor = 0) -> Tensor:
        position = torch.arange(vectors.shape[-2], device=vectors.device) + start
        angle = position[:, None] * self.rates
        first, second = vectors.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def build() -> Model:
    core = Transformer(
        layers=2, width=16, heads=2, feedforward=32, positions=LearnedRates(8), encodes=False
    )
    return Model(reader=None, core=core, writer=TokenWriter(TokenReader(embedding_table(8, 16))))


def batch(rows: int = 16) -> Batch[None, Padded]:
    tokens = torch.randint(8, (rows, 4)).repeat(1, 3)  # the last eight can be predicted
    return Batch(None, Padded(tokens, torch.full((rows,), 12)))


def train(model: Model, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.loss(batch())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def answer(model: Model) -> Tensor:
    return model.eval()(target=Padded(torch.tensor([[5, 2, 7, 1, 5, 2]]), torch.tensor([6])))


if __name__ == "__main__":
    command, path = sys.argv[1:]
    model = build()
    if command == "train":
        train(model, steps=100)
        save_model(model, path)
    load_model(model, path)
    print(answer(model))
