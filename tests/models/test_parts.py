"""Parts of cores: computed one after another, they give what the modules give."""

import re

import pytest
import torch
from torch import nn

from regard.attention.masks import causal
from regard.layers.pool import ClassToken
from regard.layers.positions.config import AlibiConfig, LearnedConfig, RotaryConfig
from regard.look.figures.model import plot_outline
from regard.models.build import build_core, build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.outline import outline
from regard.models.parts import core_blocks
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from tests.helpers import close
from tests.models.test_grid import make_model

SMALL = {"width": 12, "heads": 3, "feedforward": 17}


def compute(parts, block, x, source):
    """Return the result of the parts, and the modules that are left over."""
    names = [name for name in ("attention", "cross", "feedforward") if getattr(block, name, None)]
    left = {name: getattr(block, name) for name in names}
    norms = [getattr(block, f"add_{name}").norm for name in names]
    scales = [getattr(block, f"add_{name}").scale for name in names]
    points = [x]
    for part in parts:
        first, *others = (points[i] for i in part.inputs)
        if part.name == "+":
            result = first + others[0]
        elif part.name in ("LayerNorm", "RMSNorm"):
            result = norms.pop(0)(first)
        elif part.name == "layer scale":
            result = first * scales.pop(0)
        elif part.name == "feed-forward":
            result = left.pop("feedforward")(first)
        elif part.reads == "h^Enc":
            result = left.pop("cross")(first, source)
        else:
            mask = causal() if part.name.startswith("masked") else None
            result = left.pop("attention")(first, mask=mask)
        points.append(result)
    return points[-1], [*left.values(), *norms]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("order", ["pre", "post"])
@torch.no_grad()
def test_parts_of_blocks_compute_what_the_blocks_do(order, norm, in_order):
    scale = 0.5 if norm == "rms" else None
    options = {"norm_order": order, "norm": norm, "layer_scale": scale, "in_order": in_order}
    core = Transformer(**SMALL, layers=2, **options).eval()
    x, h = torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    for stack, modules in (("encoder", core.encoder), ("decoder", core.decoder)):
        (block,) = (block for block in core_blocks(core, stack) if block.name)
        assert block.times == 2
        for module in modules:
            for value in module.parameters():
                value.add_(0.1 * torch.randn_like(value))
            result, left = compute(block.parts, module, x, h)
            assert left == []
            if stack == "encoder":
                close(result, module(x, None))
            else:
                decode = module if in_order else module.decode_set
                close(result, decode(x, module.cross.memory(h)))


def names_of(core, stack):
    return [part.name for block in core_blocks(core, stack) for part in block.parts]


def test_places_of_norms_positions_and_cross_attention():
    encoder = ["+ P", *["multi-head self-attention", "+", "LayerNorm", "feed-forward", "+"]]
    assert names_of(Transformer(**SMALL, norm_order="post"), "encoder") == [*encoder, "LayerNorm"]
    pre = Transformer(**SMALL, positions=RotaryConfig())
    assert names_of(pre, "encoder")[::6] == ["LayerNorm", "final LayerNorm"]
    plain = Transformer(**SMALL, norm_order="none", encodes=False)
    expected = ["+ P", "masked multi-head self-attention", "feed-forward"]
    assert names_of(plain, "decoder") == expected
    assert core_blocks(plain, "encoder") == ()
    own = Transformer(**SMALL, norm_order="post", final_norm=True, embedding_norm=True)
    scaled = Transformer(**SMALL, layer_scale=0.1)
    assert names_of(scaled, "encoder")[1:5] == [
        *("LayerNorm", "multi-head self-attention", "layer scale", "+")
    ]
    for stack in ("encoder", "decoder"):
        assert names_of(own, stack)[:2] == ["+ P", "LayerNorm"]
        assert names_of(own, stack)[-1] == "final LayerNorm"


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("Rotary positions", {"positions": RotaryConfig(), "head_dim": 4}),
        ("bias Alibi", {"positions": AlibiConfig()}),
        ("causal, last 7", {"window": 7}),
        ("causal, last 7", {"window": 7, "layers": 2, "pattern": "LS"}),
        ("1 of keys and values", {"key_heads": 1}),
        ("normalized queries and keys", {"qk_norm": "rms"}),
        ("no W_o", {"output_projection": False}),
        ("1 register", {"registers": 1}),
        ("choice Sparse", {"choice": "sparse"}),
        ("score Dot", {"score": "dot"}),
        ("learned beta", {"beta": "learned"}),
        ("12 -> 17 -> 12, gated silu", {"gated": True, "activation": "silu"}),
        ("12 -> 12, relu", {"feedforward": "dense"}),
    ],
)
def test_details_are_told_where_the_modules_have_them(words, fields):
    for extra, expected in ((fields, True), ({}, False)):
        blocks = core_blocks(Transformer(**{**SMALL, **extra}), "decoder")
        details = "; ".join(part.detail for block in blocks for part in block.parts)
        assert (re.search(rf"{words}(,|;|$)", details) is not None) is expected


@pytest.mark.parametrize("encodes", [True, False])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("kind", [Recurrent, SelfAttentive])
def test_steps_have_the_inputs_of_the_weights(kind, cell, encodes):
    core = kind(width=12, hidden=14, cell=cell, layers=1, decoder_layers=2, encodes=encodes)
    (block,) = core_blocks(core, "decoder")
    sizes, cells = [12], list(core.cells)
    for number, part in enumerate(block.parts):
        symbols = [symbol for _, symbol in part.delayed]
        if part.name.startswith("self-attention"):
            assert part.inputs == ((number,) if cell == "lstm" else ())
            assert part.delayed == ((number + 2, "s_1 .. s_{j-1}"),)
            assert (part.reads == "s_0") is encodes
            sizes.append(14)
        elif part.name.startswith(cell.upper()):
            own = cells.pop(0)
            own = getattr(own, "cell", own)
            assert sizes[part.inputs[0]] == own.input_weight.shape[1]
            assert ("c_{j-1}" in symbols) is (own.context_weight is not None)
            assert ("s_{j-1}" in symbols) is (kind is Recurrent)
            sizes.append(14)
        elif part.name == "attention":
            assert (part.reads, sizes[part.inputs[0]]) == ("h^Enc", 14)
            sizes.append(core.context_dim)
    assert cells == []
    assert block.parts[-1].name == "readout"
    assert sum(sizes[point] for point in block.parts[-1].inputs) == core.readout.in_features
    assert any(part.name == "attention" for part in block.parts) is encodes


def draw(model, path):
    """Return the text of a picture, and the number of arrows of h^Enc and s_0 in it."""
    plot_outline(outline(model), path, title="a model")
    text = path.read_text(encoding="utf-8")
    return text, len(re.findall(r"fill: #2971c6; stroke: #2971c6", text))


def test_the_source_goes_into_every_block_that_reads_it(tmp_path):
    model = make_model("tokens", "transformer", "tokens")
    text, arrows = draw(model, tmp_path / "one.svg")
    assert ("targets" in text, "predictions" in text, arrows) == (True, True, 1)
    core = build_core(TransformerConfig(**SMALL, layers=3))
    core.decoder[1].feedforward = nn.Linear(12, 12)
    model = Model(reader=model.reader, core=core, writer=model.writer)
    blocks = [block for block in core_blocks(core, "decoder") if block.name]
    assert [block.times for block in blocks] == [1, 1, 1]
    assert blocks[1].parts[-2].detail == "Linear"
    assert draw(model, tmp_path / "three.svg")[1] == 3
    text = "\n".join(outline(model).lines())
    assert text.count("cross-attention (4, h^Enc)") == 3
    config = LanguageModelConfig(core=TransformerConfig(**SMALL, positions=LearnedConfig()))
    text, arrows = draw(build_language_model(config, vocab=23), tmp_path / "gpt.svg")
    assert ("cross" in text, arrows, "P: Learned" in text) == (False, 0, True)


def test_states_and_the_initial_state_are_arrows_of_a_recurrent_decoder(tmp_path):
    assert draw(make_model("tokens", "recurrent", "tokens"), tmp_path / "model.svg")[1] == 2


@torch.no_grad()
def test_a_class_token_is_before_the_items_that_are_encoded():
    core = Transformer(**SMALL, decodes=False)
    reader = ImageReader((2, 9, 6), 12, patch=3)
    model = Model(reader=reader, core=core, writer=ClassWriter(12, 3, pool=ClassToken(12)))
    stage = outline(model).encoding[-1]
    encoded = model.encoder(torch.rand(1, 2, 9, 6))
    assert stage.shape[1:] == encoded.items.shape[1:]
    assert stage.blocks[0].parts[0].name == "class token"


@pytest.mark.parametrize("name", ["query", "expand", "encoder", "readout", "attention", "cells.0"])
def test_replaced_modules_are_drawn_by_what_is_known(name):
    kind = Recurrent if name in ("encoder", "readout", "cells.0") else Transformer
    core = kind(width=12)
    own = next(path for path, _ in core.named_modules() if path.endswith(name))
    core.set_submodule(own, nn.Sequential(nn.Identity()))
    for stack in ("encoder", "decoder"):
        assert core_blocks(core, stack)[-1].lines()
