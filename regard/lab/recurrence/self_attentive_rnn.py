"""Language models of 32 units, with attention to their past states or not, read words of different
kinds, then names of up to 3 kinds, each with a blank, at which they predict its word."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, is_right, mean, pairs, share_weights, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive

PAIRS = [(cell, f"{cell} + attention") for cell in ("rnn", "gru", "lstm")]
ARMS = [arm for pair in PAIRS for arm in pair]
EASY, HARD = "accuracy at 1", "accuracy at 6"


def draw(random: torch.Generator, number: int = 0, rows: int = 128) -> Batch:
    """Draw words of different kinds, then for up to 3 kinds: its name, a blank, its word."""
    number = number or int(torch.randint(1, 7, (2,), generator=random).min())
    kinds = torch.rand(rows, 8, generator=random).argsort(-1)[:, :number]
    words = 1 + 3 * kinds + torch.randint(3, (rows, number), generator=random)
    again = torch.stack((25 + kinds, torch.full_like(kinds, 33), words), -1)  # 33: the blank
    asked = torch.rand(rows, number, 1, generator=random).argsort(1)[:, :3]
    return pairs(None, torch.cat((words, again.take_along_dim(asked, 1).flatten(1)), 1))


def run(trial: Trial) -> Numbers:
    """Return the accuracy of the last answer after 600 steps of 128 (of the kind alone: 1/3)."""
    cell, *attention = trial.arm.split(" + ")
    sizes = {"cell": cell, "width": 32, "hidden": 32, "encodes": False}
    model = reference = token_model(Recurrent(**sizes), 33)
    if attention and not trial.sabotage:
        model = token_model(SelfAttentive(self_attention_hidden=32, **sizes), 33)
        share_weights(model, reference)
    train(model, draw, trial, steps=600)
    random, numbers = generator(trial.seed, 2), {}
    for number in (1, 2, 4, 6, 8):
        numbers[f"accuracy at {number}"] = mean(is_right(model, draw(random, number, 500))[:, -1])
    return numbers


CLAIM = Claim(
    entry=("B.12", "It forgets less"),
    sabotage={"gru + attention": "has no attention"},
    arms=ARMS,
    rates=(0.006, 0.01),
    tuned_by=HARD,
    x_name="number of words (trained: 1 to 6)",
    hypotheses=[Difference(HARD, more=more, less=less, margin=0.1) for less, more in PAIRS],
    controls=[Bound(EASY, arm, at_least=0.6 if "rnn" in arm else 0.9) for arm in ARMS],
    remark="It holds for rnn and gru, which need the blank (what they read reaches only the next "
    "state); for the lstm, which forgets least, it is undecided. Other tasks may differ.",
)
