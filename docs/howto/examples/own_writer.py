"""A writer of your own: a count, with the loss of a Poisson distribution.

    rate = exp(w . h + b)        loss = rate - count log rate + log count!        h: a weighted sum
    of the items

A recurrent encoder with attention pooling learns to count the ones of a sequence.

    python own_writer.py train FILE      trains, saves the parameters, prints the answer
    python own_writer.py load FILE       loads them, prints the same answer
"""

import sys
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import (
    AttentionPooling,
    Batch,
    Core,
    Model,
    Padded,
    Recurrent,
    TokenReader,
    Writer,
    embedding_table,
)


class CountWriter(Writer):
    """Writer of one count per row; reads the encoded items of the core, of size `dim`."""

    part = "encoder"

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim  # a model checks it: the size of the core's items
        self.pool = AttentionPooling(dim, num_heads=1)
        self.output = nn.Linear(dim, 1)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> Tensor:
        return self.output(self.pool(encoded)).squeeze(-1)

    def loss(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        total = (hidden.exp() - target * hidden + torch.lgamma(target + 1)).sum()
        return total, total.detach()

    def answer(self, hidden: Tensor) -> Tensor:
        return hidden.exp()


def build() -> Model:
    core = Recurrent(width=16, hidden=16, decodes=False)
    return Model(
        reader=TokenReader(embedding_table(3, 16)), core=core, writer=CountWriter(core.memory_dim)
    )


def batch(rows: int = 32) -> Batch[Padded, Tensor]:
    tokens = torch.randint(3, (rows, 9))
    return Batch(Padded(tokens, torch.full((rows,), 9)), (tokens == 1).sum(-1).float())


def train(model: Model, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.loss(batch())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def answer(model: Model) -> Tensor:
    return model.eval()(Padded(torch.tensor([[1, 0, 1, 2, 1, 1, 0, 1, 1]]), torch.tensor([9])))


if __name__ == "__main__":
    command, path = sys.argv[1:]
    model = build()
    if command == "train":
        train(model, steps=100)
        save_model(model, path)
    load_model(model, path)
    print(answer(model))
