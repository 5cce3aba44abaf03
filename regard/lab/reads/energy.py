"""Energies that autoencoders give to points, by their distance from the curve of the data."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, share_weights, train
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig


def draw(random: torch.Generator, rows: int, distance: float = 0.0) -> Batch:
    """Draw points of the ellipse (2 cos z, 1.5 sin z), moved inwards or outwards by a distance."""
    z = 2 * torch.pi * torch.rand(rows, generator=random)
    normals = torch.nn.functional.normalize(torch.stack([1.5 * z.cos(), 2 * z.sin()], 1), dim=1)
    sides = 2 * torch.randint(2, (rows, 1), generator=random) - 1
    points = torch.stack([2 * z.cos(), 1.5 * z.sin()], 1) + distance * sides * normals
    return Batch(points, None)


def make_model(arm: str) -> Autoencoder:
    """Return an autoencoder with a code of 1 or 2 numbers, by linear maps or three layers."""
    size = 1 if arm in ("untrained", "1 number") else 2
    layers, hidden = (1, None) if arm == "2, linear" else (3, 64)
    return Autoencoder(AutoencoderConfig(code_dim=size, layers=layers, hidden=hidden), (2,))


def run(trial: Trial) -> Numbers:
    """Train, and return the mean energy at each distance, and how often it is lower on the data."""
    reference = make_model("1 number")
    model = make_model("2, linear" if trial.sabotage else trial.arm)
    share_weights(model, reference)
    if trial.arm != "untrained":
        train(model, lambda random: draw(random, 64), trial, steps=500)
    random, numbers = generator(trial.seed, 2), {}
    data = model.energy(draw(random, 1000).source).detach()
    for distance in (0.0, 0.1, 0.2, 0.3, 0.5):
        energies = model.energy(draw(random, 1000, distance).source).detach()
        numbers[f"log10 energy at {distance:g}"] = float(energies.mean().log10())
        numbers[f"lower on data at {distance:g}"] = float((data < energies).double().mean())
    return numbers | {"fit": -numbers["log10 energy at 0"]}


CLAIM = Claim(
    key="E.9",
    quote="Training makes it low on the data",
    experiment="Autoencoders of points on an ellipse (500 steps), codes of 1 or 2 numbers, or of 2 "
    "by linear maps: energy at distances from it, and how often one of a point on it is lower.",
    sabotage="The code of 1 number is one of 2 by linear maps, which can copy every point.",
    sabotaged=("1 number",),
    run=run,
    arms=("untrained", "1 number", "2 numbers", "2, linear"),
    rates=(0.003, 0.01),
    tuned_by="fit",
    x_name="distance from the data",
    hypotheses=[
        Difference(measure="lower on data at 0.5", more=more, less=less, margin=0.2)
        for more, less in (("1 number", "untrained"), ("2 numbers", "untrained"))
    ],
    controls=(
        Bound(measure="log10 energy at 0", arm="1 number", at_most=-0.7),
        Bound(measure="lower on data at 0", arm="1 number", at_least=0.4, at_most=0.6),
        Bound(measure="lower on data at 0.5", arm="2, linear", at_least=0.4, at_most=0.6),
    ),
    remark="A code as large as the point can be a copy, of energy 0 everywhere: so the linear maps "
    "are. The network with 2 numbers copies worse where it saw no data. R(h) is 0 here.",
)
