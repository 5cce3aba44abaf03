"""Copies of sequences, written by a decoder from the last state or with attention."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import accuracy, generator, pairs, share_weights, token_model, train
from regard.models.cores.recurrent import Recurrent


def draw(random: torch.Generator, length: int = 0, rows: int = 64, *, shift: int = 0) -> Batch:
    """Draw sources of a length, or one up to 10; targets are those of `shift` rows before."""
    length = length or int(torch.randint(1, 11, (), generator=random))
    source = torch.randint(1, 9, (rows, length), generator=random)
    return pairs(source, source.roll(shift, 0))


def run(trial: Trial) -> Numbers:
    """Train on lengths up to 10, and return the accuracy at each length."""
    sizes = {"width": 16, "hidden": 32, "directions": 1, "attention_hidden": 32}
    reference = token_model(Recurrent(**sizes, attention="none"), 8)
    model = token_model(Recurrent(**sizes, attention=trial.arm), 8)
    share_weights(model, reference)
    train(model, lambda random: draw(random, shift=int(trial.sabotage)), trial, steps=300)
    random = generator(trial.seed, 2)
    return {f"accuracy at {n}": accuracy(model, draw(random, n, 500)) for n in (2, 5, 10, 15, 20)}


CLAIM = Claim(
    key="B.10",
    quote="The last state cannot remember a long source",
    experiment="A GRU of 32 numbers copies 1 to 10 random symbols (of 8), after 300 steps of 64 "
    "sources, and is tested on up to 20: share of the symbols that are right, given those before.",
    sabotage="The arm with attention learns to write another source than its own.",
    sabotaged=("additive",),
    run=run,
    arms=("none", "additive"),
    rates=(0.01, 0.02),
    tuned_by="accuracy at 10",
    x_name="number of source symbols (trained: 1 to 10)",
    hypotheses=(
        Difference(measure="accuracy at 10", more="additive", less="none", margin=0.2),
        Bound(measure="accuracy at 10", arm="additive", at_least=0.9),
        Bound(measure="accuracy at 20", arm="additive", at_least=0.9),
    ),
    controls=[
        Bound(measure="accuracy at 2", arm=arm, at_least=0.9) for arm in ("none", "additive")
    ],
    remark="Up to the trained lengths it is so: attention keeps what the last state loses. Beyond "
    "them attention forgets, too: it must find positions that it never saw in training.",
)
