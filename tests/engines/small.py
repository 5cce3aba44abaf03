"""Small models with different outputs, and the comparison of an engine with torch."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.rules import NO_RULES
from regard.engines.compiled.engine import _Generation
from regard.engines.compiled.program import Workspace
from regard.engines.engine import Engine
from regard.engines.lowering import UnsupportedModelError, lower
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import TransformerConfig

VOCAB = 13
SMALL = TransformerConfig(layers=2, width=12, heads=2, feedforward=20)
DECODE = DecodeConfig(beam=2, n_best=2, max_length=6)
SENTENCES = [[5, 6, 7, EOS], [8, EOS], [4, 9, 10, 11, 12, EOS]]
Change = Callable[[Any], None]


def encoder_decoder(core: Any = SMALL, *, tie: Any = "none", **options: Any) -> Any:
    torch.manual_seed(3)
    config = ModelConfig(core=core, tie=tie, **options)
    return perturb(build(config, source_vocab=VOCAB, target_vocab=VOCAB))


def language_model(core: Any = SMALL, **options: Any) -> Any:
    torch.manual_seed(3)
    return perturb(build_language_model(LanguageModelConfig(core=core, **options), vocab=VOCAB))


def perturb(model: Any) -> Any:
    """Change all weights so that none is 0 or 1, and PAD and BOS unlikely, as in CTranslate2."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        core = model.core
        if getattr(core.decoder_norm, "bias", None) is not None:
            core.decoder_norm.bias[0] += 6
        elif core.decoder[-1].feedforward.contract.bias is not None:
            core.decoder[-1].feedforward.contract.bias[0] += 20
        else:
            model.writer.inputs.table.weight[:, 0] += 4
        output, projection = model.writer.output_table, model.writer.output_projection
        row = torch.eye(output.embedding_dim)[0] if projection is None else projection.weight[0]
        # 6 less for the first number of hidden states.
        output.weight[[PAD, BOS]] -= 6 * row / row.square().sum()
    return model.eval()


def outputs(engine: Engine) -> Any:
    """Return the outputs of an engine, or the name of the error it raises."""
    try:
        if engine.limits.is_encoder_decoder:
            results = engine.search(SENTENCES, config=DECODE, bos=BOS, eos=EOS, pad=PAD)
            return [[(h.tokens, h.finished, round(h.score, 3)) for h in found] for found in results]
        config = SampleConfig(length=8, temperature=0)
        return engine.generate([[5, 6], [7]], config, window=12, seeds=[1, 2], banned=[PAD, BOS])
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  # engines need not run a model that torch cannot run
        return type(error).__name__


def next_logits(engine: Any, texts: list[list[int]]) -> torch.Tensor:
    """Return the logits (text, vocab) of the next token in the compiled engine."""
    options: Any = {"window": None, "banned": [], "rules": NO_RULES}
    sampling, seeds = SampleConfig(length=1, temperature=1.0), range(len(texts))
    run = _Generation(Workspace(engine._packed), texts, seeds, sampling, **options)
    for row, text in enumerate(texts):
        run.prefill(row, text)
    logits = np.empty((len(texts), len(engine._packed.target)), np.float32)
    run.step(run.lengths - 1, logits, 0, 1)
    return torch.from_numpy(logits)


def is_close(actual: Any, expected: Any) -> bool:
    if isinstance(actual, str) or isinstance(expected, str) or not isinstance(actual[0][0], tuple):
        return actual == expected
    pairs = zip(itertools.chain(*actual), itertools.chain(*expected), strict=True)
    return all(
        first[:2] == second[:2] and abs(first[2] - second[2]) < 0.01 for first, second in pairs
    )


def unsupported_reason(model: Any) -> str | None:
    """Return why compiled code does not support a model; None if it does."""
    try:
        lower(model)
    except UnsupportedModelError as error:
        return str(error)
    return None


def vary(model: Any) -> Any:
    """Spread weights as after training: freshly initialized models give uniform predictions."""
    with torch.no_grad():
        for parameter in model.parameters():
            # Also for parameters initialized to a constant.
            std = float(parameter.std().nan_to_num()) or 1.0
            parameter.add_(0.3 * std * torch.randn_like(parameter))
    return model.eval()


def check(model: Any) -> str | None:
    """Check that compiled code refuses the model or equals torch; return the reason if any."""
    reason = unsupported_reason(model)
    if reason is None:
        assert is_close(outputs(prepare("compiled", model)), outputs(TorchEngine(model)))
        return None
    assert len(reason) < 300
    with pytest.raises(UserError, match="engine 'compiled' does not support this model"):
        prepare("compiled", model)
    return reason
