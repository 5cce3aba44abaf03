"""Models with the settings of public families equal those of Transformers, in each engine."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from regard.decode.config import SampleConfig
from regard.engines.compiled.engine import _Generation
from regard.engines.registry import prepare
from regard.layers.positions.config import RotaryConfig
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model

WIDTH, HIDDEN, VOCAB, TIME = 24, 40, 17, 11
SIZES = {"layers": 2, "width": WIDTH, "heads": 4, "feedforward": HIDDEN}
BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.expand": "mlp.up_proj",
    "feedforward.contract": "mlp.down_proj",
    "add_attention.norm": "input_layernorm",
    "add_feedforward.norm": "post_attention_layernorm",
}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def randomize(model: nn.Module) -> Any:
    """Spread all weights, so that none is 0 or 1."""
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        weight.copy_(torch.randn_like(weight) * 0.3 + (1 if "norm" in name.lower() else 0))
    return model.eval()


def load(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Copy weights by the names of modules or parameters; all of ours must be among them."""
    given, state = theirs.state_dict(), {}
    for name, other in names.items():
        if other in given:
            state[name] = given[other]
        for kind in ("weight", "bias"):
            if f"{other}.{kind}" in given:
                state[f"{name}.{kind}"] = given[f"{other}.{kind}"]
    ours.load_state_dict(state)


def blocks(ours: str, theirs: str, names: dict[str, str]) -> dict[str, str]:
    return {
        f"{ours}.{layer}.{name}": f"{theirs}.{layer}.{other}"
        for layer in range(2)
        for name, other in names.items()
    }


def compiled_logits(model: Model, tokens: Tensor, compute_type: str = "float32") -> Tensor:
    """Return the logits after each token of texts (rows, time), one step after the other."""
    engine: Any = prepare("compiled", model, compute_type=compute_type)
    workspace = engine._workspaces.get()
    texts, config = tokens[:, :1].tolist(), SampleConfig(length=tokens.shape[1], temperature=0)
    seeds = [0] * len(texts)
    batch = _Generation(workspace, texts, seeds, config, window=None, banned=[])
    logits = np.zeros((tokens.shape[1], len(texts), VOCAB), np.float32)
    for time in range(tokens.shape[1]):
        batch.tokens[:] = tokens[:, time].numpy()
        batch.step(np.full(len(texts), time), np.zeros((0, 0), np.int64), logits[time])
    return torch.from_numpy(logits).transpose(0, 1)


def check_language_model(model: Model, expected: Tensor, tokens: Tensor) -> None:
    """Check the logits of all tokens at once, step by step, and by compiled code."""
    model.eval()
    core = model.core
    hidden = core(model.writer.embed(tokens), core.begin(None, rows=len(tokens)))
    steps, state = [], model.start(rows=len(tokens))
    for time in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, time], state)
        steps.append(logits)
    found = {
        "at once": model.decoder(hidden),
        "steps": torch.stack(steps, 1),
        "compiled": compiled_logits(model, tokens),
    }
    for name, logits in found.items():
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5, msg=name)
    error = compiled_logits(model, tokens, "int8") - expected
    assert 0 < error.std() < 0.05 * expected.std()


def their_config(kind: type, **options: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_implementation": "eager",
    }
    return kind(**sizes | options)


@pytest.mark.parametrize("tie", ["target", "none"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_rotary_families(family: str, tie: Any) -> None:
    config = their_config(
        getattr(transformers, f"{family}Config"),
        rms_norm_eps=1e-3,
        tie_word_embeddings=tie == "target",
    )
    theirs = randomize(getattr(transformers, f"{family}ForCausalLM")(config))
    core = TransformerConfig(
        **SIZES,
        key_heads=2,
        activation="silu",
        gated=True,
        norm="rms",
        norm_eps=1e-3,
        bias=False,
        attention_bias="qkv" if family == "Qwen2" else None,
        positions=RotaryConfig(),
    )
    ours = build_language_model(LanguageModelConfig(core=core, tie=tie), vocab=VOCAB)
    names = {
        "writer.inputs.table": "model.embed_tokens",
        "writer.output_table": "lm_head",
        "core.decoder_norm": "model.norm",
    }
    load(ours, theirs, names | blocks("core.decoder", "model.layers", BLOCK))
    tokens = torch.randint(VOCAB, (3, TIME))
    check_language_model(ours, theirs(tokens).logits, tokens)
