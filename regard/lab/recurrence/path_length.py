"""Encoders of 32 units (gru, lstm; attention: gru with dot-product attention) read m symbols of 8,
and a decoder writes the first: untrained, or after 250 steps of 50 sources of 2 to 20."""

import math

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, is_right, mean, pairs, recurrent_model, train


def draw(random: torch.Generator, length: int = 0) -> Batch:
    """Draw 50 sources of 8 symbols, of this length or one up to 20, whose first is the target."""
    length = length or int(torch.randint(2, 21, (), generator=random))
    source = torch.randint(1, 9, (50, length), generator=random)
    return pairs(source, source[:, :1])


def run(trial: Trial) -> Numbers:
    """Return log10 of the norm g of its gradient for that symbol (-300: 0); accuracy of 50 rows."""
    cell, attention = ("gru", "dot") if trial.arm == "attention" else (trial.arm, "none")
    sizes, numbers = {"width": 16, "hidden": 32, "directions": 1}, {}
    model = recurrent_model(8, cell=cell, attention=attention, **sizes).double()
    for state in ("untrained", "trained"):
        if state == "trained" and not trial.sabotage:
            train(model, draw, trial, steps=250)
        for length in (5, 10, 20, 50, 100, 200):
            batch = draw(generator(trial.seed, 2), length)
            x = model.writer.embed(batch.source.items).detach().requires_grad_()
            out = model.predictor(batch.target, model.core.encode(batch.source._replace(items=x)))
            norm = float(torch.autograd.grad(out.sum(), x)[0][:, 0].norm(dim=-1).mean())
            numbers[f"log10 g, {state} at {length}"] = math.log10(max(norm, 1e-300))
    for length in (20, 200):
        right = is_right(model, draw(generator(trial.seed, 3), length))
        numbers[f"accuracy at {length}"] = mean(right)
    return numbers


CLAIM = Claim(
    entry=("B.13", "even GRU and LSTM still need attention."),
    sabotage={"gru": "is not trained", "lstm": "is not trained"},
    arms=("gru", "lstm", "attention"),
    rates=(0.01, 0.03),
    tuned_by="accuracy at 20",
    x_name="number of source symbols m",
    remark="Untrained, the gradient of both fades exponentially. But gates learn to keep a symbol "
    "over ten times the trained lengths, without attention. Seeds 5 to 9 leave it undecided.",
    hypotheses=[
        Difference(f"{measure} at 200", more="attention", less=cell, margin=margin)
        for measure, margin in (("log10 g, untrained", 1), ("accuracy", 0.1))
        for cell in ("gru", "lstm")
    ],
    controls=[Bound("accuracy at 20", cell, at_least=0.8) for cell in ("gru", "lstm")],
)
