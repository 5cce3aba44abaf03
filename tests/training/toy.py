"""Small model of two layers with tied weights, and sequences, for tests of the training loop."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.choices import Soft
from regard.models.model import BatchLoss
from regard.training.config import TrainConfig
from regard.training.loop import Result, fit

NUM_ROWS = 23
_VOCAB, _WIDTH = 11, 5


@dataclass(frozen=True)
class ToyBatch:
    """Rows of ids, padded with 0."""

    tokens: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device) -> Self:
        return type(self)(self.tokens.to(device), self.indices)


class ToyBlock(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.tanh(super().forward(input))


class ToyModel(nn.Module):
    """Model that predicts each token from the previous one."""

    def __init__(self, *, dropout: float = 0.0, seed: int = 3):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(_VOCAB, _WIDTH)
        self.layers = nn.ModuleList(ToyBlock(_WIDTH, _WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.out = nn.Linear(_WIDTH, _VOCAB, bias=False)
        self.out.weight = self.embed.weight
        self.dropout = nn.Dropout(dropout)
        self.choice = Soft(1.5, learn=True)
        self.register_buffer("scale", torch.tensor(math.sqrt(_WIDTH)))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def loss(self, batch: ToyBatch) -> BatchLoss:
        inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
        hidden = self.embed(inputs) * self.scale
        for layer in self.layers:
            hidden = hidden + self.dropout(layer(hidden))
        logits = self.choice.scale_scores(self.out(self.norm(hidden)))
        total = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum"
        )
        return BatchLoss(total, total.detach(), self.count(batch))

    def count(self, batch: ToyBatch) -> int:
        return int((batch.tokens[:, 1:] != 0).sum())


class ToyBatches:
    """Rows of increasing ids, in one batch of a single row and batches of three."""

    def __init__(self, *, size: int = 3, before_batch: Callable[[int], None] = lambda number: None):
        self.size = size
        self.before_batch = before_batch
        self.number = 0

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        rows = list(range(NUM_ROWS))
        random.Random(epoch).shuffle(rows)
        first, rest = rows[:1], rows[1:]
        return [
            tuple(first),
            *(tuple(rest[at : at + self.size]) for at in range(0, len(rest), self.size)),
        ]

    def collate(self, epoch: int, indices: tuple[int, ...]) -> ToyBatch:
        self.number += 1
        self.before_batch(self.number)
        longest = max(3 + index % 5 for index in indices)
        tokens = torch.zeros(len(indices), longest, dtype=torch.int64)
        for row, index in enumerate(indices):
            length = 3 + index % 5
            tokens[row, :length] = 1 + (index + torch.arange(length)) % (_VOCAB - 1)
        return ToyBatch(tokens, indices)


def validate(model: nn.Module) -> dict[str, float]:
    """Return the negative log-likelihood per token of all rows, and exp of its negative."""
    assert isinstance(model, ToyModel)
    assert not model.training
    batch = ToyBatches().collate(0, tuple(range(NUM_ROWS)))
    nll = model.loss(batch).nll.item() / model.count(batch)
    return {"nll": nll, "share": math.exp(-nll)}


def settings(**changes: Any) -> TrainConfig:
    """Return the settings of a short run with changes."""
    plain: dict[str, Any] = {
        "steps": 10,
        "warmup": 3,
        "lr": 0.02,
        "validate_every": 4,
        "average": 0,
        "log_every": 2,
        "tensorboard": False,
        "checkpoint_minutes": 0.0,
        "device": "cpu",
    }
    return TrainConfig(**(plain | changes))


def train(folder: Path, config: TrainConfig, **changes: Any) -> Result:
    """Train a toy model with dropout, lowest nll is best; `changes` replace arguments of `fit`."""
    parts: dict[str, Any] = {
        "model": ToyModel(dropout=0.3),
        "batches": ToyBatches(),
        "seed": 5,
        "validate": validate,
        "metric": "nll",
        "maximize": False,
    }
    parts |= changes
    return fit(parts.pop("model"), parts.pop("batches"), config=config, folder=folder, **parts)
