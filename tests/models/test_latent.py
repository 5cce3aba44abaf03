"""Latent-variable models: F is the minimum over z, curves are closed, gradients hold z constant."""

import math

import pytest
import torch

from regard.data.batches import Batch
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.autoencoders.latent import LatentVariableModel


def make_model(conditions: int = 0, **settings: object) -> LatentVariableModel:
    torch.manual_seed(5)
    config = AutoencoderConfig(kind="latent", **{"hidden": 24, "layers": 3} | settings)
    model = LatentVariableModel(config, (2,), conditions).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)  # a random curve with several local minima of E
    return model


def make_circle(radius: float, **settings: object) -> LatentVariableModel:
    """Return y~ = radius (cos z, sin z)."""
    model = make_model(layers=1, hidden=None, **settings)
    with torch.no_grad():
        model.decoder[0].weight.copy_(radius * torch.eye(2))
        model.decoder[0].bias.zero_()
    return model


def batch(rows: torch.Tensor) -> Batch:
    return Batch(rows, torch.zeros(len(rows)), tuple(range(len(rows))))


@pytest.mark.parametrize("cost", ["squared", "absolute"])
@pytest.mark.parametrize("conditions", [0, 1])
def test_energy_is_the_minimum_over_z(conditions, cost):
    model = make_model(conditions, cost=cost)
    rows = 2 * torch.randn(20, conditions + 2).double()
    z = torch.linspace(0, 2 * math.pi, 4_001).double()[:, None]
    for row, energy in zip(rows, model.energy(rows).tolist(), strict=True):
        rebuilt = model.decode(z, row[:conditions].expand(len(z), conditions))
        error = rebuilt - row[conditions:]
        terms = error.square() if cost == "squared" else error.abs()
        minimum = terms.sum(1).min().item()
        assert minimum - 5e-3 < energy < minimum + (2e-3 if cost == "absolute" else 1e-5)
    assert ((model.encode(rows) >= 0) & (model.encode(rows) <= 2 * math.pi)).all()
    rebuilt = model.decode(model.encode(rows), rows[:, :conditions])
    assert torch.equal(model(rows), rebuilt)


def test_a_circle_has_the_nearest_angle_and_distance():
    model, rows = make_circle(2.0), torch.tensor([[0.0, 3.0], [-1.0, -1.0], [0.5, -0.1]]).double()
    angles = torch.atan2(rows[:, 1], rows[:, 0]) % (2 * math.pi)
    assert model.encode(rows)[:, 0].tolist() == pytest.approx(angles.tolist(), abs=3e-4)
    assert model.energy(rows).tolist() == pytest.approx(
        (rows.norm(dim=1) - 2).square().tolist(), abs=1e-5
    )


def test_curves_are_closed_and_depend_on_x():
    model = make_model(1)
    x, z = torch.rand(30, 1).double(), 7 * torch.rand(30, 1).double()
    rebuilt = model.decode(z, x)
    assert torch.allclose(model.decode(z + 2 * math.pi, x), rebuilt)
    assert not torch.allclose(model.decode(z, x + 0.5), rebuilt)


def test_gradient_of_the_energy_is_that_of_its_differences():
    model, rows = make_model(1), torch.randn(8, 3).double()
    weight = model.decoder[2].weight
    model.energy(rows).sum().backward()
    energies = []
    with torch.no_grad():
        for step in (1e-4, -2e-4):
            weight[3, 4] += step
            energies.append(model.energy(rows).sum())
    difference = (energies[0] - energies[1]) / 2e-4
    assert weight.grad[3, 4].item() == pytest.approx(difference.item(), rel=1e-2)


def test_loss_adds_the_squared_slope_in_training_only():
    model, rows = make_circle(2.0, smoothness=0.3), torch.randn(7, 2).double()
    energy = model.energy(rows).sum().item()
    for is_training in (False, True):
        loss = model.train(is_training).loss(batch(rows))
        # |dy~/dz| of the circle is its radius, up to the finite difference.
        slope = 2.0 * math.sin(0.05) / 0.05
        expected = energy + is_training * 0.3 * 7 * slope**2
        assert loss.total.item() == pytest.approx(expected)
        assert loss.nll.item() == pytest.approx(energy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"code_dim": 32}, "code_dim has no effect with kind=latent"),
        ({"noise": 0.1}, "noise has no effect with kind=latent"),
        ({"channels": 8}, "channels has no effect"),
        ({"code_activation": "tanh"}, "code_activation must be left out with kind=latent"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(**settings)
    assert AutoencoderConfig(kind="latent").code_size == 1
    with pytest.raises(ValueError, match="smoothness has no effect with kind=dense"):
        AutoencoderConfig(smoothness=0.1)
