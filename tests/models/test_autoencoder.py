"""Autoencoders: sizes, the energy by hand, noise in training alone."""

import pytest
import torch

from regard.models.autoencoder import Autoencoder
from regard.models.config import AutoencoderConfig
from regard.recipes.images import ImageBatch
from tests.helpers import close

SHAPE = (2, 8, 12)


def made(**settings: object) -> Autoencoder:
    torch.manual_seed(1)
    return Autoencoder(AutoencoderConfig(code=5, hidden=7, channels=3, **settings), SHAPE).double().eval()


def batch(rows: int = 4) -> ImageBatch:
    images = torch.rand(rows, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return ImageBatch(images, torch.zeros(rows), tuple(range(rows)))


@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_images_go_through_the_code_and_back(kind):
    model, images = made(kind=kind), batch().source
    assert model.encode(images).shape == (4, 5)
    assert model(images).shape == images.shape
    close(model(images)[2:3], model(images[2:3]))
    model.loss(batch()).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_energy_is_the_squared_error_and_what_sparsity_adds():
    plain, sparse = made(), made(sparsity=0.3)
    images = batch().source
    error = (plain(images) - images).square().sum()
    close(plain.loss(batch()).total, error)
    close(sparse.loss(batch()).total, error + 0.3 * sparse.encode(images).abs().sum())
    close(sparse.loss(batch()).nll, error)
    assert plain.count(batch()) == plain.loss(batch()).count == 4


def test_noise_is_seen_in_training_alone_and_the_error_is_that_of_the_clean_image():
    noisy = made(noise=0.5)
    clean = noisy.loss(batch()).total
    close(noisy.loss(batch()).total, clean)
    noisy.train()
    torch.manual_seed(3)
    first = noisy.loss(batch()).total
    assert not torch.allclose(first, clean)
    torch.manual_seed(3)
    images = batch().source
    seen = images + 0.5 * torch.randn_like(images)
    close(first, (noisy(seen) - images).square().sum())


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="halves the sides twice, but images are 8 x 10"):
        Autoencoder(AutoencoderConfig(kind="convolutional"), (1, 8, 10))
    with pytest.raises(ValueError, match="code must be from 1 to 65,536, but is 0"):
        AutoencoderConfig(code=0)
    with pytest.raises(ValueError, match="noise must be from 0 to 1,000"):
        AutoencoderConfig(noise=-0.1)
