"""Copies of sequences, written by a decoder from the last state or with attention."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, share_weights, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.model import Model

TRAINED, SYMBOLS = 10, 8


def make_model(attention: str) -> Model:
    """Return a GRU with this attention."""
    core = Recurrent(width=16, hidden=32, directions=1, attention=attention, attention_hidden=32)
    return token_model(core, SYMBOLS)


def draw(random: torch.Generator, length: int, rows: int) -> Batch:
    """Draw sources, which are their own targets."""
    source = torch.randint(1, SYMBOLS + 1, (rows, length), generator=random)
    return pairs(source, source)


def run(trial: Trial) -> Numbers:
    """Train on lengths up to 10, and return the accuracy at each length."""
    reference = make_model("none")
    model = make_model("none" if trial.sabotage else trial.arm)
    share_weights(model, reference)

    def make(random: torch.Generator) -> Batch:
        length = int(torch.randint(1, TRAINED + 1, (), generator=random))
        return draw(random, length, 64)

    train(model, make, trial, steps=300)
    random = generator(trial.seed, 2)
    return {f"accuracy at {n}": accuracy(model, draw(random, n, 500)) for n in (2, 5, 10, 15, 20)}


CLAIM = Claim(
    key="B.10",
    quote="The last state cannot remember a long source",
    experiment="A GRU of 32 numbers copies 1 to 10 random symbols (of 8), after 300 steps of 64 "
    "sources, and is tested on up to 20: share of the symbols that are right, given those before.",
    sabotage="The arm with attention has none.",
    sabotaged=("additive",),
    run=run,
    arms=("none", "additive"),
    rates=(0.01, 0.02),
    tuned_by="accuracy at 10",
    x_name="number of source symbols (trained: 1 to 10)",
    hypotheses=(
        Difference(measure="accuracy at 10", more="additive", less="none", margin=0.2),
        Difference(measure="accuracy at 20", more="additive", less="none", margin=0.1),
    ),
    controls=(
        Bound(measure="accuracy at 2", arm="none", at_least=0.9),
        Bound(measure="accuracy at 2", arm="additive", at_least=0.9),
    ),
    remark="Up to the trained lengths attention keeps what the last state loses. Beyond them it "
    "loses too: it must find positions that it never saw in training.",
)
