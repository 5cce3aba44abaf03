"""Autoencoders of points on an ellipse, untrained or after 500 steps of 64: networks (3 + 3 layers,
64 wide) with codes of 1 or 2 numbers, or linear maps with a code of 2."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, mean, share_weights, train
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig

CODES, FAR = ("1 number", "2 numbers"), "lower on data at 0.5"


def draw(random: torch.Generator, rows: int, distance: float = 0.0) -> Batch:
    """Draw points of the ellipse (2 cos z, 1.5 sin z), moved inwards or outwards by a distance."""
    z = 2 * torch.pi * torch.rand(rows, 1, generator=random)
    sides = 2 * torch.randint(2, (rows, 1), generator=random) - 1
    normals = torch.nn.functional.normalize(torch.cat([1.5 * z.cos(), 2 * z.sin()], 1), dim=1)
    return Batch(torch.cat([2 * z.cos(), 1.5 * z.sin()], 1) + distance * sides * normals, None)


def run(trial: Trial) -> Numbers:
    """Return log10 of the mean energy by distance, and how often one on the ellipse is lower."""
    code_dim = 2 if "2" in trial.arm else 1
    layers, hidden = (1, None) if "linear" in trial.arm else (3, 64)
    reference = Autoencoder(AutoencoderConfig(code_dim=1, layers=3, hidden=64), (2,))
    model = Autoencoder(AutoencoderConfig(code_dim=code_dim, layers=layers, hidden=hidden), (2,))
    share_weights(model, reference)
    if trial.arm != "untrained" and not trial.sabotage:
        train(model, lambda random: draw(random, 64), trial, steps=500)
    random, numbers = generator(trial.seed, 2), {}
    data = model.energy(draw(random, 1000).source).detach()
    for distance in (0.0, 0.1, 0.2, 0.3, 0.5):
        energies = model.energy(draw(random, 1000, distance).source).detach()
        numbers[f"log10 energy at {distance:g}"] = float(energies.mean().log10())
        numbers[f"lower on data at {distance:g}"] = mean(data < energies)
    return numbers | {"fit": -numbers["log10 energy at 0"]}


CLAIM = Claim(
    entry=("E.9", "Training makes it low on the data"),
    sabotage={"1 number": "is not trained, so that a control fails"},
    arms=("untrained", *CODES, "2, linear"),
    rates=(0.003, 0.01),
    tuned_by="fit",
    x_name="distance from the data",
    hypotheses=[Difference(FAR, more=arm, less="untrained", margin=0.2) for arm in CODES],
    controls=(
        Bound("log10 energy at 0", "1 number", at_most=-0.7),
        Bound("lower on data at 0", "1 number", at_least=0.4, at_most=0.6),
        Bound("log10 energy at 0.5", "2, linear", at_most=-6),
    ),
    remark="A code as large as the point can be a copy, of energy 0 everywhere: the linear maps "
    "are. The network with 2 numbers copies worse where it saw no data. R(h) is 0 here.",
)
