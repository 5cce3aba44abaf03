"""A norm of your own: vectors divided by their length, times one learned number.

    norm(x) = g x / |x|

An encoder-decoder Transformer with this norm learns to reverse four letters.

    python own_norm.py train FILE      trains, saves the parameters, prints the answer
    python own_norm.py load FILE       loads them, prints the same answer

Source: Nguyen and Salazar 2019, Transformers without Tears (ScaleNorm).
"""

import sys

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import Batch, Model, Padded, TokenReader, TokenWriter, Transformer, embedding_table


class ScaleNorm(nn.Module):
    """Norm of items (..., dim): each has length g, which is sqrt(dim) at first."""

    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(dim**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.normalize(x, dim=-1, eps=1e-5)


def build() -> Model:
    core = Transformer(layers=1, width=16, heads=2, feedforward=32, norm=ScaleNorm)
    source, target = embedding_table(8, 16), embedding_table(9, 16)  # 8 begins a target
    return Model(reader=TokenReader(source), core=core, writer=TokenWriter(TokenReader(target)))


def batch(rows: int = 16) -> Batch[Padded, Padded]:
    letters = torch.randint(8, (rows, 4))
    target = torch.cat((torch.full((rows, 1), 8), letters.flip(1)), 1)
    return Batch(Padded(letters, torch.full((rows,), 4)), Padded(target, torch.full((rows,), 5)))


def train(model: Model, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.loss(batch())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def answer(model: Model) -> Tensor:
    source = Padded(torch.tensor([[5, 2, 7, 1]]), torch.tensor([4]))
    return model.eval()(source, Padded(torch.tensor([[8, 1, 7]]), torch.tensor([3])))


if __name__ == "__main__":
    command, path = sys.argv[1:]
    model = build()
    if command == "train":
        train(model, steps=100)
        save_model(model, path)
    load_model(model, path)
    print(answer(model))
