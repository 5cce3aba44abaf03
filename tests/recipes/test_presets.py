"""Presets build the sizes of the papers: their numbers of parameters, by formulas written here."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.models.build import build, build_classifier, build_core, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.recipes.presets import apply_preset, load_presets
from regard.recipes.registry import RECIPES

VOCAB = 1009
PRESETS = load_presets()


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + outputs * bias


def attention(d: int) -> int:
    return 4 * linear(d, d)


def network(d: int, hidden: int) -> int:
    return linear(d, hidden) + linear(hidden, d)


def encoder_block(d: int, hidden: int) -> int:
    return attention(d) + network(d, hidden) + 2 * 2 * d


def decoder_block(d: int, hidden: int) -> int:
    return 2 * attention(d) + network(d, hidden) + 3 * 2 * d


def gru(inputs: int, hidden: int) -> int:
    """Return the size of a GRU cell of the decoder: its state has a bias in the candidate alone."""
    return 3 * hidden * (inputs + hidden) + 3 * hidden + hidden


def model_of(name: str) -> Any:
    recipe = PRESETS[name].recipes[0]
    return apply_preset(name, recipe, RECIPES[recipe].config()).model


def built(name: str, **sizes: Any) -> nn.Module:
    config = model_of(name)
    with torch.device("meta"):
        if isinstance(config, ModelConfig):
            vocab = sizes["vocab"]
            return build(config, source_vocab=vocab, target_vocab=vocab)
        if isinstance(config, LanguageModelConfig):
            return build_language_model(config, vocab=sizes["vocab"])
        return build_core(config.core, **sizes)


def test_vaswani_base_is_the_base_model_of_the_paper() -> None:
    expected = 6 * encoder_block(512, 2048) + 6 * decoder_block(512, 2048) + 37_000 * 512
    assert size(built("vaswani-base", vocab=37_000)) == expected
    assert round(expected / 1e6, 1) == 63.1


def test_transformer_tiny_has_2_6_million_weights() -> None:
    expected = 4 * encoder_block(128, 256) + 4 * decoder_block(128, 256) + 10_000 * 128
    assert size(built("transformer-tiny", vocab=10_000)) == expected == 2_605_056


def test_gpt_has_the_published_number_of_parameters() -> None:
    """116,534,784 is the number of the published weights, openai-gpt."""
    expected = 12 * encoder_block(768, 3072) + 512 * 768 + 40_478 * 768
    assert size(built("gpt", vocab=40_478)) == expected == 116_534_784


def test_detr_has_the_transformer_of_the_paper() -> None:
    config = model_of("detr")
    assert (config.queries, config.num_queries) == ("learned", 100)
    core = built("detr", in_order=False)
    assert size(core) == 6 * encoder_block(256, 2048) + 6 * decoder_block(256, 2048)


def test_vit_is_the_base_model_but_for_its_positions() -> None:
    config = model_of("vit")
    with torch.device("meta"):
        reader = ImageReader((3, 224, 224), 768, patch=16)
        writer = partial(ClassWriter, num_classes=1000)
        model = build_classifier(config, reader, lambda dim, pool: writer(dim, pool=pool))
    published = 86_567_656  # ViT-B/16 for 1,000 classes
    positions = 197 * 768
    by_row_and_column = (14 + 14) * 768
    norm_of_the_vector = 2 * 768  # before the output layer; ours
    assert size(model) == published - positions + by_row_and_column + norm_of_the_vector


def test_bahdanau_has_the_sizes_of_rnnsearch() -> None:
    model = built("bahdanau", vocab=VOCAB)
    encoder = 2 * (3 * 1000 * (620 + 1000) + 2 * 3 * 1000)  # torch's GRU: two biases for each gate
    bridge = linear(2000, 1000)
    read = 1000 * (1000 + 2000) + 1000  # W_a, U_a, v_a
    decoder = gru(620 + 2000, 1000)
    readout = linear(1000 + 2000 + 620, 620)
    assert size(model.core) == encoder + bridge + read + decoder + readout
    assert size(model) == size(model.core) + 3 * VOCAB * 620


def test_luong_is_four_layers_of_a_thousand() -> None:
    model = built("luong", vocab=VOCAB)
    encoder = 4 * (4 * 1000 * 2000 + 2 * 4 * 1000)
    # The lowest layer reads the context, too.
    decoder = 4 * (4 * 1000 * 2000 + 4 * 1000) + 4 * 1000 * 1000
    readout = linear(1000 + 1000 + 1000, 1000)
    assert size(model.core) == encoder + decoder + readout


def test_lstmn_is_a_layer_of_three_hundred() -> None:
    model = built("lstmn", vocab=VOCAB)
    cell = 4 * 300 * (150 + 300) + 4 * 300
    alignment = 300 * 300 + 300 * 150 + 300 * 300 + 300  # W_h, W_x, W_h~, v
    assert size(model.core) == cell + alignment + linear(300 + 150, 150)
    assert size(model) == size(model.core) + VOCAB * 150


@pytest.mark.parametrize(
    ("name", "recipe"), [(name, recipe) for name in PRESETS for recipe in PRESETS[name].recipes]
)
def test_every_recipe_of_a_preset_takes_it(name: str, recipe: str) -> None:
    config = apply_preset(name, recipe, RECIPES[recipe].config())
    assert config.model == model_of(name)


@pytest.mark.parametrize(
    ("name", "recipe", "message"),
    [
        ("vit", "dates", "preset vit is for images, not dates"),
        ("gpt", "tags", "preset gpt is for language, not tags"),
        ("vasvani-base", "translate", "unknown preset 'vasvani-base'; the presets are"),
    ],
)
def test_other_recipes_and_names_are_refused(name: str, recipe: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_preset(name, recipe, RECIPES[recipe].config())
