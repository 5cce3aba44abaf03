"""A score of your own: minus the distance of query and key, scaled by a learned sharpness.

    score(q, k) = -softplus(s) sum_d |q_d - k_d|

A decoder-only Transformer with this score learns to repeat four letters.

    python own_score.py train FILE      trains, saves the parameters, prints the answer
    python own_score.py load FILE       loads them, prints the same answer
"""

import sys

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import (
    Batch,
    Model,
    Padded,
    Score,
    TokenReader,
    TokenWriter,
    Transformer,
    embedding_table,
)


class Manhattan(Score):
    """Score by distance: queries (..., query, dim) and keys (..., key, dim) give scores (...,
    query, key)."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.zeros(()))

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        distance = (query[..., :, None, :] - keys[..., None, :, :]).abs().sum(-1)
        return -nn.functional.softplus(self.sharpness) * distance


def build() -> Model:
    core = Transformer(layers=2, width=16, heads=2, feedforward=32, score=Manhattan, encodes=False)
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
