"""Energies that autoencoders give to points, by their distance from the curve of the data."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, train
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig


def draw(random: torch.Generator, rows: int, distance: float = 0.0) -> Batch:
    """Draw points of the ellipse (2 cos z, 1.5 sin z), moved inwards or outwards by a distance."""
    z = 2 * torch.pi * torch.rand(rows, generator=random)
    normals = torch.nn.functional.normalize(torch.stack([1.5 * z.cos(), 2 * z.sin()], 1), dim=1)
    sides = 2 * torch.randint(2, (rows, 1), generator=random) - 1
    points = torch.stack([2 * z.cos(), 1.5 * z.sin()], 1) + distance * sides * normals
    return Batch(points, None)


def run(trial: Trial) -> Numbers:
    """Train, and return the mean energy at each distance, and how often it is lower on the data."""
    size = 1 if trial.arm == "1 number" and not trial.sabotage else 2
    layers, hidden = (1, None) if trial.arm == "2, linear" else (3, 64)
    model = Autoencoder(AutoencoderConfig(code_dim=size, layers=layers, hidden=hidden), (2,))
    train(model, lambda random: draw(random, 64), trial, steps=500)
    random, numbers = generator(trial.seed, 2), {}
    data = model.energy(draw(random, 1000).source)
    for distance in (0.0, 0.1, 0.2, 0.3, 0.5):
        energies = model.energy(draw(random, 1000, distance).source)
        numbers[f"energy at {distance:g}"] = float(energies.mean())
        numbers[f"lower on data at {distance:g}"] = float((data < energies).double().mean())
    return numbers | {"fit": -numbers["energy at 0"]}


CLAIM = Claim(
    key="E.9",
    quote="Training makes it low on the data",
    experiment="Autoencoders of points on an ellipse (500 steps), codes of 1 or 2 numbers, or of 2 "
    "by linear maps: energy at distances from it, and how often one of a point on it is lower.",
    sabotage="The code of 1 number has 2, as many as a point.",
    sabotaged=("1 number",),
    run=run,
    arms=("1 number", "2 numbers", "2, linear"),
    rates=(0.003, 0.01),
    tuned_by="fit",
    x_name="distance from the data",
    hypotheses=(
        Difference(measure="lower on data at 0.5", more="1 number", less="2, linear", margin=0.2),
        Difference(measure="energy at 0.5", more="1 number", less="2 numbers", margin=0.1),
    ),
    controls=(Bound(measure="energy at 0", arm="1 number", at_most=0.2),),
    remark="A code as large as the point can be a copy, of energy 0 everywhere, as the linear maps "
    "learn. The network with 2 numbers copies less well where it saw no data. R(h) is 0 here.",
)
