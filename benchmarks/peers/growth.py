"""Scaling of decoding and training with source, target, batch, beam and model size.

    python -m benchmarks.peers.growth --data FOLDER [--out FILE] [--quick]

Three models of this library: a Transformer, an RNN (GRU) with additive attention, an RNN without.
Decoding: a batch of sources is encoded and translated into a fixed number of tokens; the compiled
engine has one worker per thread, so that one sentence uses one thread. Training: loss and gradients
of a batch. The legend has the exponents of the last three points, the title the theoretical cost:

    RNN without attention O(m + t)      with attention O(m t)      Transformer O(m^2 + t^2 + m t)

for a source of m and a target of t tokens. Each length alone enters these with exponent one
(self-attention of the Transformer: two), so "both lengths" increases m and t together: there
attention tends to two, and an RNN without it stays at one. The other sizes are small, but every
step also has constant costs (calls, the vocabulary), so exponents stay below the limit until
lengths are far beyond those of sentences.
"""

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from benchmarks.peers.options import Options, Report, parse_options
from regard.attention.masks import Padded
from regard.data.batches import PairBatch
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.beam import beam as beam_search
from regard.decode.config import DecodeConfig
from regard.engines.registry import prepare
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import CoreConfig, RecurrentConfig, TransformerConfig
from regard.models.model import Model
from regard.system.allocator import keep_freed_memory

VOCAB = 500


class Point(NamedTuple):
    """Sizes of one measurement."""

    source: int = 32
    target: int = 32
    rows: int = 4
    beam: int = 1
    width: int = 64


AXES: dict[str, tuple[str, Callable[[int], Point], tuple[int, ...]]] = {
    "source": ("source length m", lambda n: Point(source=n), (64, 128, 256, 512, 1024)),
    "target": ("target length t", lambda n: Point(target=n), (64, 128, 256, 512, 1024)),
    "both": (
        "both lengths m = t",
        lambda n: Point(source=n, target=n, rows=2),
        (64, 128, 256, 512, 1024),
    ),
    "batch": ("sentences at once", lambda n: Point(rows=n), (1, 4, 16, 64, 256)),
    "beam": ("beam", lambda n: Point(beam=n, rows=8), (1, 2, 4, 8, 16)),
    "width": (
        "width",
        lambda n: Point(width=n, rows=32, source=16, target=16),
        (64, 128, 256, 512, 1024),
    ),
}
"""Label of the axis, the sizes at each value, the values."""
MODELS = ("Transformer", "RNN with attention", "RNN without")
COMPILED = "Transformer, compiled engine"
COLORS = {
    "Transformer": "#1b6ca8",
    COMPILED: "#e09f3e",
    "RNN with attention": "#2e8b57",
    "RNN without": "#d1495b",
}
COUNTED = {
    "source": "1 for all, 2 for the Transformer's encoder",
    "target": "1 for all, 2 for the Transformer's decoder",
}
COUNTED |= {"both": "O(m + t): 1; O(m t): 2", "batch": "1", "beam": "1", "width": "2"}


def core(model: str, width: int) -> CoreConfig:
    """Return the configuration of a model: two layers per side for the Transformer, one for the
    others."""
    if model in ("Transformer", COMPILED):
        return TransformerConfig(layers=2, width=width, heads=4, feedforward=2 * width)
    attention = "additive" if model == "RNN with attention" else "none"
    return RecurrentConfig(width=width, hidden=width, attention_hidden=width, attention=attention)


@torch.no_grad()
def build_model(model: str, width: int) -> Model:
    """Return a model with random weights that never ends a sentence."""
    torch.manual_seed(1)
    built_model = build(
        ModelConfig(core=core(model, width), dropout=0.0), source_vocab=VOCAB, target_vocab=VOCAB
    )
    writer: Any = built_model.writer
    writer.output_table.weight[[PAD, BOS, EOS]] = 0.0
    return built_model


def decoding(model: str, point: Point) -> Callable[[], object]:
    """Return a function that translates a batch of sources."""
    decoder, source = build_model(model, point.width).eval(), _ids(point.rows, point.source)
    if model == COMPILED:
        config = DecodeConfig(
            beam=point.beam, max_ratio=0.0, max_extra=point.target, max_length=point.target
        )
        engine, sentences = (
            prepare("compiled", decoder, threads=torch.get_num_threads()),
            source.items.tolist(),
        )
        return lambda: engine.search(sentences, config=config, bos=BOS, eos=EOS, pad=PAD)
    settings = {
        "beam": point.beam,
        "bos": BOS,
        "eos": EOS,
        "max_length": point.target,
        "banned": (PAD, BOS),
    }
    return lambda: beam_search(decoder, source, **settings)


def training(model: str, point: Point) -> Callable[[], object]:
    """Return a function that computes loss and gradients of a batch."""
    trained_model = build_model(model, point.width).train()
    batch = PairBatch(
        _ids(point.rows, point.source), _ids(point.rows, point.target + 1), tuple(range(point.rows))
    )

    def step() -> None:
        trained_model.loss(batch).total.backward()
        trained_model.zero_grad()

    return step


KINDS = {"decoding": decoding, "training": training}


def seconds(work: Callable[[], object], budget_s: float) -> float:
    """Return the median time of a call, after a first one."""
    work()
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < 3 or (time.perf_counter() < stop and len(times) < 100):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return b of the least-squares line log y = a + b log n through the last three."""
    x, y = ([math.log(value) for value in tail[-3:]] for tail in (sizes, values))
    return statistics.linear_regression(x, y).slope


def draw(
    name: str, curves: dict[str, dict[str, list[float]]], sizes: tuple[int, ...], path: Path
) -> None:
    """Plot milliseconds against the axis, both logarithmic; dotted: exponents one and two through
    the last point."""
    figure = Figure(figsize=(4.6 * len(curves), 3.8), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (kind, models) in zip(panels, curves.items(), strict=True):
        for model, values in models.items():
            label = f"{model}, n^{exponent(sizes, values):.2f}"
            axes.loglog(
                sizes, [1e3 * value for value in values], ".-", color=COLORS[model], label=label
            )
        top = 1e3 * max(values[-1] for values in models.values())
        for power in (1, 2):
            line = [top * (size / sizes[-1]) ** power for size in sizes]
            axes.loglog(sizes, line, ":", color="#8d99ae", linewidth=1)
            axes.annotate(f"n^{power}", (sizes[0], line[0]), fontsize=7, color="#5c677d")
        axes.set_ylim(bottom=0.5 * 1e3 * min(min(values) for values in models.values()))
        axes.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(AXES[name][0])
        axes.set_title(f"{kind}, ms", fontsize=10)
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"counted: {COUNTED[name]}", fontsize=8, color="#5c677d")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options: Options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Growth: 4 sentences of 32 to 32 tokens, width 64, unless said otherwise", options)
    for name, (about, point, all_places) in AXES.items():
        sizes = all_places[:3] if options.quick else all_places
        kinds = [kind for kind in KINDS if kind == "decoding" or name != "beam"]
        report.write()
        report.write(
            f"  {about}, ms{'':34}" + "".join(f"{size:>10}" for size in sizes) + "   exponent"
        )
        curves: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
        for kind in kinds:
            for model in (*MODELS, *([COMPILED] if kind == "decoding" else [])):
                budget = 0.05 if options.quick else 0.4
                values = [seconds(KINDS[kind](model, point(size)), budget) for size in sizes]
                curves[kind][model] = values
                row = "".join(f"{1e3 * value:>10.2f}" for value in values)
                report.write(f"    {kind:9} {model:40}{row}   n^{exponent(sizes, values):.2f}")
        report.write(f"    counted: {COUNTED[name]}")
        if options.out is not None:
            draw(name, curves, sizes, options.out.with_name(f"{options.out.stem}-{name}.svg"))


def _ids(rows: int, length: int) -> Padded:
    return Padded(torch.randint(4, VOCAB, (rows, length)), torch.full((rows,), length))


if __name__ == "__main__":
    main()
