"""Autoencoders: shapes, the formulas of the lectures written anew, noise in training only."""

import pytest
import torch
from torch.nn.functional import gelu

from regard.data.batches import Batch
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import (
    AutoencoderConfig,
    ContractiveConfig,
    KLConfig,
    L1Config,
    L2Config,
    NoRegularizerConfig,
)
from regard.models.autoencoders.energy import mean_activation_divergence
from tests.helpers import close, without_gradient

SHAPE = (2, 8, 12)
FUNCTIONS = {
    "identity": lambda a: a,
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "tanh": lambda a: (torch.exp(a) - torch.exp(-a)) / (torch.exp(a) + torch.exp(-a)),
    "relu": lambda a: torch.where(a > 0, a, torch.zeros_like(a)),
}
COSTS = {
    "squared": lambda y, rebuilt: (y - rebuilt).pow(2).sum(1),
    "absolute": lambda y, rebuilt: (y - rebuilt).abs().sum(1),
    "cross-entropy": lambda y, rebuilt: -(y * rebuilt.log() + (1 - y) * (1 - rebuilt).log()).sum(1),
}
REGULARIZERS = [
    NoRegularizerConfig(),
    L1Config(weight=0.3),
    L2Config(weight=0.7),
    ContractiveConfig(weight=0.2),
]


def make_autoencoder(shape: tuple[int, ...] = SHAPE, **settings: object) -> Autoencoder:
    torch.manual_seed(1)
    sizes = {"channels": 3}
    if settings.get("kind", "dense") == "dense":
        sizes = {} if settings.get("layers") == 1 else {"hidden": 7}
    config = AutoencoderConfig(code_dim=5, **sizes, **settings)
    return Autoencoder(config, shape).double().eval()


def make_batch(rows: int = 4, shape: tuple[int, ...] = SHAPE) -> Batch:
    draw = torch.Generator().manual_seed(2)
    images = torch.rand(rows, *shape, dtype=torch.float64, generator=draw)
    return Batch(images, torch.zeros(rows), tuple(range(rows)))


def jacobians(model: Autoencoder, images: torch.Tensor) -> list[torch.Tensor]:
    """Return dh/dy of each row, (code, numbers of y), by autograd."""
    encode = torch.autograd.functional.jacobian
    return [
        encode(lambda y: model.encode(y[None])[0], image, create_graph=True).flatten(1)
        for image in images
    ]


@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_reconstructions_have_the_shape_of_the_images(kind):
    model, images = make_autoencoder(kind=kind), make_batch().source
    assert model.encode(images).shape == (4, 5)
    assert model(images).shape == images.shape
    close(model(images)[2:3], model(images[2:3]))
    close(model(images), model.decoder(model.encoder(images)))
    model.loss(make_batch()).total.backward()
    assert without_gradient(model) == set()


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("g", FUNCTIONS)
def test_one_layer_is_the_formula_of_the_lectures(f, g):
    model = make_autoencoder((11,), layers=1, code_activation=f, output_activation=g)
    y = make_batch(3, (11,)).source
    into, back = model.encoder[1], model.decoder[0]
    h = FUNCTIONS[f](y @ into.weight.T + into.bias)
    close(model.encode(y), h)
    close(model(y), FUNCTIONS[g](h @ back.weight.T + back.bias))
    assert sum(p.numel() for p in model.parameters()) == 11 * 5 + 5 + 5 * 11 + 11


def test_one_layer_of_images_is_the_formula_of_their_pixels():
    model = make_autoencoder((1, 3, 5), layers=1, code_activation="tanh")
    y = make_batch(2, (1, 3, 5)).source
    into, back = model.encoder[1], model.decoder[0]
    h = torch.tanh(y.reshape(2, 15) @ into.weight.T + into.bias)
    close(model(y).reshape(2, 15), h @ back.weight.T + back.bias)


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=lambda config: config.name)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cost", COSTS)
def test_energy_is_the_cost_plus_the_regularizer_of_each_input(cost, layers, regularizer):
    g = "sigmoid" if cost == "cross-entropy" else "tanh"
    settings = {"code_activation": "sigmoid", "output_activation": g, "cost": cost, "noise": 0.5}
    model = make_autoencoder((11,), layers=layers, regularizer=regularizer, **settings)
    batch = make_batch(3, (11,))
    y, h = batch.source, model.encode(batch.source)
    expected = COSTS[cost](y, model(y))
    if regularizer.name == "l1":
        expected = expected + 0.3 * h.abs().sum(1)
    if regularizer.name == "l2":
        expected = expected + 0.7 * (h * h).sum(1)
    if regularizer.name == "contractive":
        norms = [jacobian.pow(2).sum() for jacobian in jacobians(model, y)]
        expected = expected + 0.2 * torch.stack(norms)
    close(model.energy(y), expected)
    close(model.energy(y).sum(), model.loss(batch).total)
    close(model.loss(batch).nll, COSTS[cost](y, model(y)).sum())
    assert model.loss(batch).count == 3
    close(model.train().energy(y), expected)


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_contraction_and_its_gradient_are_those_of_autograd(f, layers):
    config = ContractiveConfig(weight=1.0)
    model = make_autoencoder((1, 3, 5), layers=layers, code_activation=f, regularizer=config)
    images = make_batch(3, (1, 3, 5)).source
    loss = model.loss(make_batch(3, (1, 3, 5)))
    expected = torch.stack([jacobian.pow(2).sum() for jacobian in jacobians(model, images)])
    close(loss.total - loss.nll, expected.sum())
    weights = [layer.weight for layer in model.encoder if hasattr(layer, "weight")]
    cost = (model(images) - images).square().sum()
    ours = torch.autograd.grad(model.energy(images).sum() - cost, weights)
    by_autograd = torch.autograd.grad(expected.sum(), weights)
    for gradient, other in zip(ours, by_autograd, strict=True):
        close(gradient, other)


def test_contraction_of_one_layer_by_hand():
    model = make_autoencoder(
        (2,), layers=1, code_activation="sigmoid", regularizer=ContractiveConfig(weight=1.0)
    )
    into = model.encoder[1]
    with torch.no_grad():
        into.weight.zero_()
        into.weight[0, 0], into.weight[0, 1], into.weight[1, 1] = 3.0, 4.0, 2.0
        into.bias.zero_()
    y = torch.zeros(1, 2, dtype=torch.float64)  # all a are 0: f' = 1/4
    cost = (model(y) - y).square().sum()
    close(model.energy(y)[0] - cost, torch.tensor((25 + 4) / 16, dtype=torch.float64))


def test_kl_compares_the_mean_activations_of_the_batch_with_the_target():
    config = KLConfig(weight=0.4, target=0.2)
    model = make_autoencoder((11,), code_activation="sigmoid", regularizer=config)
    batch = make_batch(6, (11,))
    mean = model.encode(batch.source).mean(0)
    divergence = 0.2 * (0.2 / mean).log() + 0.8 * (0.8 / (1 - mean)).log()
    error = (model(batch.source) - batch.source).square().sum()
    loss = model.loss(batch)
    close(loss.total, error + 6 * 0.4 * divergence.sum())
    close(loss.nll, error)
    loss.total.backward()
    assert without_gradient(model) == set()
    zeros = torch.zeros(3, 1, dtype=torch.float64)
    close(mean_activation_divergence(zeros, 0.5), zeros[0])
    with pytest.raises(ValueError, match="regularizer kl, a mean over a batch, has no energy"):
        model.energy(batch.source)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_losses_and_gradients_are_finite_where_functions_saturate(size):
    batch = make_batch(3, (11,))
    y = batch.source.float()
    y[0] = 0.0
    y[1] = 1.0
    settings = {"code_activation": "sigmoid", "output_activation": "sigmoid"}
    settings["cost"] = "cross-entropy"
    for regularizer in (*REGULARIZERS, KLConfig()):
        model = make_autoencoder((11,), regularizer=regularizer, **settings).float().train()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(size)
        total = model.loss(Batch(y, batch.target, batch.indices)).total
        total.backward()
        assert torch.isfinite(total)
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


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


def test_the_default_has_one_hidden_layer_of_gelu_and_reads_pixels_around_zero():
    model, images = make_autoencoder(), make_batch().source
    (into, narrow), (wide, back) = (
        [part for part in stack if hasattr(part, "weight")]
        for stack in (model.encoder, model.decoder)
    )
    h = gelu((images - 0.5).flatten(1) @ into.weight.T + into.bias) @ narrow.weight.T + narrow.bias
    close(model.encode(images), h)
    rebuilt = gelu(h @ wide.weight.T + wide.bias) @ back.weight.T + back.bias + 0.5
    close(model(images).flatten(1), rebuilt)


def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="multiples of 4 with convolutions, got 8 x 10"):
        Autoencoder(AutoencoderConfig(kind="convolutional"), (1, 8, 10))
    kl, contractive = KLConfig(), ContractiveConfig()
    convolutional, quantized = {"kind": "convolutional"}, {"kind": "quantized"}
    for settings, message in (
        ({"noise": -0.1}, "noise must be from 0 to 1,000"),
        ({"regularizer": kl, "code_activation": "tanh"}, "must be sigmoid with regularizer=kl"),
        ({"layers": 1, "hidden": 64}, "hidden must be left out with layers=1, got 64"),
        (convolutional | {"hidden": 64}, "hidden must be left out with kind=convolutional"),
        (convolutional | {"layers": 1}, "layers must be 2 with kind=convolutional"),
        (convolutional | {"regularizer": contractive}, "with kind=convolutional, got contractive"),
        (quantized | {"code_activation": "tanh"}, "code_activation must be identity"),
        (quantized | {"cost": "absolute"}, "cost must be squared with kind=quantized"),
        (quantized | {"regularizer": L1Config()}, "regularizer must be none with kind=quantized"),
        ({"cost": "cross-entropy"}, "output_activation must be sigmoid .* got identity"),
    ):
        with pytest.raises(ValueError, match=message):
            AutoencoderConfig(**settings)
