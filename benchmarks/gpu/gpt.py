"""Training a language model: 12 blocks of width 768, context 1,024, 16 windows a batch, 50,304
random tokens, no dropout. `compiled`: torch.compile of the model, in regard `--train.compile`.
"""

import torch
from torch import nn

from benchmarks.gpu.measure import Setting, ratio, verdict
from benchmarks.gpu.training import PRECISION, compare_steps, select_installed
from benchmarks.peers.gpt_own import Sizes
from benchmarks.peers.rounds import OURS
from benchmarks.peers.stepping import Step, our_step, their_step
from benchmarks.peers.train_gpt import COMPILED, our_core, peer
from regard.attention.masks import Padded
from regard.data.batches import Batch
from regard.data.text.windows import WindowBatch
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig

PLAIN, GPT2 = "plain PyTorch GPT", "Transformers, GPT-2"
NAMES = (OURS, OURS + COMPILED, PLAIN, PLAIN + COMPILED, GPT2, "x-transformers, flash")


def contestant(name: str, sizes: Sizes, device: torch.device) -> Step:
    """Return a training step of a newly initialized model."""
    torch.manual_seed(1)
    if name.startswith(OURS):
        config = LanguageModelConfig(core=our_core(sizes), dropout=0.0)
        model = build_language_model(config, vocab=sizes.vocab)
        return our_step(model, PRECISION, device=device, compiled=name.endswith(COMPILED))
    module, logits = peer(name.removesuffix(COMPILED), sizes, 0.0, 0.0)
    module.to(device).train()
    if name.endswith(COMPILED):
        logits = torch.compile(logits, dynamic=False)

    def mean_loss(batch: WindowBatch) -> torch.Tensor:
        ids = batch.target.items
        return nn.functional.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return their_step(list(module.parameters()), mean_loss, PRECISION)


def run(setting: Setting) -> None:
    sizes, rows = Sizes(layers=12, width=768, heads=12, context=1024, vocab=50_304), 16
    if setting.quick:
        sizes, rows = Sizes(layers=1, width=16, heads=2, context=8, vocab=32), 2
    torch.manual_seed(1)
    batches, lengths = [], torch.full((rows,), sizes.context + 1)
    for _ in range(4):
        ids = torch.randint(5, sizes.vocab, (rows, sizes.context + 1))
        batches.append(Batch(None, Padded(ids, lengths), tuple(range(rows))))
    makers = {
        name: lambda n=name: contestant(n, sizes, setting.device)
        for name in select_installed(NAMES)
    }
    times, peaks = compare_steps(makers, batches, 4 * rows * sizes.context, setting)
    print(verdict(f"regard beside {PLAIN}", ratio(times, PLAIN, OURS), "least", 1.0))
    print(verdict(f"regard beside {GPT2}", ratio(times, GPT2, OURS), "least", 1.1))
    compiled = ratio(times, PLAIN + COMPILED, OURS + COMPILED)
    print(verdict("both compiled, beside plain PyTorch", compiled, "least", 1.0))
    least = min(peak for name, peak in peaks.items() if not name.startswith(OURS))
    print(verdict("peak memory / least of a peer", peaks[OURS] / least, "most", 0.6))
