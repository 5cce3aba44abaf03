"""Loss of text-to-text models on other pairs."""

import torch
from torch import nn

from regard.data.batches import EncodedPairs, TokenBatches
from regard.models.model import Model
from regard.system.progress import track

_BATCH_TOKENS = 4096


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def loss_per_token(model: Model, pairs: EncodedPairs) -> float:
    """Return the mean of -log p over target tokens, EOS included, in nats; needs eval mode."""
    longest = max(max(pair) for pair in pairs.lengths)
    batches = TokenBatches(pairs, batch_tokens=max(_BATCH_TOKENS, longest), seed=0)
    total, count = 0.0, 0
    with torch.no_grad():
        for indices in track(batches.plan(0), "texts (loss)", len(pairs)):
            loss = model.loss(batches.collate(0, indices).to(device_of(model)))
            total, count = total + float(loss.nll), count + loss.count
    return total / count
