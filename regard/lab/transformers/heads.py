"""A layer of 1, 2 or 4 heads (32 numbers in all) reads n of 6 items [one-hot key; 4 normal numbers]
at once: its query is the n keys, its target their numbers. For each n, a layer is trained."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import Learner, generator, train
from regard.layers.multihead import MultiHead


def draw(random: torch.Generator, n: int, rows: int = 64) -> Batch:
    """Draw 6 items [one-hot key; 4 numbers] behind n of them to read, whose numbers are targets."""
    values = torch.randn(rows, 6, 4, generator=random)
    items = torch.cat([torch.eye(6).expand(rows, -1, -1), values], -1)
    asked = items.take_along_dim(torch.rand(rows, 6, 1, generator=random).argsort(1)[:, :n], 1)
    return Batch(torch.cat([asked, items], 1), asked[..., 6:].flatten(1))


def read(layer: MultiHead, items: torch.Tensor) -> torch.Tensor:
    """Return the output for a query of all keys of the items that are asked for."""
    return layer(items[:, :-6, :6].flatten(1).unsqueeze(1), items[:, -6:]).squeeze(1)


def run(trial: Trial) -> Numbers:
    """Return the share of the variance of the targets that is explained after 300 steps of 64."""
    heads, numbers = 1 if trial.sabotage else int(trial.arm.split()[0]), {}
    for n in (1, 2, 4):
        torch.manual_seed(trial.seed)
        layer = MultiHead(6 * n, heads, source_dim=10, head_dim=32 // heads, output_dim=4 * n)
        model = Learner(layer, predict=read, cost=torch.nn.functional.mse_loss)
        train(model, lambda random, n=n: draw(random, n), trial, steps=300)
        test = draw(generator(trial.seed, 2), n, 1000)
        numbers[f"explained at {n}"] = float(1 - model.cost(model(test.source), test.target))
    return numbers


CLAIM = Claim(
    entry=("C.6", "read in parallel"),
    sabotage={"2 heads": "has one head"},
    arms=("1 head", "2 heads", "4 heads"),
    rates=(0.01, 0.03),
    tuned_by="explained at 4",
    x_name="number of items to read at once",
    hypotheses=(
        Difference("explained at 2", more="2 heads", less="1 head", margin=0.2),
        Difference("explained at 4", more="4 heads", less="2 heads", margin=0.2),
    ),
    controls=(Bound("explained at 1", "1 head", at_least=0.9),),
    remark="h heads return h means: without a feed-forward network, these explain at most h / n.",
)
