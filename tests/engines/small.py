"""Small models whose answers differ, and what an engine makes of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.engines.engine import Engine
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare, refusal
from regard.errors import UserError
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig, TransformerConfig

VOCAB = 13
SMALL = TransformerConfig(layers=2, width=12, heads=2, feedforward=20, max_positions=30)
ENGINES = ("compiled", "ctranslate2")
DECODE = DecodeConfig(beam=2, n_best=2, max_length=6)
SENTENCES = [[5, 6, 7, EOS], [8, EOS], [4, 9, 10, 11, 12, EOS]]
Change = Callable[[Any], None]


def translator(core: Any = SMALL, *, tie: Any = "none") -> Any:
    torch.manual_seed(3)
    return moved(build(ModelConfig(core=core, tie=tie), source_vocab=VOCAB, target_vocab=VOCAB))


def speaker(core: Any = SMALL) -> Any:
    torch.manual_seed(3)
    return moved(build_language_model(LanguageModelConfig(core=core), vocab=VOCAB))


def moved(model: Any) -> Any:
    """No weight is 0 or 1, and PAD and BOS are unlikely: CTranslate2 leaves them out of its sums."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        core = model.core
        if isinstance(core.decoder_norm, nn.LayerNorm):
            core.decoder_norm.bias[0] += 6
        output = model.writes.output_table if hasattr(model, "writes") else model.reads.table
        output.weight[[PAD, BOS], 0] -= 6
    return model.eval()


def asked(engine: Engine) -> Any:
    """What an engine answers, or what kind of error it raises."""
    try:
        if engine.limits.searches:
            found = engine.search(SENTENCES, config=DECODE, bos=BOS, eos=EOS, pad=PAD)
            return [[(one.tokens, one.finished, round(one.score, 3)) for one in some] for some in found]
        config = SampleConfig(length=8, temperature=0)
        return engine.generate([[5, 6], [7]], config, window=12, seeds=[1, 2], banned=[PAD, BOS])
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  # a model that torch cannot run is one that no engine need run
        return type(error).__name__


def near(found: Any, expected: Any) -> bool:
    if isinstance(found, str) or isinstance(expected, str) or not isinstance(found[0][0], tuple):
        return found == expected
    pairs = zip((one for some in found for one in some), (one for some in expected for one in some), strict=True)
    return all(one[:2] == other[:2] and abs(one[2] - other[2]) < 0.01 for one, other in pairs)


def check(model: Any, name: str) -> str | None:
    """Raises unless the engine answers as torch does, or refuses; with which reason."""
    reason = refusal(name, model)
    if reason is None:
        assert near(asked(prepare(name, model)), asked(TorchEngine(model)))
        return None
    assert len(reason) < 300
    with pytest.raises(UserError, match=f"engine '{name}' does not support this model"):
        prepare(name, model)
    return reason
