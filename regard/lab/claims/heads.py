"""Several items read at once by a layer of one head, or of several heads of a part of its width."""

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, train
from regard.layers.multihead import MultiHead
from regard.models.model import BatchLoss

KEYS, SIZE = 6, 4


class Layer(nn.Module):
    """Multi-head attention that returns the values of items [key; value] by their keys."""

    def __init__(self, count: int, heads: int):
        super().__init__()
        sizes = {"source_dim": KEYS + SIZE, "head_dim": 32 // heads, "output_dim": count * SIZE}
        self.attention = MultiHead(count * KEYS, heads, **sizes)

    def errors(self, batch: Batch) -> Tensor:
        rows = torch.arange(len(batch.source)).unsqueeze(1)
        values = batch.source[rows, batch.target, KEYS:].flatten(1)
        queries = nn.functional.one_hot(batch.target, KEYS).flatten(1).float()
        return (self.attention(queries.unsqueeze(1), batch.source).squeeze(1) - values).square()

    def loss(self, batch: Batch) -> BatchLoss:
        total = self.errors(batch).sum()
        return BatchLoss(total, total.detach(), len(batch.source))

    def count(self, batch: Batch) -> int:
        return len(batch.source)


def draw(random: torch.Generator, count: int, rows: int) -> Batch:
    """Draw 6 items [one-hot key; value] in each row, and `count` keys to read."""
    values = torch.randn(rows, KEYS, SIZE, generator=random)
    items = torch.cat([torch.eye(KEYS).expand(rows, -1, -1), values], -1)
    keys = torch.rand(rows, KEYS, generator=random).argsort(1)[:, :count]
    return Batch(items, keys, tuple(range(rows)))


def run(trial: Trial) -> Numbers:
    """Return the share of the values' variance that a layer explains, by the number of keys."""
    heads, numbers = 1 if trial.sabotage else int(trial.arm.split()[0]), {}
    for count in (1, 2, 4):
        torch.manual_seed(trial.seed)
        layer = Layer(count, heads)
        train(layer, lambda random, count=count: draw(random, count, 64), trial, steps=300)
        with torch.no_grad():
            errors = layer.errors(draw(generator(trial.seed, 2), count, 1000))
        numbers[f"explained at {count}"] = float(1 - errors.mean())
    return numbers


CLAIM = Claim(
    key="C.6",
    quote="read in parallel",
    experiment="A layer of 1, 2 or 4 heads, of equally many parameters (32 numbers in all heads), "
    "reads the values of 1, 2 or 4 of 6 items at once by their keys. A value is 4 normal numbers. "
    "Share of the variance of the values that the layer explains after 300 steps.",
    sabotage="The layer of 2 heads has one.",
    sabotaged=("2 heads",),
    run=run,
    arms=("1 head", "2 heads", "4 heads"),
    rates=(0.01, 0.03),
    tuned_by="explained at 4",
    x_name="number of items to read at once",
    hypotheses=(
        Difference(measure="explained at 2", more="2 heads", less="1 head", margin=0.2),
        Difference(measure="explained at 4", more="4 heads", less="2 heads", margin=0.2),
    ),
    controls=(Bound(measure="explained at 1", arm="1 head", at_least=0.9),),
    remark="A head returns one weighted mean of the values, so h heads explain about h / n of n "
    "items. This is of the layer alone: with a feed-forward network behind it, in a trial, one "
    "head told 16 pairs of symbols apart as well as four.",
)
