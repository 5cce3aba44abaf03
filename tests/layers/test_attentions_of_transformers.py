"""Self-attention of Qwen3, Gemma 3, gpt-oss and Qwen3-Next: Transformers' modules and ours."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_next import modeling_qwen3_next

from regard.attention.choices import SinkSoft
from regard.attention.masks import causal, window
from regard.layers.multihead import MultiHead
from regard.layers.norms import RMSNorm
from regard.layers.positions.rotary import Rotary, YarnScaling

WIDTH, HEADS, KEY_HEADS, HEAD, TIME, WINDOW = 24, 4, 2, 8, 19, 5
SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "attn_implementation": "eager",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150.0,
    "factor": 4.0,
    "beta_fast": 3.0,
    "beta_slow": 0.5,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
GEMMA = {"rope_type": "default", "rope_theta": 50.0}


def ours(theirs: nn.Module, rotary: Rotary, *, scale: int = 0, **options: Any) -> MultiHead:
    """Return our layer with the weights of theirs; norms multiply by `scale` plus theirs."""
    has_norm = hasattr(theirs, "q_norm")
    norm = (lambda size: RMSNorm(size, eps=1e-6)) if has_norm else None
    layer = MultiHead(WIDTH, HEADS, key_heads=KEY_HEADS, head_dim=HEAD, positions=rotary,
                      qk_norm=norm, projection_bias=theirs.k_proj.bias is not None,
                      **options).eval()  # fmt: skip
    state = {}
    for name in ("query", "key", "value", "output"):
        for kind, weight in getattr(theirs, f"{name[0]}_proj").named_parameters():
            state[f"{name}.{kind}"] = weight
    if layer.output_gate is not None:
        both = state.pop("query.weight").unflatten(0, (HEADS, 2, HEAD))
        state["query.weight"], state["output_gate.weight"] = (
            half.flatten(0, 1) for half in both.unbind(1)
        )
    if norm is not None:
        for name in ("query_norm", "key_norm"):
            state[f"{name}.weight"] = scale + getattr(theirs, f"{name[0]}_norm").weight
    if isinstance(layer.read.choice, SinkSoft):
        state["read.choice.sink"] = theirs.sinks.view(-1, 1, 1)
    layer.load_state_dict(state)
    return layer


def qwen3() -> tuple[Any, Any, MultiHead]:
    rope = {"rope_type": "default", "rope_theta": 50.0}
    config = hf.Qwen3Config(**SIZES, rope_parameters=rope, use_sliding_window=True)
    theirs = randomize(modeling_qwen3.Qwen3Attention(config, 0))
    return (
        theirs,
        modeling_qwen3.Qwen3RotaryEmbedding(config),
        ours(theirs, Rotary(HEAD, base=50.0)),
    )


def gemma3() -> tuple[Any, Any, MultiHead]:
    ropes = {"sliding_attention": GEMMA, "full_attention": GEMMA}
    config = hf.Gemma3TextConfig(**SIZES, rope_parameters=ropes, query_pre_attn_scalar=HEAD)
    theirs = randomize(modeling_gemma3.Gemma3Attention(config, 0))
    embedding = modeling_gemma3.Gemma3RotaryEmbedding(config)
    layer = ours(theirs, Rotary(HEAD, base=50.0), scale=1)
    return theirs, lambda x, at: embedding(x, at, "sliding_attention"), layer


def gpt_oss() -> tuple[Any, Any, MultiHead]:
    config = hf.GptOssConfig(**SIZES, rope_parameters=YARN, attention_bias=True)
    theirs = randomize(modeling_gpt_oss.GptOssAttention(config, 0))
    scaling = YarnScaling(4.0, beta_fast=3.0, beta_slow=0.5, original_max_length=16, truncate=False)
    layer = ours(theirs, Rotary(HEAD, base=150.0, scaling=scaling), choice=SinkSoft(HEADS))
    return theirs, modeling_gpt_oss.GptOssRotaryEmbedding(config), layer


def qwen3_next() -> tuple[Any, Any, MultiHead]:
    rope = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}
    sizes = {name: value for name, value in SIZES.items() if name != "sliding_window"}
    sizes["layer_types"] = ["full_attention"] * 2
    config = hf.Qwen3NextConfig(**sizes, rope_parameters=rope)
    theirs = randomize(modeling_qwen3_next.Qwen3NextAttention(config, 0))
    layer = ours(theirs, Rotary(HEAD // 2, base=50.0), scale=1, gate="element")
    return theirs, modeling_qwen3_next.Qwen3NextRotaryEmbedding(config), layer


def randomize(theirs: Any) -> Any:
    for weight in theirs.parameters():
        nn.init.uniform_(weight, -0.7, 0.7)
    return theirs.eval()


@pytest.mark.parametrize("make", [qwen3, gemma3, gpt_oss, qwen3_next])
@torch.no_grad()
def test_self_attention_is_that_of_transformers(make):
    torch.manual_seed(2)
    theirs, embedding, layer = make()
    items, places = torch.randn(2, TIME, WIDTH), torch.arange(TIME)
    distance = places[:, None] - places
    is_near = distance < (TIME if make is qwen3_next else WINDOW)
    added = torch.zeros(TIME, TIME).masked_fill(~((distance >= 0) & is_near), float("-inf"))
    mask = causal() if make is qwen3_next else window(WINDOW)
    rotations = embedding(items, places[None])
    expected = theirs(items, rotations, added[None, None])[0]
    torch.testing.assert_close(layer(items, mask=mask), expected, rtol=1e-5, atol=1e-5)
    memory = layer.extend(layer.memory(items[:, :-1]), items[:, -1:])
    last = layer(items[:, -1:], memory, mask=mask)
    torch.testing.assert_close(last, expected[:, -1:], rtol=1e-5, atol=1e-5)
