"""The first of many symbols in the last state of recurrent cells, with and without attention."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive

LENGTHS, TRAINED, SYMBOLS = (1, 5, 10, 20), 10, 8
CELLS = ("rnn", "gru", "lstm")


def draw(random: torch.Generator, length: int, rows: int, *, hide: bool = False) -> Batch:
    """Draw sources, whose first symbol is the target; hide: the target is of no source."""
    source = torch.randint(1, SYMBOLS + 1, (rows, length), generator=random)
    return pairs(source, source[:, :1].roll(1 if hide else 0, 0))


def run(trial: Trial) -> Numbers:
    """Train on lengths up to 10, and return the accuracy at each length."""
    cell, *attention = trial.arm.split(" + ")
    sizes = {"width": 16, "hidden": 16, "directions": 1, "attention": "none"}
    core = Recurrent(cell=cell, **sizes)
    if attention:
        core = SelfAttentive(cell=cell, self_attention_hidden=16, **sizes)
    model = token_model(core, SYMBOLS)

    def make(random: torch.Generator) -> Batch:
        length = int(torch.randint(1, TRAINED + 1, (), generator=random))
        return draw(random, length, 32, hide=trial.sabotage)

    train(model, make, trial, steps=500)
    random = generator(trial.seed, 2)
    return {f"accuracy at {n}": accuracy(model, draw(random, n, 500)) for n in LENGTHS}


CLAIM = Claim(
    key="B.12",
    quote="It forgets less",
    experiment="A decoder starts from the last state of an encoder of 16 numbers and writes the "
    "first of 1 to 10 random symbols (of 8; 500 steps of 32 sources). Each cell has a twin that "
    "also reads all its past states; between the encoder and the decoder there is no attention.",
    sabotage="The gru learns the first symbol of another source.",
    sabotaged=("gru",),
    run=run,
    arms=[name for cell in CELLS for name in (cell, f"{cell} + attention")],
    rates=(0.003, 0.01),
    tuned_by="accuracy at 10",
    x_name="number of source symbols (trained: 1 to 10)",
    hypotheses=[
        Difference(measure="accuracy at 10", more=f"{cell} + attention", less=cell, margin=0.1)
        for cell in CELLS
    ],
    controls=[Bound(measure="accuracy at 1", arm=cell, at_least=0.9) for cell in CELLS],
)
