"""Training speed of an encoder-decoder for translation, compared with five other libraries.

    python -m benchmarks.peers.train_seq2seq --data FOLDER [--memory kept|default] [--quick]

Contestants: this library (what its training loop calls), torch.nn.Transformer, Transformers' Marian
and BART, x-transformers with flash attention, JoeyNMT, OpenNMT-py. Same sizes, Multi30k batches of
at most 4,096 tokens of the longer side, tied tables, label smoothing 0.1, fused Adam, dropout 0.1.
Where others also drop attention weights, which this library does not, the rows "no attention
dropout" are the same without that. Told: target tokens a second (padding not counted), times as
fast as each, model FLOP/s (6 N a token) as a share of what torch.mm reaches in the same run and
type, and by how much a process of its own grows in building and three steps.
"""

import torch

from benchmarks.peers.material import VOCAB, small, translation_batches
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
from benchmarks.peers.translators import DROPOUT, PEERS, SIZES, SMOOTHING, flops, peer
from regard.data.batches import PairBatch, count_target_tokens
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.system.allocator import keep_freed_memory

WITHOUT = ", no attention dropout"
ALSO_WITHOUT = ("Transformers, BART", "Transformers, Marian", "x-transformers, flash")
"""Peers that also run without dropout of attention weights."""
ROUNDS = {"4+4 x 128": 12, "6+6 x 512": 3}


def contestant(name: str, size: str, precision: str) -> Step:
    """Return a training step of a newly initialized contestant."""
    config = SIZES[size]
    torch.manual_seed(1)
    if name == OURS:
        sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB, "label_smoothing": SMOOTHING}
        return our_step(build(ModelConfig(core=config, dropout=DROPOUT), **sizes), precision)
    module, mean_loss = peer(
        name.removesuffix(WITHOUT), config, 0.0 if name.endswith(WITHOUT) else DROPOUT
    )
    module.train()
    return their_step(list(module.parameters()), mean_loss, precision)


def names(size: str, *, quick: bool) -> list[str]:
    """Return all contestants; in the large size only one without attention dropout, to save
    time."""
    also = () if quick else ALSO_WITHOUT if size == "4+4 x 128" else ALSO_WITHOUT[:1]
    return [OURS, *PEERS, *(name + WITHOUT for name in also)]


def compare(options: Options, report: Report, size: str, precision: str) -> None:
    """Report one table."""
    rounds = options.rounds(ROUNDS[size])
    warmup = 2 if ROUNDS[size] > 6 else 1
    batches = translation_batches(options.data, warmup + rounds)
    steps = {name: contestant(name, size, precision) for name in names(size, quick=options.quick)}
    turns = {name: lambda number, step=step: step(batches[number]) for name, step in steps.items()}
    rate = product_rate(getattr(torch, precision))
    times = take_turns(turns, rounds=rounds, warmup=warmup, report=report)
    rate = max(rate, product_rate(getattr(torch, precision)))
    tokens = [float(count_target_tokens(batch)) for batch in batches[warmup:]]
    per_token = sum(flops(SIZES[size], batch) for batch in batches[warmup:]) / sum(tokens)
    alone = {} if options.quick or precision != "float32" else memories(options, size)

    def extra(name: str, median: float) -> str:
        reached = median * per_token
        grown = f" {alone[name]:7,.0f} MB" if name in alone else ""
        return f" {reached / 1e9:6.0f} GFLOP/s = {reached / rate:4.0%}{grown}"

    report.write()
    report.write(
        f"  {size}, {precision}: target tokens/s min, median, max; times of it / ours; model "
        f"FLOP/s as a share of "
        f"torch.mm's {rate / 1e9:.0f} "
        f"GFLOP/s{'; memory growth of a separate process' if alone else ''}"
    )
    report_ratios(report, times, tokens, unit="target tokens", extra=extra)


def memories(options: Options, size: str) -> dict[str, float]:
    """Return the memory growth in MB with each contestant."""
    module = "benchmarks.peers.train_seq2seq"
    return {name: measure_growth_alone(module, options, name, size) for name in (OURS, *PEERS)}


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        name, size = options.memory_of
        batches = translation_batches(options.data, 3)
        tiny = next(iter(SIZES))
        first, work = (
            (lambda: _train(name, tiny, [small(batches[0])])),
            (lambda: _train(name, size, batches)),
        )
        print(measure_growth(first, work, keep_freed=options.memory == "kept"))
        return
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head(
        "Training an encoder-decoder",
        options,
        "transformers",
        "x-transformers",
        "joeynmt",
        "OpenNMT-py",
    )
    precisions = training_precisions(options, report)
    for size in ("4+4 x 128",) if options.quick else SIZES:
        for precision in precisions:
            compare(options, report, size, precision)


def _train(name: str, size: str, batches: list[PairBatch]) -> None:
    step = contestant(name, size, "float32")
    for batch in batches:
        step(batch)


if __name__ == "__main__":
    main()
