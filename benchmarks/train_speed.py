"""Training speed beside torch.nn.Transformer: the same sizes, batches, loss and optimiser, one run.

    python benchmarks/train_speed.py --data FOLDER [--precision float32|bfloat16] [--batches N] [--memory kept|default]

FOLDER holds Multi30k as {train}.lc.norm.tok.{en,de}.gz. Each round trains every contestant one step on the same
batch, one after the other, so that the machine's mood is shared; the ratio is taken round by round. Contestants:

    regard            this library
    torch             torch.nn.Transformer, as it comes: dropout p everywhere it puts it
    torch-as-ours     the same with dropout only where ours has it (not on attention weights nor inside the
                      feed-forward network)

All tie one embedding table and train with label smoothing 0.1, dropout 0.1 and fused Adam.
"""

import argparse
import gzip
import math
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from regard.data.batches import Batch, Encoded, TokenBatches
from regard.data.config import TokeniserConfig
from regard.data.tokenise import train_tokenisers
from regard.models.build import build
from regard.models.config import ModelConfig, TransformerConfig
from regard.train.allocator import keep_freed_memory

SIZES = {
    "tiny": TransformerConfig(layers=4, width=128, heads=4, feedforward=256, norm="post"),
    "base": TransformerConfig(layers=6, width=512, heads=8, feedforward=2048, norm="post"),
}
DROPOUT, SMOOTHING = 0.1, 0.1


class TorchModel(nn.Module):
    """torch.nn.Transformer with tied embeddings and the paper's positions."""

    def __init__(self, config: TransformerConfig, vocab: int, *, inner_dropout: bool):
        super().__init__()
        width, layers = config.width, config.layers
        self.table = nn.Embedding(vocab, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        angle = torch.arange(1024.0)[:, None] * rate
        self.register_buffer("positions", torch.cat((angle.sin(), angle.cos()), -1))
        self.dropout = nn.Dropout(DROPOUT)
        self.core = nn.Transformer(width, config.heads, layers, layers, config.feedforward, DROPOUT, batch_first=True)
        if not inner_dropout:
            for layer in (*self.core.encoder.layers, *self.core.decoder.layers):
                layer.dropout.p = 0.0
                layer.self_attn.dropout = 0.0
            for layer in self.core.decoder.layers:
                layer.multihead_attn.dropout = 0.0

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.table(ids) * math.sqrt(self.table.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def mean_loss(self, batch: Batch) -> torch.Tensor:
        source, target = batch.source.items, batch.target.items
        inputs, wanted = target[:, :-1], target[:, 1:]
        absent = source.eq(0)
        future = torch.triu(torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool), 1)
        hidden = self.core(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=future,
            src_key_padding_mask=absent,
            memory_key_padding_mask=absent,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(hidden, self.table.weight)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=0, label_smoothing=SMOOTHING
        )


class OurModel(nn.Module):
    """This library's, with its loss as a mean."""

    def __init__(self, config: TransformerConfig, vocab: int):
        super().__init__()
        self.model = build(
            ModelConfig(core=config, dropout=DROPOUT),
            source_vocab=vocab,
            target_vocab=vocab,
            label_smoothing=SMOOTHING,
        )

    def mean_loss(self, batch: Batch) -> torch.Tensor:
        loss = self.model.loss(batch)
        return loss.total / loss.count


def read_batches(folder: Path, vocab: int) -> list[Batch]:
    """All batches of one epoch of Multi30k English to German."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(folder / f"train.lc.norm.tok.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append([line.strip() for line in file])
    source, target = train_tokenisers(*sides, TokeniserConfig(vocab_size=vocab))
    encoded = Encoded.of(source.encode_batch(sides[0]), target.encode_batch(sides[1]))
    batches = TokenBatches(encoded, batch_tokens=4096, seed=1)
    return [batches.collate(0, indices) for indices in batches.plan(0)]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, precision: str) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = model.mean_loss(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def contestants(config: TransformerConfig, vocab: int) -> dict[str, nn.Module]:
    """Fresh models of the same sizes."""
    torch.manual_seed(1)
    return {
        "torch": TorchModel(config, vocab, inner_dropout=True),
        "torch-as-ours": TorchModel(config, vocab, inner_dropout=False),
        "regard": OurModel(config, vocab),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--memory", choices=("kept", "default"), default="kept", help="freed memory kept or not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=10000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    batches = read_batches(options.data, options.vocab)[: options.batches + 2]
    models = contestants(SIZES[options.size], options.vocab)
    optimizers = {name: torch.optim.Adam(m.parameters(), lr=1e-4, fused=True) for name, m in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number, batch in enumerate(batches):
        for name, model in models.items():
            taken = train_step(model, optimizers[name], batch, options.precision)
            if number >= 2:  # the first two warm up
                seconds[name].append(taken)
    tokens = [batch.num_target_tokens for batch in batches[2:]]
    print(
        f"{options.size} {options.precision} memory={options.memory} threads={options.threads} "
        f"torch {torch.__version__}"
    )
    print(f"{len(tokens)} batches, {statistics.mean(tokens):.0f} target tokens each")
    print(f"{'contestant':15} {'target tokens/s min / median / max':>36} {'regard / it, median (min-max)':>32}")
    for name, taken in seconds.items():
        rates = sorted(n / s for n, s in zip(tokens, taken, strict=True))
        ratios = sorted(s / ours for s, ours in zip(taken, seconds["regard"], strict=True))
        spread = f"{rates[0]:.0f} / {statistics.median(rates):.0f} / {rates[-1]:.0f}"
        print(f"{name:15} {spread:>36} {statistics.median(ratios):>20.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
