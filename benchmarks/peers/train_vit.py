"""Training speed of a vision Transformer, compared with Transformers' ViT and
torch.nn.TransformerEncoder.

    python -m benchmarks.peers.train_vit --data FOLDER [--memory kept|default] [--quick]

12 blocks of width 192, 3 heads, feed-forward 768, images of 32 x 32 x 3 in patches of 4, 10
classes, 64 images a batch, random pixels, pre norm, gelu, no dropout, fused Adam. Transformers
reads a token for the class beside the 64 patches, this library reads the patches with one learned
query, the encoder of torch takes their mean.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.peers.options import Options, Report, parse_options, training_precisions
from benchmarks.peers.rounds import (
    OURS,
    measure_growth,
    measure_growth_alone,
    product_rate,
    report_ratios,
    take_turns,
)
from benchmarks.peers.stepping import Step, our_step, their_step
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_classifier
from regard.models.config import ClassifierConfig
from regard.models.cores.config import TransformerConfig
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.system.allocator import keep_freed_memory

WIDTH, LAYERS, HEADS, SIDE, PATCH, CLASSES, ROWS = 192, 12, 3, 32, 4, 10, 64
NAMES = ("Transformers, ViT", "torch.nn.TransformerEncoder")


class ImageBatch(NamedTuple):
    """Images within [0, 1] and their classes."""

    source: Tensor
    target: Tensor
    indices: tuple[int, ...] = tuple(range(ROWS))

    def to(self, device: torch.device | str) -> "ImageBatch":
        return ImageBatch(self.source.to(device), self.target.to(device))


class TorchViT(nn.Module):
    """torch.nn.TransformerEncoder over patches, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        items = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(items).mean(1))


def contestant(name: str, precision: str) -> Step:
    """Return a training step of a newly initialized model."""
    torch.manual_seed(1)
    if name == OURS:
        sizes = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "feedforward": 4 * WIDTH}
        core = TransformerConfig(**sizes, activation="gelu", positions=NoPositionsConfig())
        config = ClassifierConfig(core=core, pool_heads=HEADS, dropout=0.0)
        reader = ImageReader((3, SIDE, SIDE), WIDTH, patch=PATCH)
        model = build_classifier(
            config, reader, lambda dim, pool: ClassWriter(dim, CLASSES, pool=pool)
        )
        return our_step(model, precision)
    if name == "torch.nn.TransformerEncoder":
        module: nn.Module = TorchViT()
        scores = module
    else:
        from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415  # imported only if needed

        sizes = {
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "patch_size": PATCH,
        }
        settings = ViTConfig(
            **sizes, intermediate_size=4 * WIDTH, image_size=SIDE, num_labels=CLASSES
        )
        module = vit = ViTForImageClassification._from_config(settings, attn_implementation="sdpa")

        def scores(images: Tensor) -> Tensor:
            return vit(pixel_values=images).logits

    module.train()

    def mean_loss(batch: ImageBatch) -> Tensor:
        return nn.functional.cross_entropy(scores(batch.source), batch.target)

    return their_step(list(module.parameters()), mean_loss, precision)


def compare(options: Options, report: Report, precision: str) -> None:
    """Report one table."""
    batches = [_batch() for _ in range(options.rounds(12) + 2)]
    steps = {name: contestant(name, precision) for name in (OURS, *NAMES)}
    turns = {name: lambda number, step=step: step(batches[number]) for name, step in steps.items()}
    rate = product_rate(getattr(torch, precision))
    times = take_turns(turns, rounds=options.rounds(12), warmup=2, report=report)
    rate = max(rate, product_rate(getattr(torch, precision)))
    positions = (SIDE // PATCH) ** 2
    per_image = positions * (6 * LAYERS * 12 * WIDTH**2 + 12 * LAYERS * positions * WIDTH)
    alone = {}
    if not options.quick and precision == "float32":
        alone = {
            name: measure_growth_alone("benchmarks.peers.train_vit", options, name)
            for name in steps
        }

    def extra(name: str, median: float) -> str:
        reached = median * per_image
        grown = f" {alone[name]:7,.0f} MB" if name in alone else ""
        return f" {reached / 1e9:6.0f} GFLOP/s = {reached / rate:4.0%}{grown}"

    report.write()
    report.write(
        f"  {precision}: images/s min, median, max; times of it / ours; model FLOP/s of the 64 "
        f"patches as a share of "
        f"torch.mm's {rate / 1e9:.0f} "
        f"GFLOP/s{'; memory growth of a separate process' if alone else ''}"
    )
    report_ratios(report, times, float(ROWS), unit="images", extra=extra)


def _batch(rows: int = ROWS) -> ImageBatch:
    return ImageBatch(torch.rand(rows, 3, SIDE, SIDE), torch.randint(CLASSES, (rows,)))


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        (name,) = options.memory_of
        first, work = (
            (lambda: _train(name, [_batch(1)])),
            (lambda: _train(name, [_batch() for _ in range(3)])),
        )
        print(measure_growth(first, work, keep_freed=options.memory == "kept"))
        return
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Training a vision Transformer, 12 x 192", options, "transformers")
    for precision in training_precisions(options, report):
        compare(options, report, precision)


def _train(name: str, batches: list[ImageBatch]) -> None:
    step = contestant(name, "float32")
    for batch in batches:
        step(batch)


if __name__ == "__main__":
    main()
