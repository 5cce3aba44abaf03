"""GRU encoder (one direction) and decoder of 32 units, with additive attention, sort 8 different
symbols of 20; untrained, or after 400 steps of 64 sources."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, is_right, mean, pairs, token_model, train
from regard.look.record import record
from regard.models.cores.recurrent import Recurrent


def draw(random: torch.Generator, rows: int = 64) -> Batch:
    """Draw sources of different symbols, whose targets are the same symbols sorted."""
    drawn = torch.rand(rows, 20, generator=random).argsort(-1)
    source = drawn[:, :8] + 1
    return pairs(source, source.sort(-1).values)


def run(trial: Trial) -> Numbers:
    """Return how often the largest weight of an output is on its symbol, and the weight there."""
    core = Recurrent(width=16, hidden=32, directions=1, attention_hidden=32)
    model = token_model(core, 20).eval()
    if trial.arm == "trained":
        train(model, draw, trial, steps=400)
    batch = draw(generator(trial.seed, 2), 200)
    with record(model) as capture:
        accuracy = mean(is_right(model, batch))
    calls = capture.recording["core.read"][1:]  # the first is before the first output
    weights = torch.cat([*calls], 1).roll(1 if trial.sabotage else 0, -1)  # (row, output, source)
    position = batch.source.items.argsort(-1)
    largest = mean(weights.argmax(-1) == position)
    weight = mean(weights.gather(-1, position.unsqueeze(-1)))
    return {"largest weight is right": largest, "right weight": weight, "accuracy": accuracy}


CLAIM = Claim(
    entry=("B.10", "knows where to focus"),
    sabotage={"trained": "has weights shifted by one position"},
    arms=("untrained", "trained"),
    rates=(0.01, 0.02),
    hypotheses=[
        Difference("largest weight is right", more="trained", less="untrained", margin=0.5)
    ],
    controls=(Bound("accuracy", "trained", at_least=0.9),),
    remark="No alignment was trained, only the outputs. Untrained weights are near 1/8.",
)
