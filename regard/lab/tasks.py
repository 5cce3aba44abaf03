"""Training of the lab's models by the training loop, on examples drawn by a generator."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention.choices.hard import reinforce, sampling_choices
from regard.data.batches import Batch, pad
from regard.data.tokenizer import Ends
from regard.lab.protocol import Trial
from regard.models.cores.core import Core
from regard.models.cores.recurrent import Recurrent
from regard.models.model import BatchLoss, Model
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.writers.tokens import TokenWriter
from regard.training.config import TrainConfig
from regard.training.loop import fit
from regard.training.seeds import derive_seed

MakeBatch = Callable[[torch.Generator], Batch]


class DrawnBatches:
    """Training data without end: a batch is a function of the seed, the epoch and the step."""

    def __init__(self, make: MakeBatch, seed: int) -> None:
        self.make, self.seed = make, seed

    def plan(self, epoch: int) -> Sequence[tuple[int, ...]]:
        return [(step,) for step in range(1_000)]

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Batch:
        return self.make(generator(self.seed, epoch, *indices))


def generator(*numbers: int) -> torch.Generator:
    """Return a generator whose numbers are a function of these: equal for all arms of a seed."""
    return torch.Generator().manual_seed(derive_seed(*numbers))


def train(model: nn.Module, make: MakeBatch, trial: Trial, *, steps: int) -> None:
    """Train a model on drawn batches with the rate of a trial; it ends frozen, in eval mode."""
    number = max(steps // 10, 2) if trial.quick else steps
    counts: Any = {"steps": number, "warmup": number // 10, "validate_every": number}
    options: Any = {"schedule": "cosine", "tensorboard": False, "device": "cpu"}
    config = TrainConfig(**counts, **options, lr=trial.rate)
    with TemporaryDirectory(prefix="regard-lab-") as folder:
        fit(
            model,
            DrawnBatches(make, derive_seed(trial.seed, 1)),
            config=config,
            folder=Path(folder),
            seed=trial.seed,
            validate=lambda _: {"end": 0.0},
            metric="end",
            maximize=True,
        )
    model.requires_grad_(False)


class Learner(nn.Module):
    """Model predict(*parts, source), with the loss cost(output, target), default cross_entropy."""

    def __init__(self, *parts: nn.Module, predict: Callable[..., Tensor], cost: Any = None) -> None:
        super().__init__()
        self.parts, self.predict, self.cost = nn.ModuleList(parts), predict, cost or cross_entropy

    def forward(self, source: Tensor) -> Tensor:
        return self.predict(*self.parts, source)

    def count(self, batch: Batch) -> int:
        return len(batch.target)

    def loss(self, batch: Batch) -> BatchLoss:
        with reinforce(self) if sampling_choices(self) else nullcontext() as samples:
            costs = self.cost(self(batch.source), batch.target, reduction="none")
        extra = 0.0 if samples is None else samples.surrogate(costs, baseline=costs.mean())
        return BatchLoss((costs + extra).sum(), costs.detach().sum(), len(costs))


def share_weights(model: nn.Module, reference: nn.Module) -> None:
    """Copy the parameters of `reference` that the model has with the same name and shape."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in reference.named_parameters():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)


def largest(tensor: Tensor) -> float:
    """Return the largest magnitude of a tensor."""
    return float(tensor.abs().max())


def mean(tensor: Tensor) -> float:
    """Return the mean of a tensor in float64; of booleans, the share that is True."""
    return float(tensor.double().mean())


def token_model(core: Core, symbols: int) -> Model:
    """Return a model of symbols 1, 2, ... with one embedding for source and target; 0 is BOS."""
    reader = TokenReader(embedding_table(symbols + 1, core.width))
    return Model(reader=reader if core.encodes else None, core=core, writer=TokenWriter(reader))


def recurrent_model(symbols: int, *, attention: str, **sizes: Any) -> Model:
    """Return a `token_model` whose first weights are equal for each attention, but its own."""
    reference = token_model(Recurrent(**sizes, attention="none"), symbols)
    model = token_model(Recurrent(**sizes, attention=attention), symbols)
    share_weights(model, reference)
    return model


def pairs(source: Tensor | None, target: Tensor) -> Batch:
    """Return the batch of a source (rows, m), if any, and BOS and a target (rows, t)."""
    padded = None if source is None else pad(source.tolist())
    return Batch(padded, pad(target.tolist(), Ends((0,))), tuple(range(len(target))))


@torch.no_grad()
def is_right(model: Model, batch: Batch) -> Tensor:
    """Return which targets (row, t) are the likeliest symbol after the right ones before."""
    return model(batch.source, batch.target).argmax(-1) == batch.target.items[:, 1:]
