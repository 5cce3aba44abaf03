"""Classifiers: padding is inert, images and texts with every core, the loss is the nll."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.text.labels import LabeledBatch
from regard.layers.pool import AttentionPooling
from regard.layers.positions.config import GridRotaryConfig
from regard.layers.read import Read
from regard.look.hooks import record_weights
from regard.models.build import build_classifier
from regard.models.config import ClassifierConfig, TaggerConfig, TextClassifierConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.readers.images import ImageReader
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.writers.classes import ClassWriter
from tests.helpers import close, without_gradient

CORES = {
    "transformer": TransformerConfig(layers=2, width=12, heads=3, feedforward=17),
    "recurrent": RecurrentConfig(width=12, hidden=14, attention_hidden=5),
    "self-attentive": SelfAttentiveConfig(width=12, hidden=14, self_attention_hidden=5, layers=2),
    "self-attentive-rnn": SelfAttentiveConfig(
        width=12, hidden=14, self_attention_hidden=5, cell="rnn", directions=1
    ),
}


def texts(config: ClassifierConfig) -> nn.Module:
    torch.manual_seed(1)
    reader = TokenReader(embedding_table(11, config.core.width), dropout=config.dropout)
    model = build_classifier(config, reader, lambda dim, pool: ClassWriter(dim, 3, pool=pool))
    return model.double().eval()


POOLS = ("attention", "last", "mean", "first", "first-mean", "cls")


def pooled_by(core: str, pool: str) -> nn.Module:
    has_both = pool == "first-distillation"
    return texts(ClassifierConfig(core=CORES[core], pool=pool, distillation_token=has_both))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("core", CORES)
def test_rows_do_not_depend_on_their_batch_with_any_pool(core, pool):
    if core == "self-attentive-rnn" and pool in ("first", "first-mean", "cls"):
        with pytest.raises(ValueError, match=rf"pool must not be {pool} with core\.directions=1"):
            pooled_by(core, pool)
        return
    model, rows = pooled_by(core, pool), [[4, 5, 6, 7, 8], [9], [4, 10]]
    batched = model(pad(rows))
    for row, ids in enumerate(rows):
        close(model(pad([ids])), batched[row : row + 1])
    names = {name for name, _ in model.named_parameters() if name.endswith("key.bias")}
    model.loss(LabeledBatch(pad(rows), torch.tensor([2, 0, 1]), (0, 1, 2))).total.backward()
    unused = without_gradient(model) - names
    # Of the first state of two directions, the backward one has read all items, the forward one
    # nothing but its own.
    is_forward = "rnn.weight_hh_l0" if core == "recurrent" else "forward_cells.1."
    assert all(is_forward in name for name in unused)
    assert bool(unused) == (pool in ("first", "cls") and core != "transformer")
    reader = [name for name, module in model.named_modules() if isinstance(module, Read)]
    assert any(name.startswith("writer.pool") for name in reader) == (pool == "attention")


@pytest.mark.parametrize("pool", [*POOLS[1:], "first-distillation"])
def test_predictions_are_those_of_the_formula(pool):
    """Encode a row's items alone, pool by hand, and apply the output layer in plain torch."""
    for core in ("transformer", "recurrent"):
        model, ids = pooled_by(core, pool), [4, 5, 6, 7]
        items = model.reader(pad([ids])).items[0]
        if pool.startswith("first"):
            own = model.writer.pool
            second = [own.distillation] if pool == "first-distillation" else []
            items = torch.stack([own.token, *second, *items])
        states = model.core.encode(Padded(items[None], torch.tensor([len(items)]))).items[0]
        pooled = {
            "mean": sum(states) / len(states),
            "last": states[-1],
            "first-mean": torch.cat([states[0], states[1:].mean(0)]),
            "first-distillation": torch.cat([states[0], states[1]]),
        }
        expected = pooled.get(pool, states[0])
        if core == "recurrent" and pool == "last":  # forward and backward, 7 numbers each
            expected = torch.cat([states[-1][:7], states[0][7:]])
        norm, output = model.writer.norm, model.writer.output
        normal = (expected - expected.mean()) / (expected.var(correction=0) + norm.eps).sqrt()
        scores = output.weight @ (normal * norm.weight + norm.bias) + output.bias
        close(model(pad([ids]))[0], torch.softmax(scores, 0))


def test_class_token_of_images_is_one_more_item_before_the_patches():
    config = ClassifierConfig(core=CORES["transformer"], pool="first")
    reader = ImageReader((1, 8, 12), 12, patch=4)
    model = build_classifier(config, reader, lambda dim, pool: ClassWriter(dim, 4, pool=pool))
    model = model.double().eval()
    images = torch.rand(5, 1, 8, 12, dtype=torch.float64)
    with record_weights(model) as recording:
        out = model(images)
    for name in recording.names:
        assert recording[name][0].shape == (5, 3, 7, 7)
    close(model(images[2:3]), out[2:3])


def test_rotary_positions_of_rows_and_columns_are_those_of_the_patches():
    core = replace(CORES["transformer"], positions=GridRotaryConfig(base=5.0), head_dim=8)
    config = ClassifierConfig(core=core, pool="first")
    reader = ImageReader((1, 8, 12), 12, patch=4, positions=False)
    model = build_classifier(config, reader, lambda dim, pool: ClassWriter(dim, 4, pool=pool))
    model, images = model.double().eval(), torch.rand(2, 1, 8, 12, dtype=torch.float64)
    out = model(images)
    assert (model.core.positions.grid, model.core.positions.first) == ((2, 3), 1)
    assert (model(images.roll(4, -1)) - out).abs().max() > 1e-4
    model.core.positions.grid = (3, 2)
    assert (model(images) - out).abs().max() > 1e-4
    for block in model.core.encoder:  # without positions, the order of patches has no effect
        block.attention.positions = None
    close(model(images.roll(4, -1)), model(images))
    with pytest.raises(ValueError, match="positions must not be rotary-2d but for images"):
        texts(config)
    for kind in (TaggerConfig, TextClassifierConfig):
        with pytest.raises(ValueError, match="positions must not be rotary-2d but for"):
            kind(core=core)


def test_options_without_effect_are_refused():
    with pytest.raises(ValueError, match="pool_heads must not be given with pool=mean"):
        ClassifierConfig(pool="mean", pool_heads=2)
    with pytest.raises(ValueError, match="distillation_token must be true with pool=first-dist"):
        ClassifierConfig(pool="first-distillation")
    with pytest.raises(ValueError, match="distillation_token must be false with pool=cls"):
        ClassifierConfig(pool="cls", distillation_token=True)
    default, four = (
        texts(ClassifierConfig(core=CORES["transformer"], pool_heads=heads)) for heads in (None, 4)
    )
    for one, other in zip(default.parameters(), four.parameters(), strict=True):
        assert torch.equal(one, other)


def test_patch_must_divide_the_image_size():
    reader = ImageReader((1, 8, 12), 7, patch=4)
    assert reader.grid == (2, 3)
    assert reader(torch.rand(2, 1, 8, 12)).items.shape == (2, 6, 7)
    with pytest.raises(ValueError, match=r"patch must divide .* 8 x 12, got 5"):
        ImageReader((1, 8, 12), 7, patch=5)


def test_pixels_are_normalized_by_channel_and_positions_left_to_the_core():
    torch.manual_seed(1)
    plain = ImageReader((3, 8, 12), 7, patch=4, positions=False)
    torch.manual_seed(1)
    reader = ImageReader((3, 8, 12), 7, patch=4, mean=(0.1, 0.2, 0.3), std=(2.0,))
    assert [name for name, _ in plain.named_parameters()] == ["stem.weight", "stem.bias"]
    image = torch.rand(2, 3, 8, 12)
    normal = (image - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / 2
    items = plain(normal + 0.5).items + (reader.rows + reader.columns).flatten(0, 1)
    close(reader(image).items, items)
    with pytest.raises(ValueError, match="mean and std must be one number or 3, got 1 and 2"):
        ImageReader((3, 8, 12), 7, patch=4, std=(1.0, 2.0))


def test_patch_items_depend_on_their_own_pixels_only():
    reader = ImageReader((1, 8, 12), 7, patch=4).eval()
    image = torch.rand(1, 1, 8, 12)
    changed = image.clone()
    changed[:, :, 4:, 4:8] += 1
    difference = (reader(image).items - reader(changed).items).abs().amax(-1)[0]
    assert (difference > 0).tolist() == [False, False, False, False, True, False]


def test_pooling_is_invariant_to_order_and_an_empty_row_gives_the_output_bias():
    torch.manual_seed(2)
    pool = AttentionPooling(6, num_heads=2).double()
    items = torch.randn(2, 4, 6, dtype=torch.float64)
    pooled = pool(Padded(items, torch.tensor([4, 0])))
    close(pool(Padded(items[:, [2, 0, 3, 1]], torch.tensor([4, 0]))), pooled)
    close(pooled[1].detach(), pool.attention.output.bias.detach())


def test_label_smoothing_mixes_in_the_uniform_distribution_in_training_only():
    writer = ClassWriter(5, 3, label_smoothing=0.3).double()
    vector, target = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    log_p = writer.scores(vector).log_softmax(-1)
    expected = torch.full((4, 3), 0.1, dtype=torch.float64)
    expected[torch.arange(4), target] += 0.7
    close(writer.loss(vector, target).total, -(expected * log_p).sum())
    plain = -log_p[torch.arange(4), target].sum()
    close(writer.loss(vector, target).nll, plain)
    close(writer.eval().loss(vector, target).total, plain)
