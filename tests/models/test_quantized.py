"""Codebook by hand: nearest entries, gradients, moving averages, reset of unused entries."""

import math

import pytest
import torch

from regard.data.images.image_batches import ImageBatch
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.autoencoders.quantized import Codebook, QuantizedAutoencoder
from regard.training.tensors import load_weights
from tests.helpers import close, save_weights, without_gradient

SHAPE = (2, 7, 12)


def make_codebook(entries: list[list[float]], uses: float = 2.0) -> Codebook:
    codebook = Codebook(len(entries), len(entries[0])).double()
    codebook.cluster_sizes.fill_(uses)
    codebook.cluster_sums.copy_(uses * torch.tensor(entries))
    return codebook


def model(**settings: object) -> QuantizedAutoencoder:
    torch.manual_seed(1)
    sizes = {"code_dim": 3, "codebook_size": 5, "channels": 4}
    config = AutoencoderConfig(kind="quantized", **sizes, **settings)
    return QuantizedAutoencoder(config, SHAPE).double()


def make_batch(rows: int = 4) -> ImageBatch:
    draw = torch.Generator().manual_seed(2)
    images = torch.rand(rows, *SHAPE, dtype=torch.float64, generator=draw)
    return ImageBatch(images, torch.zeros(rows), tuple(range(rows)))


def test_nearest_entry_is_selected_and_the_lowest_index_on_ties():
    vectors = torch.tensor([[0.9, 0.2], [-3.0, 0.1], [0.0, 0.4], [0.5, 0.0]], dtype=torch.float64)
    assert make_codebook([[1, 0], [-1, 0], [0, 1]]).eval().nearest(vectors).tolist() == [0, 1, 2, 0]
    middle = torch.tensor([[0.5, 7.0]], dtype=torch.float64)
    assert make_codebook([[0, 0], [1, 0]]).nearest(middle).tolist() == [0]


def test_gradient_of_the_vectors_is_that_of_the_entries_and_the_distance_is_by_hand():
    vectors = torch.tensor([[0.9, 0.2], [-3.0, 0.1]], dtype=torch.float64, requires_grad=True)
    quantized = make_codebook([[1, 0], [-1, 0]]).eval()(vectors)
    close(quantized.entries, torch.tensor([[1.0, 0], [-1, 0]]).double())
    weights = torch.tensor([[2.0, -3.0], [0.5, 7.0]]).double()
    (quantized.entries * weights).sum().backward()
    assert vectors.grad is not None
    close(vectors.grad, weights)
    assert float(quantized.distance.detach()) == pytest.approx(0.1**2 + 0.2**2 + 2**2 + 0.1**2)


def test_commitment_moves_vectors_to_their_entries():
    vectors = torch.tensor([[0.9, 0.2]], dtype=torch.float64, requires_grad=True)
    quantized = make_codebook([[1, 0], [-1, 0]]).eval()(vectors)
    (0.25 * quantized.distance).backward()
    assert vectors.grad is not None
    close(vectors.grad, 0.25 * 2 * torch.tensor([[-0.1, 0.2]], dtype=torch.float64))


def test_moving_averages_by_hand():
    entries = make_codebook([[1, 0], [-1, 0]], uses=2.0).train()
    entries(torch.tensor([[0.8, 0.2], [1.4, 0.0], [-1.0, 0.6]], dtype=torch.float64))
    sizes = torch.tensor([0.97 * 2 + 0.03 * 2, 0.97 * 2 + 0.03 * 1], dtype=torch.float64)
    close(entries.cluster_sizes, sizes)
    first = torch.tensor([0.97 * 2 + 0.03 * 2.2, 0.03 * 0.2], dtype=torch.float64)
    close(entries.cluster_sums[0], first)
    close(entries.entries[1], torch.tensor([-1.0, 0.03 * 0.6 / 1.97], dtype=torch.float64))


def test_entries_are_constant_in_evaluation():
    entries = make_codebook([[1, 0], [-1, 0]]).eval()
    before = entries.cluster_sums.clone()
    entries(torch.tensor([[5.0, 5.0]]).double())
    close(entries.cluster_sums, before)


def test_unused_entries_are_reset_to_vectors_of_the_batch_drawn_by_the_seed():
    def reset_entries(seed: int) -> torch.Tensor:
        entries = make_codebook([[1, 0], [50, 50], [60, 60]]).train()
        entries.cluster_sizes[1:] = 1e-3
        entries.cluster_sums[1:] = 1e-3 * torch.tensor([[50.0, 50], [60, 60]]).double()
        torch.manual_seed(seed)
        entries._reset_unused(vectors)
        return entries.entries

    vectors = torch.randn(30, 2, generator=torch.Generator().manual_seed(4)).double()
    first = reset_entries(3)
    close(first[0], torch.tensor([1.0, 0]).double())
    for entry in first[1:]:
        assert (vectors - entry).abs().sum(-1).min() < 1e-9
    assert torch.equal(first, reset_entries(3))
    assert not torch.equal(first, reset_entries(5))


def test_new_codebook_takes_its_entries_from_the_first_batch():
    entries = Codebook(4, 2).double().train()
    vectors = torch.randn(9, 2, generator=torch.Generator().manual_seed(1)).double()
    quantized = entries(vectors)
    assert quantized.codes.unique().numel() > 1
    assert float(quantized.distance.detach()) < float(vectors.square().sum())


def test_images_of_any_size_are_encoded_to_a_grid_and_reconstructed():
    autoencoder = model(downsampling_layers=3)
    autoencoder.train().loss(make_batch())
    autoencoder.eval()
    codes = autoencoder.encode(make_batch().source)
    assert codes.shape == (4, 1, 2)
    assert autoencoder.grid == (1, 2)
    assert autoencoder.numbers == 2
    assert autoencoder(make_batch().source).shape == (4, *SHAPE)
    close(autoencoder(make_batch().source), autoencoder.decode(codes))
    close(autoencoder(make_batch().source)[2:3], autoencoder(make_batch().source[2:3]))


def test_loss_is_the_error_plus_the_commitment_term():
    autoencoder = model(commitment=0.7)
    autoencoder.train().loss(make_batch())
    autoencoder.eval()
    images = make_batch().source
    vectors = autoencoder.vectors(images)
    entries = autoencoder.codebook.entries[autoencoder.encode(images)]
    error = (autoencoder(images) - images).square().sum()
    loss = autoencoder.loss(make_batch())
    close(loss.total, error + 0.7 * (vectors - entries).square().sum())
    close(loss.nll, error)
    assert loss.count == 4
    energy = autoencoder.energy(images)
    assert energy.shape == (4,)
    close(energy.sum(), loss.total)
    close(autoencoder.energy(images[2:3]), energy[2:3])
    loss.total.backward()
    assert without_gradient(autoencoder) == set()


def test_saved_and_loaded_is_the_same(tmp_path):
    original, other = model().train(), model().train()
    original.loss(make_batch())
    save_weights(tmp_path / "model.safetensors", original)
    load_weights(tmp_path / "model.safetensors", other)
    assert torch.equal(
        original.eval().encode(make_batch().source), other.eval().encode(make_batch().source)
    )
    assert torch.equal(original(make_batch().source), other(make_batch().source))


def test_usage_by_hand():
    usage = Codebook(8, 3).usage
    perplexity = math.exp(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))
    expected = {"codes_used": 2, "code_perplexity": pytest.approx(perplexity)}
    assert usage(torch.tensor([[0, 0, 3], [3, 0, 0]])) == expected
    expected = {"codes_used": 8, "code_perplexity": pytest.approx(8.0)}
    assert usage(torch.arange(8)) == expected


def test_half_precision_selects_the_same_entries():
    entries = make_codebook([[100.0, 0], [100.25, 0]]).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert entries.nearest(torch.tensor([[100.2, 0.0], [100.05, 0.0]])).tolist() == [1, 0]
