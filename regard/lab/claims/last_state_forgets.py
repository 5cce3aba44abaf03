"""The first of many symbols, written by a decoder from the last state or with attention."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, share_weights, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.model import Model

LENGTHS = (5, 20, 50, 100, 200)
TRAINED, SYMBOLS = 50, 8


def make_model(attention: str) -> Model:
    """Return a GRU with this attention."""
    core = Recurrent(
        cell="gru", width=16, hidden=32, directions=1, attention=attention, attention_hidden=32
    )
    return token_model(core, SYMBOLS)


def draw(random: torch.Generator, length: int, rows: int) -> Batch:
    """Draw sources, whose first symbol is the target."""
    source = torch.randint(1, SYMBOLS + 1, (rows, length), generator=random)
    return pairs(source, source[:, :1])


def run(trial: Trial) -> Numbers:
    """Train on lengths up to 50, and return the accuracy at each length."""
    torch.manual_seed(trial.seed)
    reference = make_model("none")
    model = make_model("none" if trial.sabotage else trial.arm)
    share_weights(model, reference)

    def make(random: torch.Generator) -> Batch:
        length = int(torch.randint(2, TRAINED + 1, (), generator=random))
        return draw(random, length, 32)

    train(model, make, trial, steps=500)
    random = generator(trial.seed, 2)
    return {f"accuracy at {n}": accuracy(model, draw(random, n, 500)) for n in LENGTHS}


CLAIM = Claim(
    key="B.10",
    quote="The last state cannot remember a long source",
    experiment="A decoder writes the first of up to 50 random symbols (8 symbols, GRU of 32 "
    "numbers, 500 steps of 32 sources), and is tested on lengths up to 200.",
    sabotage="The arm with attention has none.",
    sabotaged=("additive",),
    run=run,
    arms=("none", "additive"),
    rates=(0.003, 0.01),
    tuned_by="accuracy at 50",
    x_name="number of source symbols",
    hypotheses=(
        Difference(measure="accuracy at 50", more="additive", less="none", margin=0.2),
        Difference(measure="accuracy at 200", more="additive", less="none", margin=0.2),
    ),
    controls=(Bound(measure="accuracy at 5", arm="none", at_least=0.5),),
)
