"""Training speed compared with torch.nn.Transformer: the same sizes, batches, loss and optimizer,
in one run.

    python benchmarks/train_speed.py --data FOLDER [--size tiny|base] [--precision float32|bfloat16]
    ... python benchmarks/train_speed.py --size gpt|vit [--precision float32|bfloat16] ...

FOLDER holds Multi30k as {train}.lc.norm.tok.{en,de}.gz. Each round trains every contestant one step
on the same batch, in turn, so that load on the machine affects all; the ratio is taken by round.
Contestants:

    regard            this library
    torch             torch.nn.Transformer (TransformerEncoder for gpt and vit) with its default
    dropout
    torch-as-ours     the same with dropout only where regard has it (not on attention weights nor
                      inside the feed-forward network)

tiny, base: 4+4 blocks of 128, 6+6 of 512, post-norm; one tied table, label smoothing 0.1, dropout
0.1.
gpt: 6 blocks of 384, 6 heads, pre-norm, 65 characters, 12 x 256 of them, dropout 0.2.
vit: 12 blocks of 192, 3 heads, pre-norm, 64 images of 32 x 32, patches of 4, no dropout.
All with fused Adam. The last line is the rate of the products in regard's step as a share of
torch.mm's rate.
"""

import argparse
import gzip
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from regard.attention.masks import Padded, Unpadded
from regard.data.batches import EncodedPairs, PairBatch, TokenBatches, count_target_tokens
from regard.data.config import PairTokenizerConfig
from regard.data.tokenizer import train_tokenizers
from regard.layers.positions.config import LearnedConfig, NoPositionsConfig
from regard.models.build import build, build_classifier, build_language_model
from regard.models.config import ClassifierConfig, LanguageModelConfig, ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.system.allocator import keep_freed_memory

SIZES = {
    "tiny": TransformerConfig(layers=4, width=128, heads=4, feedforward=256, norm_order="post"),
    "base": TransformerConfig(layers=6, width=512, heads=8, feedforward=2048, norm_order="post"),
}
DROPOUT, SMOOTHING = 0.1, 0.1
Clock = Callable[[], float]


class Text(NamedTuple):
    """Windows of characters."""

    target: Padded
    source: None = None


class Images(NamedTuple):
    """Images and their classes."""

    source: torch.Tensor
    target: torch.Tensor


class TorchModel(nn.Module):
    """torch.nn.Transformer with tied embeddings and sinusoidal positions."""

    def __init__(self, config: TransformerConfig, vocab: int, *, inner_dropout: bool):
        super().__init__()
        width, layers = config.width, config.layers
        self.table = nn.Embedding(vocab, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        angle = torch.arange(1024.0)[:, None] * rate
        self.register_buffer("positions", torch.cat((angle.sin(), angle.cos()), -1))
        self.dropout = nn.Dropout(DROPOUT)
        self.core = nn.Transformer(
            width, config.heads, layers, layers, int(config.feedforward), DROPOUT, batch_first=True
        )
        if not inner_dropout:
            encoder_layers: list[Any] = list(self.core.encoder.layers)
            decoder_layers: list[Any] = list(self.core.decoder.layers)
            for layer in encoder_layers + decoder_layers:
                layer.dropout.p = 0.0
                layer.self_attn.dropout = 0.0
            for layer in decoder_layers:
                layer.multihead_attn.dropout = 0.0

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.table(ids) * math.sqrt(self.table.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def mean_loss(self, batch: PairBatch) -> torch.Tensor:
        source, target = batch.source.items, batch.target.items
        inputs, targets = target[:, :-1], target[:, 1:]
        padding = source.eq(0)
        future = torch.triu(torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool), 1)
        hidden = self.core(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = functional.linear(hidden, self.table.weight)
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=SMOOTHING
        )


class OurModel(nn.Module):
    """Model of this library, with its loss as a mean."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def mean_loss(self, batch: PairBatch | Text | Images) -> torch.Tensor:
        loss = self.model.loss(batch)
        return loss.total / loss.count


def read_batches(folder: Path, vocab: int) -> list[PairBatch]:
    """Return all batches of one epoch of Multi30k English to German."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(
            folder / f"train.lc.norm.tok.{language}.gz", "rt", encoding="utf-8", newline="\n"
        ) as file:
            sides.append([line.strip() for line in file])
    source, target = train_tokenizers(sides[0], sides[1], PairTokenizerConfig(vocab_size=vocab))
    encoded = EncodedPairs.from_sequences(
        source.encode_batch(sides[0]), target.encode_batch(sides[1])
    )
    batches = TokenBatches(encoded, batch_tokens=4096, seed=1)
    return [batches.collate(0, indices) for indices in batches.plan(0)]


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder as a character language model or an image classifier."""

    def __init__(
        self,
        config: TransformerConfig,
        dropout: float,
        *,
        inner_dropout: bool,
        reader: nn.Module,
        classes: int,
    ):
        super().__init__()
        self.reader = reader
        self.positions = nn.Parameter(torch.randn(1024, config.width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            config.width,
            config.heads,
            int(config.feedforward),
            dropout,
            activation=config.activation,
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(config.width)
        self.core = nn.TransformerEncoder(layer, config.layers, norm, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(config.width, classes)
        if not inner_dropout:
            blocks: list[Any] = list(self.core.layers)
            for block in blocks:
                block.dropout.p = 0.0
                block.self_attn.dropout = 0.0

    def mean_loss(self, batch: Text | Images) -> torch.Tensor:
        if isinstance(batch, Text):
            items, targets = self.reader(batch.target.items[:, :-1]), batch.target.items[:, 1:]
            future = nn.Transformer.generate_square_subsequent_mask(items.shape[1])
            hidden = self.core(
                self.dropout(items + self.positions[: items.shape[1]]), mask=future, is_causal=True
            )
            return functional.cross_entropy(self.output(hidden).flatten(0, 1), targets.flatten())
        items = self.reader(batch.source).flatten(2).mT
        hidden = self.core(self.dropout(items + self.positions[: items.shape[1]]))
        return functional.cross_entropy(self.output(hidden.mean(1)), batch.target)


Contestant = TorchModel | TorchEncoder | OurModel


class Work(NamedTuple):
    """Models and batches; `counts` are the tokens or images of each batch, `multiplications` those
    of a step."""

    models: dict[str, Contestant]
    batches: list[PairBatch] | list[Text] | list[Images]
    counts: list[int]
    multiplications: list[float]


def translation(size: str, folder: Path, vocab: int, batches: int) -> Work:
    """Return the models and batches for Multi30k, English to German."""
    config, read = SIZES[size], read_batches(folder, vocab)[:batches]
    models: dict[str, Contestant] = {
        "torch": TorchModel(config, vocab, inner_dropout=True),
        "torch-as-ours": TorchModel(config, vocab, inner_dropout=False),
        "regard": OurModel(
            build(
                ModelConfig(core=config, dropout=DROPOUT),
                source_vocab=vocab,
                target_vocab=vocab,
                label_smoothing=SMOOTHING,
            )
        ),
    }
    matrices = sum(p.numel() for p in models["regard"].parameters() if p.dim() == 2)
    counts = [count_target_tokens(batch) for batch in read]
    return Work(models, read, counts, [3.0 * matrices * count for count in counts])


def language(batches: int) -> Work:
    """Return synthetic characters and models of nanoGPT's size."""
    config = TransformerConfig(
        layers=6,
        width=384,
        heads=6,
        feedforward=1536,
        norm_order="pre",
        activation="gelu",
        positions=LearnedConfig(),
    )
    read = [Text(Unpadded.of(torch.randint(65, (12, 257)))) for _ in range(batches)]
    ours = OurModel(build_language_model(LanguageModelConfig(core=config, dropout=0.2), vocab=65))
    models: dict[str, Contestant] = {
        name: TorchEncoder(
            config, 0.2, inner_dropout=inner, reader=nn.Embedding(65, 384), classes=65
        )
        for name, inner in {"torch": True, "torch-as-ours": False}.items()
    }
    block = 12 * 384**2 + 2 * 256 * 384  # the full square of scores is counted
    return Work(
        {**models, "regard": ours},
        read,
        [12 * 256] * batches,
        [3.0 * 12 * 256 * 6 * block] * batches,
    )


def images(batches: int) -> Work:
    """Return synthetic images and models of ViT-Tiny's size."""
    config = TransformerConfig(
        layers=12,
        width=192,
        heads=3,
        feedforward=768,
        norm_order="pre",
        activation="gelu",
        positions=NoPositionsConfig(),
    )
    read = [Images(torch.rand(64, 3, 32, 32), torch.randint(10, (64,))) for _ in range(batches)]
    classifier = ClassifierConfig(core=config, dropout=0.0, pool_heads=3)
    ours = OurModel(
        build_classifier(
            classifier,
            ImageReader((3, 32, 32), 192, patch=4),
            lambda dim, pool: ClassWriter(dim, 10, pool=pool),
        )
    )
    reader = nn.Conv2d(3, 192, 4, stride=4)
    models: dict[str, Contestant] = {
        "torch": TorchEncoder(config, 0.0, inner_dropout=True, reader=reader, classes=10),
    }
    block = 12 * 192**2 + 2 * 64 * 192
    return Work(
        {**models, "regard": ours}, read, [64] * batches, [3.0 * 64 * 64 * 12 * block] * batches
    )


def products_rate(precision: str, clock: Clock) -> float:
    """Return the multiplications per second of torch.mm for 2048 x 2048 matrices."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    first, second = torch.randn(2, 2048, 2048, dtype=dtype)
    times = []
    for _ in range(7):
        start = clock()
        torch.mm(first, second)
        times.append(clock() - start)
    return 2048**3 / statistics.median(times)


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: PairBatch | Text | Images,
    precision: str,
    clock: Clock,
) -> float:
    """Return the seconds of one step, by `clock`."""
    start = clock()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = model.mean_loss(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="for tiny and base")
    parser.add_argument("--size", choices=(*SIZES, "gpt", "vit"), default="tiny")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument(
        "--memory", choices=("kept", "default"), default="kept", help="freed memory kept or not"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=10000)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu, with one thread: where others use the machine, too",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    torch.manual_seed(1)
    work = make(options.size, options.data, options.vocab, options.batches + 2)
    optimizers = {
        name: torch.optim.Adam(m.parameters(), lr=1e-4, fused=True)
        for name, m in work.models.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in work.models}
    for number, batch in enumerate(work.batches):
        for name, model in work.models.items():
            seconds_taken = train_step(model, optimizers[name], batch, options.precision, clock)
            if number >= 2:  # the first two warm up
                seconds[name].append(seconds_taken)
    counts, multiplications = work.counts[2:], work.multiplications[2:]
    print(
        f"{options.size} {options.precision} memory={options.memory} threads={options.threads} "
        f"clock={options.clock} "
        f"torch {torch.__version__}"
    )
    unit = "images" if options.size == "vit" else "target tokens"
    print(f"{len(counts)} batches, {statistics.mean(counts):.0f} {unit} each")
    print(
        f"{'contestant':15} {unit + '/s min / median / max':>36} "
        f"{'speed-up of regard, median (min-max)':>32}"
    )
    for name, seconds_taken in seconds.items():
        rates = sorted(n / s for n, s in zip(counts, seconds_taken, strict=True))
        ratios = sorted(s / ours for s, ours in zip(seconds_taken, seconds["regard"], strict=True))
        spread = f"{rates[0]:.0f} / {statistics.median(rates):.0f} / {rates[-1]:.0f}"
        print(
            f"{name:15} {spread:>36} {statistics.median(ratios):>20.2f} "
            f"({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
    rate = statistics.median(n / s for n, s in zip(multiplications, seconds["regard"], strict=True))
    limit = products_rate(options.precision, clock)
    print(f"regard {2e-9 * rate:.0f} GFLOP/s, torch.mm {2e-9 * limit:.0f}: {rate / limit:.0%}")


def make(size: str, folder: Path | None, vocab: int, batches: int) -> Work:
    """Return the models and batches of this size."""
    if size == "gpt":
        return language(batches)
    if size == "vit":
        return images(batches)
    if folder is None:
        raise SystemExit("--data FOLDER is needed: Multi30k, as --help says")
    return translation(size, folder, vocab, batches)


if __name__ == "__main__":
    main()
