"""Small models of the test of the decoder in the page: viewer/test/live.json.

python -m tests.exchange.live_models     writes this file
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.attention.biases import DistanceBias
from regard.data.batches import pad
from regard.engines.lowering import lower
from regard.exchange.page import Packed, quantize
from regard.layers.positions.config import AlibiConfig, LearnedConfig, RotaryConfig
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import TransformerConfig

FILE = Path(__file__).parents[2] / "viewer" / "test" / "live.json"
VOCAB = 11
SOURCE, TARGET = [4, 9, 5, 10, 3], [2, 7, 4, 4, 8, 6]


def dequantize(model: nn.Module) -> nn.Module:
    """Round the matrices of a model to those of its page."""
    biases = [part for part in model.modules() if isinstance(part, DistanceBias)]
    exact = {id(weight) for bias in biases for weight in bias.parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2 and id(weight) not in exact:
                scales, rows = quantize(weight.numpy())
                weight.copy_(torch.from_numpy(rows * scales[:, None]))
    return model.eval()


def make_models() -> dict[str, nn.Module]:
    """Return an encoder-decoder and two language models, whose weights are sines."""
    sizes: dict[str, Any] = {"layers": 2, "width": 8, "feedforward": 12, "heads": 2}
    post = TransformerConfig(
        **sizes, norm_order="post", positions=LearnedConfig(max_length=16), window=3, pattern="SL"
    )
    llama = TransformerConfig(
        **(sizes | {"heads": 4}), key_heads=2, norm="rms", bias=False, gated=True,
        activation="silu", positions=RotaryConfig(), qk_norm="rms", window=3,
    )  # fmt: skip
    alibi = TransformerConfig(**sizes, activation="gelu", positions=AlibiConfig())
    models = {
        "post": build(ModelConfig(core=post, tie="target"), source_vocab=VOCAB, target_vocab=VOCAB),
        "llama": build_language_model(LanguageModelConfig(core=llama, tie="none"), vocab=VOCAB),
        "alibi": build_language_model(LanguageModelConfig(core=alibi), vocab=VOCAB),
    }
    for model in models.values():
        with torch.no_grad():
            for number, weight in enumerate(model.parameters()):
                phases = torch.arange(weight.numel(), dtype=torch.float64) * 1.7 + number
                weight.copy_(phases.sin().view(weight.shape) * 0.7 + (weight.dim() == 1))
        dequantize(model)
    return models


@torch.no_grad()
def content() -> dict[str, Any]:
    """Return the content of the file: form, numbers and logits of each model."""
    saved = {}
    for name, model in make_models().items():
        packed = Packed(16)
        form = packed.form(lower(model))
        source = [SOURCE] if form["source"] else []
        inputs = [pad([ids]) for ids in [*source, [*TARGET, 0]]]
        logits = model(*inputs) if source else model(target=inputs[0])
        saved[name] = {
            "form": form,
            **{kind: _encode(numbers) for kind, numbers in packed.chunks().items()},
            "source": source[0] if source else [],
            "target": TARGET,
            "logits": [[round(number, 6) for number in row] for row in logits[0].tolist()],
        }
    return saved


def _encode(numbers: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


if __name__ == "__main__":
    FILE.write_text(json.dumps(content()) + "\n", encoding="utf-8")
