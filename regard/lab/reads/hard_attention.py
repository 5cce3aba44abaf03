"""A query with the key of one of 8 items [8 normal numbers; one-hot class] reads them (general
score), and a linear layer names the class: soft, or hard with an estimator of the gradient."""

import torch

from regard.attention.choices.hard import GRADIENTS, Hard
from regard.attention.memory import Memory
from regard.attention.scores import General
from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import Learner, generator, mean, train
from regard.layers.read import Read


def draw(random: torch.Generator, rows: int = 64) -> Batch:
    """Draw 8 items, each a random key and a class; the target is the class of the first."""
    keys = torch.randn(rows, 8, 8, generator=random)
    classes = torch.randint(8, (rows, 8), generator=random)
    return Batch(torch.cat([keys, torch.eye(8)[classes]], -1), classes[:, 0])


def predict(read: Read, answer: torch.nn.Linear, items: torch.Tensor) -> torch.Tensor:
    """Return the answer to what is read of the items by a query, the key of the first."""
    return answer(read(items[:, :1] * (torch.arange(16) < 8), Memory(items, items))).squeeze(1)


def run(trial: Trial) -> Numbers:
    """Return the accuracy after 300 steps of 64, and the norm of the query map's first gradient."""
    choice = None if trial.arm == "soft" else Hard("none" if trial.sabotage else trial.arm)
    score, answer = General(16, 16), torch.nn.Linear(16, 8)
    model = Learner(Read(score, choice=choice), answer, predict=predict)
    loss = model.loss(draw(generator(trial.seed, 3))).total / 64
    (gradient,) = torch.autograd.grad(loss, score.query_weight, materialize_grads=True)
    train(model, draw, trial, steps=300)
    test = draw(generator(trial.seed, 2), 2000)
    accuracy = mean(model(test.source).argmax(-1) == test.target)
    return {"accuracy": accuracy, "gradient": float(gradient.norm())}


CLAIM = Claim(
    entry=("A.4", "The argmax passes no gradient to the scores"),
    sabotage={"all": "have no estimator of the gradient"},
    arms=(*GRADIENTS, "soft"),
    rates=(0.01, 0.03),
    remark="Without an estimator the gradient is 0 by construction: only the linear layer learns.",
    hypotheses=(
        Bound("gradient", "none", at_most=0),
        *(Difference("accuracy", more=g, less="none", margin=0.2) for g in GRADIENTS[1:]),
    ),
    controls=(Bound("accuracy", "soft", at_least=0.5),),
)
