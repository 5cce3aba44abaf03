"""Hard attention that learns which key to choose, with estimators of its gradient and without."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, pad

from regard.attention.attend import attend
from regard.attention.choices import Choice, Hard, Soft, reinforce
from regard.attention.choices.hard import sampling_choices
from regard.attention.scores import General
from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, train
from regard.models.model import BatchLoss


class Chooser(nn.Module):
    """The first item, as query, reads one of the others, whose class is the answer."""

    def __init__(self, choice: Choice):
        super().__init__()
        self.score, self.choice, self.answer = General(16, 16), choice, nn.Linear(16, 8)

    def forward(self, items: Tensor) -> Tensor:
        memory = items[:, 1:], items[:, 1:]
        return self.answer(attend(items[:, :1], memory, score=self.score, choice=self.choice))[:, 0]

    def count(self, batch: Batch) -> int:
        return len(batch.target)

    def loss(self, batch: Batch) -> BatchLoss:
        with reinforce(self) if sampling_choices(self) else nullcontext() as samples:
            costs = cross_entropy(self(batch.source), batch.target, reduction="none")
        extra = 0.0 if samples is None else samples.surrogate(costs, baseline=costs.mean())
        return BatchLoss((costs + extra).sum(), costs.sum(), len(costs))


def draw(random: torch.Generator, rows: int = 64) -> Batch:
    """Draw 8 items, of a random key and a class; the query is the key of the first."""
    keys = torch.randn(rows, 8, 8, generator=random)
    classes = torch.randint(8, (rows, 8), generator=random)
    items = torch.cat([keys, one_hot(classes, 8)], -1)
    return Batch(torch.cat([pad(keys[:, :1], (0, 8)), items], 1), classes[:, 0])


def run(trial: Trial) -> Numbers:
    """Train, and return the accuracy, and the first gradient of the map of the queries."""
    torch.manual_seed(trial.seed)
    choice = Soft() if trial.arm == "soft" else Hard("none" if trial.sabotage else trial.arm)
    model, test = Chooser(choice), draw(generator(trial.seed, 2), 2000)
    loss = model.loss(draw(generator(trial.seed, 3))).total / 64
    (gradient,) = torch.autograd.grad(loss, model.score.query_weight, materialize_grads=True)
    train(model, draw, trial, steps=300)
    right = model(test.source).argmax(-1) == test.target
    return {"accuracy": float(right.double().mean()), "gradient": float(gradient.norm())}


CLAIM = Claim(
    key="A.4",
    quote="The argmax passes no gradient to the scores, so hard attention is not differentiable",
    experiment="A query reads one of 8 items, and a linear layer names its class (8 classes). The "
    "maps of the scores must learn which item has the query's key, in 300 steps of 64 queries. "
    "Gradient of the query's map in the first step, and accuracy.",
    sabotage="The estimators are removed.",
    sabotaged=("straight-through", "gumbel", "reinforce"),
    run=run,
    arms=("none", "straight-through", "gumbel", "reinforce", "soft"),
    rates=(0.01, 0.03),
    tuned_by="accuracy",
    remark="Without an estimator only the linear layer learns; the choice stays as it began.",
    hypotheses=(
        Bound(measure="gradient", arm="none", at_most=0),
        Difference(measure="accuracy", more="straight-through", less="none", margin=0.2),
        Difference(measure="accuracy", more="gumbel", less="none", margin=0.2),
        Difference(measure="accuracy", more="reinforce", less="none", margin=0.2),
    ),
    controls=(Bound(measure="accuracy", arm="soft", at_least=0.5),),
)
