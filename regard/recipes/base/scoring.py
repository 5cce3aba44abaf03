"""Evaluation of text-to-text models: the metric of decoded outputs, and the loss."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.data.batches import EncodedPairs, TokenBatches
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.engines.engine import Engine
from regard.engines.torch import TorchEngine
from regard.models.model import Model
from regard.recipes.base.text_pairs import Codec, Texts
from regard.recipes.metrics.text import Metric
from regard.trace import Trace

_BATCH_TOKENS = 4096
_SAMPLES = 5


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def decode_sources(
    engine: Engine, sources: Sequence[Sequence[int]], decode: DecodeConfig, trace: Trace | None = None
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each source, given as ids without EOS."""
    return engine.search([[*ids, EOS] for ids in sources], config=decode, bos=BOS, eos=EOS, pad=PAD, trace=trace)


def loss_per_token(model: Model, pairs: EncodedPairs) -> float:
    """Return the mean of -log p over the target tokens, EOS included, in nats. The model must be in eval mode."""
    longest = max(max(pair) for pair in pairs.lengths)
    batches = TokenBatches(pairs, batch_tokens=max(_BATCH_TOKENS, longest), seed=0)
    total, count = 0.0, 0
    with torch.no_grad():
        for indices in batches.plan(0):
            loss = model.loss(batches.collate(0, indices).to(device_of(model)))
            total, count = total + float(loss.nll), count + loss.count
    return total / count


def score_texts(
    model: Model,
    texts: Texts,
    *,
    codec: Codec,
    metric: Metric,
    decode: DecodeConfig,
    sample: int | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Return the content of a report: the metric with its signature, nll and perplexity per target token, some outputs.

    sample: decode only the first so many texts; the loss is computed over all.
    engine: the engine that decodes; torch by default.
    """
    pairs = codec.encode(texts)
    sources = [pairs.sources[i].tolist() for i in range(min(sample or len(pairs), len(pairs)))]
    hypotheses = decode_sources(engine or TorchEngine(model), sources, decode)
    outputs = [codec.target.decode(best.tokens) for best, *_ in hypotheses]
    nll = loss_per_token(model, pairs)
    rows = list(zip(texts.sources, outputs, texts.targets, strict=False))
    return {
        "data": texts.origin,
        "examples": len(outputs),
        metric.name: metric.score(outputs, texts.targets[: len(outputs)]),
        "signature": metric.signature(),
        "nll": nll,
        "perplexity": math.exp(min(nll, 100.0)),
        "beam": decode.beam,
        "length_penalty": decode.length_penalty,
        "samples": [dict(zip(("source", "output", "reference"), row, strict=True)) for row in rows[:_SAMPLES]],
    }
