"""Gradient of an output for an item far before it, through the states of an RNN or attention."""

import math

import torch

from regard.attention.masks import Padded
from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.model import Model


def draw(random: torch.Generator, length: int = 0) -> Batch:
    """Draw 50 sources of 8 symbols, of this length or one up to 20, whose first is the target."""
    length = length or int(torch.randint(2, 21, (), generator=random))
    source = torch.randint(1, 9, (50, length), generator=random)
    return pairs(source, source[:, :1])


def measure(model: Model, seed: int, name: str) -> Numbers:
    """Return log10 of the norm of the gradient of the output for the first item; -300 for 0."""
    numbers = {}
    for length in (5, 10, 20, 50, 100, 200):
        batch = draw(generator(seed, 2), length)
        items = model.writer.embed(batch.source.items).detach().requires_grad_()
        state = model.core.start(Padded(items, batch.source.lengths))
        hidden = model.core(model.writer.embed_target(batch.target), state)
        (gradient,) = torch.autograd.grad(hidden.sum(), items)
        norm = float(gradient[:, 0].norm(dim=-1).mean())
        numbers[f"{name} at {length}"] = math.log10(max(norm, 1e-300))
    return numbers


def run(trial: Trial) -> Numbers:
    """Return the gradients, before and after training, and the accuracy after it."""
    cell, attention = ("gru", "dot") if trial.arm == "attention" else (trial.arm, "none")
    core = Recurrent(cell=cell, width=16, hidden=32, directions=1, attention=attention)
    torch.manual_seed(trial.seed)
    model = token_model(core, 8).double()
    numbers = measure(model, trial.seed, "log10 g, untrained")
    if not trial.sabotage:
        train(model, draw, trial, steps=250)
    numbers |= measure(model, trial.seed, "log10 g, trained")
    return numbers | {"accuracy": accuracy(model, draw(generator(trial.seed, 3), 20))}


CLAIM = Claim(
    key="B.13",
    quote="The path between two positions grows with their distance, so that even GRU and LSTM "
    "still need attention.",
    experiment="A decoder writes the first of m symbols (8 symbols, 32 numbers, 250 steps of 50 "
    "sources with m up to 20), from the last state or by attention to the states of a GRU. Norm g "
    "of the gradient of its output for the first symbol, before and after training.",
    sabotage="GRU and LSTM are not trained.",
    sabotaged=("gru", "lstm"),
    run=run,
    arms=("rnn", "gru", "lstm", "attention"),
    rates=(0.01, 0.03),
    tuned_by="accuracy",
    x_name="number of source symbols m",
    remark="Untrained, the gradient of an RNN fades exponentially, that of attention as 1 / m. But "
    "gates learn to pass it on: here to keep one symbol, over ten times the trained length.",
    hypotheses=(
        Difference(measure="log10 g, untrained at 200", more="attention", less="gru", margin=1),
        Difference(measure="log10 g, untrained at 200", more="attention", less="lstm", margin=1),
        Difference(measure="log10 g, trained at 200", more="attention", less="gru", margin=1),
        Difference(measure="log10 g, trained at 200", more="attention", less="lstm", margin=1),
    ),
    controls=(
        Bound(measure="accuracy", arm="gru", at_least=0.8),
        Bound(measure="accuracy", arm="lstm", at_least=0.8),
    ),
)
