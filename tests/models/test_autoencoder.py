"""Autoencoders: shapes, the loss by hand, noise in training only."""

import pytest
import torch

from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.config import AutoencoderConfig
from regard.recipes.base.image_batches import ImageBatch
from tests.helpers import close, without_gradient

SHAPE = (2, 8, 12)


def make_autoencoder(**settings: object) -> Autoencoder:
    torch.manual_seed(1)
    return Autoencoder(AutoencoderConfig(code_dim=5, hidden=7, channels=3, **settings), SHAPE).double().eval()


def make_batch(rows: int = 4) -> ImageBatch:
    images = torch.rand(rows, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return ImageBatch(images, torch.zeros(rows), tuple(range(rows)))


@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_reconstructions_have_the_shape_of_the_images(kind):
    model, images = make_autoencoder(kind=kind), make_batch().source
    assert model.encode(images).shape == (4, 5)
    assert model(images).shape == images.shape
    close(model(images)[2:3], model(images[2:3]))
    model.loss(make_batch()).total.backward()
    assert without_gradient(model) == set()


def test_loss_is_the_squared_error_plus_the_sparsity_term():
    plain, sparse = make_autoencoder(), make_autoencoder(sparsity=0.3)
    images = make_batch().source
    error = (plain(images) - images).square().sum()
    close(plain.loss(make_batch()).total, error)
    close(sparse.loss(make_batch()).total, error + 0.3 * sparse.encode(images).abs().sum())
    close(sparse.loss(make_batch()).nll, error)
    assert plain.count(make_batch()) == plain.loss(make_batch()).count == 4


def test_noise_is_added_in_training_only_and_the_error_is_that_of_the_clean_image():
    noisy = make_autoencoder(noise=0.5)
    clean = noisy.loss(make_batch()).total
    close(noisy.loss(make_batch()).total, clean)
    noisy.train()
    torch.manual_seed(3)
    first = noisy.loss(make_batch()).total
    assert not torch.allclose(first, clean)
    torch.manual_seed(3)
    images = make_batch().source
    noisy_images = images + 0.5 * torch.randn_like(images)
    close(first, (noisy(noisy_images) - images).square().sum())


def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="multiples of 4 with kind=convolutional, got 8 x 10"):
        Autoencoder(AutoencoderConfig(kind="convolutional"), (1, 8, 10))
    with pytest.raises(ValueError, match="code_dim must be from 1 to 65,536, got 0"):
        AutoencoderConfig(code_dim=0)
    with pytest.raises(ValueError, match="noise must be from 0 to 1,000"):
        AutoencoderConfig(noise=-0.1)
