"""The Llama block equals that of Transformers: rotary, RMSNorm, SwiGLU, grouped queries, no biases.

Source: touvron2023; scaled positions dubey2024.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from regard.attention.memory import (
    KeyValueCache,
    QuantizedMemory,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.layers.blocks import DecoderBlock
from regard.layers.positions.config import RotaryConfig
from regard.layers.positions.rotary import LinearScaling, Llama3Scaling, Rotary
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from tests.helpers import close

WIDTH, HEADS, KEY_HEADS, HIDDEN, TIME, EPS = 24, 4, 2, 40, 19, 1e-5
SCALINGS: dict[str, tuple[RotaryConfig, dict[str, Any]]] = {
    "plain": (RotaryConfig(), {"rope_type": "default", "rope_theta": 10_000.0}),
    "linear": (
        RotaryConfig(base=500.0, scaling="linear", factor=4.0),
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    ),
    "yarn": (
        RotaryConfig(
            base=90.0,
            scaling="yarn",
            factor=4.0,
            beta_fast=3.0,
            beta_slow=0.2,
            original_max_length=16,
        ),
        {
            "rope_type": "yarn",
            "rope_theta": 90.0,
            "factor": 4.0,
            "beta_fast": 3.0,
            "beta_slow": 0.2,
            "original_max_position_embeddings": 16,
        },
    ),
    "llama3": (
        RotaryConfig(
            base=50.0, scaling="llama3", factor=8.0, high_freq_factor=3.0, original_max_length=64
        ),
        {
            "rope_type": "llama3",
            "rope_theta": 50.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 3.0,
            "original_max_position_embeddings": 64,
        },
    ),
}
NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "feedforward.gate",
    "mlp.up_proj": "feedforward.expand",
    "mlp.down_proj": "feedforward.contract",
    "input_layernorm": "add_attention.norm",
    "post_attention_layernorm": "add_feedforward.norm",
}


def their_model(rope: dict[str, Any]) -> LlamaModel:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        rms_norm_eps=EPS,
        rope_parameters=rope,
        attn_implementation="eager",
        initializer_range=0.3,
    )
    model = LlamaModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


def our_core(positions: RotaryConfig, theirs: LlamaModel) -> Transformer:
    """Return a decoder with the weights of a LlamaModel."""
    config = TransformerConfig(
        layers=3,
        width=WIDTH,
        heads=HEADS,
        key_heads=KEY_HEADS,
        feedforward=HIDDEN,
        positions=positions,
        norm="rms",
        norm_eps=EPS,
        activation="silu",
        gated=True,
        bias=False,
    )
    core = Transformer(config, encodes=False).eval()
    state = {"decoder_norm.weight": theirs.norm.weight}
    for layer, block in enumerate(theirs.layers):
        for name, ours in NAMES.items():
            state[f"decoder.{layer}.{ours}.weight"] = block.get_submodule(name).weight
    core.load_state_dict(state)  # strict: there is no other weight
    return core


def hidden_of(core: Transformer, items: Tensor) -> Tensor:
    return core(items, core.start(None, rows=len(items)))


@pytest.mark.parametrize("name", SCALINGS)
def test_llama_equals_that_of_transformers(name):
    positions, rope = SCALINGS[name]
    theirs, items = their_model(rope), torch.randn(2, TIME, WIDTH)
    core = our_core(positions, theirs)
    with torch.no_grad():
        expected = theirs(inputs_embeds=items).last_hidden_state
        torch.testing.assert_close(hidden_of(core, items), expected, rtol=1e-5, atol=1e-5)
        state = core.start(None, rows=2)
        for time in range(TIME):
            out, state = core.step(items[:, time], state)
            torch.testing.assert_close(out, expected[:, time], rtol=1e-5, atol=1e-5)


def test_gradients_equal_those_of_transformers():
    positions, rope = SCALINGS["llama3"]
    theirs, items = their_model(rope).double(), torch.randn(2, TIME, WIDTH).double()
    core, direction = our_core(positions, theirs).double(), torch.randn(2, TIME, WIDTH).double()
    (hidden_of(core, items) * direction).sum().backward()
    (theirs(inputs_embeds=items).last_hidden_state * direction).sum().backward()
    for layer, block in enumerate(theirs.layers):
        for name, ours in NAMES.items():
            expected = block.get_submodule(name).weight.grad
            actual = core.get_submodule(f"decoder.{layer}.{ours}").weight.grad
            # Transformers rotates by float32 angles.
            torch.testing.assert_close(
                actual, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
            )


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("linear", LinearScaling(4.0)),
        ("llama3", Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ("llama3", Llama3Scaling(32.0)),
    ],
)
@pytest.mark.parametrize(("base", "dim"), [(500_000.0, 128), (10_000.0, 64), (100.0, 6)])
def test_scaled_angles_are_those_of_transformers(name, scaling, base, dim):
    rope = {"rope_type": name, "rope_theta": base, "factor": scaling.factor}
    if name == "llama3":
        rope |= {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": scaling.original_max_length,
        }
    config = LlamaConfig(hidden_size=2 * dim, num_attention_heads=2, rope_parameters=rope)
    expected, factor = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"))
    assert factor == 1.0
    rates = Rotary(dim, base=base, scaling=scaling).rates()
    torch.testing.assert_close(rates.float(), expected, rtol=1e-5, atol=0)


PASTS: dict[str, Callable[[DecoderBlock, Tensor], KeyValueCache]] = {
    "growing": lambda block, item: block.attention.memory(item),
    "static": lambda block, item: StaticMemory.of(block.attention.memory(item), capacity=TIME),
    "ring": lambda block, item: block.attention.extend(empty_ring(block), item),
    "sliding": lambda block, item: SlidingMemory.of(block.attention.memory(item), window=TIME),
    "quantized": lambda block, item: QuantizedMemory.of(block.attention.memory(item)),
}


def empty_ring(block: DecoderBlock) -> RingMemory:
    key_dim = len(block.attention.key.weight) // KEY_HEADS
    return RingMemory.empty((2, KEY_HEADS), window=TIME, key_dim=key_dim, dtype=torch.float64)


@pytest.mark.parametrize("name", PASTS)
def test_steps_equal_the_forward_pass_with_every_memory(name):
    positions, rope = SCALINGS["llama3"]
    core = our_core(positions, their_model(rope)).double()
    items = torch.randn(2, TIME, WIDTH).double()
    with torch.no_grad():
        for block in core.decoder:
            expected, past = block(items, None), None
            for time in range(TIME):
                item = items[:, time : time + 1]
                if past is None:
                    normed = block.add_attention.norm(item)
                    past = PASTS[name](block, normed)
                    out = block._cross_and_feedforward(item + block.attention(normed, past), None)
                else:
                    out, past = block.step(item, past, None)
                reference = expected[:, time : time + 1]
                if name == "quantized":
                    torch.testing.assert_close(out, reference, rtol=0.1, atol=0.1)
                else:
                    close(out, reference)
            assert int(past.length) == TIME
