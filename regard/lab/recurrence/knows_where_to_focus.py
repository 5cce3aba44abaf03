"""Weights of a decoder that sorts its source, so that the right position of each is known."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, token_model, train
from regard.look.record import record
from regard.models.cores.recurrent import Recurrent

LENGTH, SYMBOLS = 8, 20


def draw(random: torch.Generator, rows: int = 64) -> Batch:
    """Draw sources of different symbols, whose targets are the same symbols sorted."""
    drawn = torch.rand(rows, SYMBOLS, generator=random).argsort(-1)
    source = drawn[:, :LENGTH] + 1
    return pairs(source, source.sort(-1).values)


def run(trial: Trial) -> Numbers:
    """Return how often the largest weight of an output is at the position of its symbol."""
    core = Recurrent(width=16, hidden=32, directions=1, attention_hidden=32)
    model = token_model(core, SYMBOLS).eval()
    if trial.arm == "trained":
        train(model, draw, trial, steps=400)
    batch = draw(generator(trial.seed, 2), 200)
    with record(model) as capture:
        right = accuracy(model, batch)
    calls = capture.recording["core.read"][1:]  # the first is before the first output
    weights = torch.cat([*calls], 1).roll(1 if trial.sabotage else 0, -1)  # (row, output, source)
    position = batch.source.items.argsort(-1)
    largest = float((weights.argmax(-1) == position).double().mean())
    weight = float(weights.gather(-1, position.unsqueeze(-1)).double().mean())
    return {"largest weight is right": largest, "right weight": weight, "accuracy": right}


CLAIM = Claim(
    key="B.10",
    quote="knows where to focus",
    experiment="A GRU with additive attention sorts 8 different symbols of 20 (400 steps of 64 "
    "sources). Each output is at a known source position: how often has it the largest weight?",
    sabotage="The weights are shifted by one position.",
    sabotaged=("trained",),
    run=run,
    arms=("untrained", "trained"),
    rates=(0.01, 0.02),
    tuned_by="accuracy",
    hypotheses=(
        Difference(measure="largest weight is right", more="trained", less="untrained", margin=0.5),
    ),
    controls=(Bound(measure="accuracy", arm="trained", at_least=0.9),),
    remark="No alignment was trained, only the outputs. Untrained weights are near 1 of 8.",
)
