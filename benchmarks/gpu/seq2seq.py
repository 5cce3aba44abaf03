"""Training an encoder-decoder: 6 + 6 blocks of width 512, Multi30k batches of at most 16,384 tokens
of the longer side, 10,000 subwords, label smoothing 0.1, dropout 0.1 (in the peers also of
attention weights, which regard does not drop).
"""

import torch

from benchmarks.gpu.measure import Setting, verdict
from benchmarks.gpu.training import PRECISION, compare_steps, select_installed
from benchmarks.peers.material import VOCAB, translation_batches
from benchmarks.peers.rounds import OURS
from benchmarks.peers.stepping import Step, our_step, their_step
from benchmarks.peers.translators import DROPOUT, SIZES, SMOOTHING, peer
from regard.data.batches import count_target_tokens
from regard.models.build import build
from regard.models.config import ModelConfig

NAMES = (
    OURS,
    "Transformers, Marian",
    "Transformers, BART",
    "torch.nn.Transformer",
    "x-transformers, flash",
)


def contestant(name: str, size: str, device: torch.device) -> Step:
    """Return a training step of a newly initialized model."""
    torch.manual_seed(1)
    if name == OURS:
        sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB, "label_smoothing": SMOOTHING}
        model = build(ModelConfig(core=SIZES[size], dropout=DROPOUT), **sizes)
        return our_step(model, PRECISION, device=device)
    module, mean_loss = peer(name, SIZES[size])
    module.to(device).train()
    return their_step(list(module.parameters()), mean_loss, PRECISION)


def run(setting: Setting) -> None:
    assert setting.data is not None
    size, count, tokens = "6+6 x 512", 8, 16_384
    if setting.quick:
        size, count, tokens = "4+4 x 128", 1, 256
    batches = translation_batches(setting.data, count, batch_tokens=tokens)
    makers = {
        name: lambda n=name: contestant(n, size, setting.device) for name in select_installed(NAMES)
    }
    total = sum(count_target_tokens(batch) for batch in batches)
    times, _ = compare_steps(makers, batches, total, setting)
    best = min(time for name, time in times.items() if name != OURS)
    print(verdict("regard beside the best peer", best, "least", 1.2))
