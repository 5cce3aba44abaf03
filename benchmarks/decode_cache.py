"""Speed-up of decoding with a key-value cache, compared with recomputing the prefix for every
token.

    python benchmarks/decode_cache.py [--tokens 50] [--rows 1 16 64]

    with memory     each step reads the cached keys and values of the previous ones
    prefix          each step runs the decoder over the whole prefix; the encoder runs once
    model           each step runs the whole model, encoder included, over source and prefix

Random weights of a Transformer of 4+4 layers, width 128; sources of 15 tokens. All methods produce
the same tokens (checked). Rounds alternate between them.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from regard.attention.masks import Padded
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model

BOS, VOCAB, SOURCE_LEN = 2, 8000, 15


def with_memory(model: Model, source: Padded, num_tokens: int) -> torch.Tensor:
    """Return greedy tokens (rows, num_tokens); each step reads the cache."""
    state, tokens = model.start(source), []
    token = torch.full((source.items.shape[0],), BOS)
    for _ in range(num_tokens):
        logits, state = model.step(token, state)
        token = logits.argmax(-1)
        tokens.append(token)
    return torch.stack(tokens, 1)


def with_prefix(model: Model, source: Padded, num_tokens: int) -> torch.Tensor:
    """Return the same tokens; each step runs the decoder over the whole prefix (the encoder runs
    once)."""
    state = model.start(source)
    tokens = torch.full((source.items.shape[0], 1), BOS)
    for _ in range(num_tokens):
        hidden = model.core(model.writer.embed(tokens), state.core)
        token = model.writer.answer(hidden[:, -1]).argmax(-1)
        tokens = torch.cat((tokens, token[:, None]), 1)
    return tokens[:, 1:]


def with_model(model: Model, source: Padded, num_tokens: int) -> torch.Tensor:
    """Return the same tokens; each step runs the whole model again."""
    tokens = torch.full((source.items.shape[0], 1), BOS)
    for _ in range(num_tokens):
        hidden = model.core(model.writer.embed(tokens), model.start(source).core)
        token = model.writer.answer(hidden[:, -1]).argmax(-1)
        tokens = torch.cat((tokens, token[:, None]), 1)
    return tokens[:, 1:]


def seconds(
    decode: Callable[[Model, Padded, int], torch.Tensor], *arguments
) -> tuple[float, torch.Tensor]:
    """Return the time of one call and its result."""
    start = time.perf_counter()
    tokens = decode(*arguments)
    return time.perf_counter() - start, tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = build(
        ModelConfig(core=TransformerConfig()), source_vocab=VOCAB, target_vocab=VOCAB
    ).eval()
    print(f"{options.tokens} tokens, threads={options.threads}, torch {torch.__version__}; medians")
    methods = {"with memory": with_memory, "prefix": with_prefix, "model": with_model}
    print(
        "rows  "
        + "  ".join(f"{name + ', s':>14}" for name in methods)
        + f"  {'prefix / memory':>18}  {'model / memory':>18}"
    )
    with torch.no_grad():
        for rows in options.rows:
            source = Padded(
                torch.randint(4, VOCAB, (rows, SOURCE_LEN)), torch.full((rows,), SOURCE_LEN)
            )
            rounds = [
                compare(methods, model, source, options.tokens) for _ in range(options.rounds + 1)
            ][1:]
            cells = [
                f"{statistics.median(times[name] for times in rounds):>14.3f}" for name in methods
            ]
            for name in ("prefix", "model"):
                ratios = sorted(times[name] / times["with memory"] for times in rounds)
                cells.append(
                    f"{f'{statistics.median(ratios):.1f} ({ratios[0]:.1f}-{ratios[-1]:.1f})':>18}"
                )
            print(f"{rows:>4}  " + "  ".join(cells), flush=True)


def compare(methods: dict, model: Model, source: Padded, num_tokens: int) -> dict[str, float]:
    """Return the seconds of each method; all must give the same tokens."""
    results = {name: seconds(method, model, source, num_tokens) for name, method in methods.items()}
    first = results["with memory"][1]
    for name, (_, tokens) in results.items():
        assert torch.equal(tokens, first), f"{name} must give the same tokens"
    return {name: duration for name, (duration, _) in results.items()}


if __name__ == "__main__":
    main()
