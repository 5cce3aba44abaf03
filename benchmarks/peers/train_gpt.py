"""Training speed of a language model, compared with Transformers' GPT-2, x-transformers and a plain
PyTorch GPT.

    python -m benchmarks.peers.train_gpt --data FOLDER [--memory kept|default] [--quick]

6 blocks of width 384, 6 heads, context 256, 65 characters of Shakespeare, 12 windows a batch, pre
norm, learned positions (x-transformers: its own default of absolute positions), gelu, tied table,
fused Adam. Dropout 0.2, then none. Others also drop attention weights, which this library does not:
rows "no attention dropout" are without. "compiled" is torch.compile. Model FLOP/s: 6 N a token and
the whole attention square, as a share of torch.mm's in the same run and type.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers.gpt_own import Sizes, SmallGPT
from benchmarks.peers.material import character_batches
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
from regard.attention.masks import Padded
from regard.data.batches import Batch
from regard.data.text.windows import WindowBatch
from regard.layers.positions.config import LearnedConfig
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.system.allocator import keep_freed_memory

SIZES, ROWS = Sizes(), 12
WITHOUT, COMPILED = ", no attention dropout", ", compiled"
NAMES = ("Transformers, GPT-2", "x-transformers, flash", "plain PyTorch GPT")


def our_core(sizes: Sizes = SIZES) -> TransformerConfig:
    """Return the configuration of this library's GPT."""
    return TransformerConfig(
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        feedforward=4 * sizes.width,
        activation="gelu",
        positions=LearnedConfig(max_length=sizes.context),
    )


def contestant(name: str, dropout: float, precision: str) -> Step:
    """Return a training step of a newly initialized model."""
    torch.manual_seed(1)
    if name == OURS:
        config = LanguageModelConfig(core=our_core(), dropout=dropout)
        return our_step(build_language_model(config, vocab=SIZES.vocab), precision)
    attention_dropout = 0.0 if WITHOUT in name else dropout
    module, scores = peer(
        name.removesuffix(COMPILED).removesuffix(WITHOUT), SIZES, dropout, attention_dropout
    )
    module.train()
    if name.endswith(COMPILED):
        scores = torch.compile(scores)

    def mean_loss(batch: WindowBatch) -> Tensor:
        logits = scores(batch.target.items[:, :-1])
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target.items[:, 1:].flatten()
        )

    return their_step(list(module.parameters()), mean_loss, precision)


def peer(
    name: str, sizes: Sizes, dropout: float, attention_dropout: float
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return a newly initialized model of a peer, and its function of tokens to logits."""
    if name == "plain PyTorch GPT":
        small_gpt = SmallGPT(sizes, dropout=dropout, attention_dropout=attention_dropout)
        return small_gpt, small_gpt
    if name == "Transformers, GPT-2":
        from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  # imported only if needed

        shape = {
            "n_positions": sizes.context,
            "n_embd": sizes.width,
            "n_layer": sizes.layers,
            "n_head": sizes.heads,
        }
        rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": attention_dropout}
        settings = GPT2Config(
            vocab_size=sizes.vocab, **shape, **rates, bos_token_id=0, eos_token_id=0
        )
        settings.activation_function = "gelu"
        gpt2 = GPT2LMHeadModel._from_config(settings, attn_implementation="sdpa")
        return gpt2, lambda tokens: gpt2(input_ids=tokens, use_cache=False).logits
    from x_transformers import Decoder, TransformerWrapper  # noqa: PLC0415

    shape = {
        "dim": sizes.width,
        "depth": sizes.layers,
        "heads": sizes.heads,
        "attn_dim_head": sizes.width // sizes.heads,
    }
    layers = Decoder(**shape, attn_flash=True, attn_dropout=attention_dropout, ff_dropout=dropout)
    options = {
        "num_tokens": sizes.vocab,
        "max_seq_len": sizes.context,
        "emb_dropout": dropout,
        "tie_embedding": True,
    }
    wrapper = TransformerWrapper(**options, attn_layers=layers)
    return wrapper, wrapper


def compare(options: Options, report: Report, dropout: float, precision: str) -> None:
    """Report one table."""
    rounds = options.rounds(6)
    source = character_batches(options.data, context=SIZES.context, rows=ROWS)
    batches = [next(source) for _ in range(rounds + 2)]
    names = [OURS, *NAMES]
    names += [name + WITHOUT for name in NAMES] if dropout else []
    if not options.quick and precision == "float32":
        names += [
            f"{name}{WITHOUT if dropout else ''}{COMPILED}"
            for name in ("Transformers, GPT-2", "plain PyTorch GPT")
        ]
    steps = {name: contestant(name, dropout, precision) for name in names}
    turns = {name: lambda number, step=step: step(batches[number]) for name, step in steps.items()}
    rate = product_rate(getattr(torch, precision))
    times = take_turns(turns, rounds=rounds, warmup=2 if rounds > 2 else 1, report=report)
    rate = max(rate, product_rate(getattr(torch, precision)))
    width, layers, context = SIZES.width, SIZES.layers, SIZES.context
    per_token = 6 * (layers * 12 * width**2 + SIZES.vocab * width) + 12 * layers * context * width
    module = "benchmarks.peers.train_gpt"
    alone = {}
    if not options.quick and precision == "float32":
        alone = {
            name: measure_growth_alone(module, options, name, str(dropout))
            for name in (OURS, *NAMES)
        }

    def extra(name: str, median: float) -> str:
        reached = median * per_token
        grown = f" {alone[name]:7,.0f} MB" if name in alone else ""
        return f" {reached / 1e9:6.0f} GFLOP/s = {reached / rate:4.0%}{grown}"

    report.write()
    report.write(
        f"  dropout {dropout}, {precision}: tokens/s min, median, max; times of it / ours; model "
        f"FLOP/s as a share of "
        f"torch.mm's {rate / 1e9:.0f} "
        f"GFLOP/s{'; memory growth of a separate process' if alone else ''}"
    )
    report_ratios(report, times, float(ROWS * context), unit="tokens", extra=extra)


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        source = character_batches(options.data, context=SIZES.context, rows=ROWS)
        batches = [next(source) for _ in range(3)]
        name, dropout = options.memory_of[0], float(options.memory_of[1])
        few = [Batch(None, Padded(batches[0].target.items[:1, :9], torch.tensor([9])), (0,))]
        first, work = (lambda: _train(name, dropout, few)), (lambda: _train(name, dropout, batches))
        print(measure_growth(first, work, keep_freed=options.memory == "kept"))
        return
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Training a language model, 6 x 384", options, "transformers", "x-transformers")
    for precision in training_precisions(options, report):
        for dropout in (0.2,) if options.quick or precision == "bfloat16" else (0.2, 0.0):
            compare(options, report, dropout, precision)


def _train(name: str, dropout: float, batches: list[WindowBatch]) -> None:
    step = contestant(name, dropout, "float32")
    for batch in batches:
        step(batch)


if __name__ == "__main__":
    main()
