"""GRU encoder (one direction) and decoder of 32 units copy 1 to 10 random symbols of 8, after 300
steps of 64 sources. Without attention, the decoder only starts from the last state."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, is_right, mean, pairs, recurrent_model, train


def draw(random: torch.Generator, length: int = 0, rows: int = 64, *, shift: int = 0) -> Batch:
    """Draw sources of a length, or one up to 10; targets are those of `shift` rows before."""
    length = length or int(torch.randint(1, 11, (), generator=random))
    source = torch.randint(1, 9, (rows, length), generator=random)
    return pairs(source, source.roll(shift, 0))


def run(trial: Trial) -> Numbers:
    """Return the share of the symbols of 500 new sources that are right, at each length."""
    sizes = {"width": 16, "hidden": 32, "directions": 1, "attention_hidden": 32}
    model = recurrent_model(8, attention=trial.arm, **sizes)
    train(model, lambda random: draw(random, shift=int(trial.sabotage)), trial, steps=300)
    random, numbers = generator(trial.seed, 2), {}
    for n in (2, 5, 10, 15, 20):
        numbers[f"accuracy at {n}"] = mean(is_right(model, draw(random, n, 500)))
    return numbers


CLAIM = Claim(
    entry=("B.10", "The last state cannot remember a long source"),
    sabotage={"additive": "learns to write another source than its own"},
    arms=("none", "additive"),
    rates=(0.01, 0.02),
    tuned_by="accuracy at 10",
    x_name="number of source symbols (trained: 1 to 10)",
    hypotheses=(
        Difference("accuracy at 10", more="additive", less="none", margin=0.2),
        Bound("accuracy at 10", "additive", at_least=0.9),
        Bound("accuracy at 20", "additive", at_least=0.9),
    ),
    controls=[Bound("accuracy at 2", arm, at_least=0.9) for arm in ("none", "additive")],
    remark="It holds up to the trained lengths. Beyond them, attention fails, too; this test "
    "cannot tell whether it forgets, or was never trained to find the 11th symbol.",
)
