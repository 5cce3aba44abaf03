"""Compile the loops that most tests need, once, before the processes of `make test` start.

    python -m tests.warm_up float32|float64|models

Without it each process meets loops that are not compiled yet, and waits for the one that compiles
them. Loops of other types and processors are compiled by their own tests.
"""

import sys

import torch

from regard.attention.attend import attend
from regard.attention.masks import Padded
from regard.attention.scores import Additive
from regard.data.batches import Batch
from regard.engines.registry import prepare
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from tests.engines.small import SMALL, VOCAB, encoder_decoder, language_model, outputs


def train(core: TransformerConfig | RecurrentConfig, dtype: torch.dtype) -> None:
    """Compute a loss and its gradients, by which a decoder's loops are compiled."""
    config = ModelConfig(core=core)
    model = build(config, source_vocab=VOCAB, target_vocab=VOCAB, label_smoothing=0.1)
    ids = Padded(torch.randint(4, VOCAB, (3, 6)), torch.tensor([6, 4, 2]))
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        loss = model.loss(Batch(ids, ids, (0, 1, 2))).total
    loss.backward()


def read(dtype: torch.dtype) -> None:
    """Read additively, one query and several, with gradients."""
    score = Additive(4, 4, 6).to(dtype)
    keys = torch.randn(2, 7, 4, dtype=dtype, requires_grad=True)
    for count in (1, 5):
        attend(torch.randn(2, count, 4, dtype=dtype), (keys, keys), score=score).sum().backward()


def compile_models() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        train(SMALL, dtype)
        train(RecurrentConfig(width=12, hidden=14), dtype)
    for compute_type in ("float32", "int8"):
        outputs(prepare("compiled", encoder_decoder(), compute_type=compute_type))
    outputs(prepare("compiled", language_model()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "models":
        compile_models()
    else:
        read(getattr(torch, sys.argv[1]))
