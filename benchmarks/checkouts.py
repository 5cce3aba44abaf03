"""Speed of two checkouts of this library, compared side by side.

    python -m benchmarks.checkouts BEFORE AFTER [--rounds 15] [--threads 1] [--only read ...]

BEFORE and AFTER are folders that hold regard/ and benchmarks/. Each runs in a separate process;
they take turns, one piece of work at a time, so that load on the machine affects both. A ratio is
AFTER / BEFORE, the median over the rounds with the smallest and the largest: 1 is as fast, 2 takes
twice as long. Run it with BEFORE twice to see the noise.
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 8000


def reader() -> dict[str, Callable[[], object]]:
    """Return reads of several kinds, some with gradients."""
    import torch  # noqa: PLC0415

    import regard  # noqa: PLC0415

    def both(shape: tuple[int, ...], **options: Any) -> Callable[[], object]:
        query, keys, values = (torch.randn(shape, requires_grad=True) for _ in range(3))

        def work() -> object:
            regard.attend(query, (keys, values), **options).sum().backward()
            return None

        return work

    def forward(
        query: tuple[int, ...], memory: tuple[int, ...], **options: Any
    ) -> Callable[[], object]:
        query_tensor, keys, values = torch.randn(query), torch.randn(memory), torch.randn(memory)
        return lambda: regard.attend(query_tensor, (keys, values), **options)

    additive = regard.Additive(query_dim=64, key_dim=64, hidden=64)
    padding = regard.padding([200, 256, 100, 30])
    return {
        "read: scaled dot 4 x 4 x 256 x 32": both((4, 4, 256, 32)),
        "read: scaled dot, causal and padding": both(
            (4, 4, 256, 32), mask=regard.causal() & padding
        ),
        "read: one query, 16 keys": forward((8, 4, 1, 32), (8, 4, 16, 32)),
        "read: additive 4 x 128 x 64": both((4, 128, 64), score=additive),
        "read: additive, one query, 30 keys": forward((16, 1, 64), (16, 30, 64), score=additive),
        "read: cosine 4 x 128 x 64": both((4, 128, 64), score=regard.Cosine()),
        "read: sparsemax 4 x 128 x 64": both((4, 128, 64), choice=regard.Sparse(alpha=2)),
    }


def training() -> dict[str, Callable[[], object]]:
    """Return training steps."""
    import torch  # noqa: PLC0415

    from regard.data.batches import EncodedPairs, TokenBatches  # noqa: PLC0415

    # In each checkout this module has the configs, wherever they are.
    from regard.models.build import ModelConfig, RecurrentConfig, TransformerConfig, build  # noqa: PLC0415

    draw = torch.Generator().manual_seed(1)

    def texts(count: int) -> list[list[int]]:
        return [
            torch.randint(4, VOCAB, (8 + 5 * (i % 4),), generator=draw).tolist()
            for i in range(count)
        ]

    batches = TokenBatches(
        EncodedPairs.from_sequences(texts(64), texts(64)), batch_tokens=1024, seed=1
    )
    batch = batches.collate(0, batches.plan(0)[0])

    def step(core: Any) -> Callable[[], object]:
        model = build(
            ModelConfig(core=core, dropout=0.1),
            source_vocab=VOCAB,
            target_vocab=VOCAB,
            label_smoothing=0.1,
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

        def work() -> object:
            loss = model.loss(batch)
            (loss.total / loss.count).backward()
            optimizer.step()
            optimizer.zero_grad()
            return None

        return work

    return {
        "training step: Transformer 4+4 x 128": step(
            TransformerConfig(layers=4, width=128, heads=4, feedforward=512)
        ),
        "training step: gru with additive attention": step(
            RecurrentConfig(hidden=128, attention="additive")
        ),
    }


def decoding() -> dict[str, Callable[[], object]]:
    """Return searches by every engine that needs no other package."""
    import torch  # noqa: PLC0415

    from regard.decode.config import DecodeConfig  # noqa: PLC0415
    from regard.engines.registry import prepare  # noqa: PLC0415
    from regard.models.build import ModelConfig, TransformerConfig, build  # noqa: PLC0415

    core = TransformerConfig(layers=4, width=128, heads=4, feedforward=512)
    model = build(ModelConfig(core=core), source_vocab=VOCAB, target_vocab=VOCAB).eval()
    draw = torch.Generator().manual_seed(1)
    sentences = [torch.randint(4, VOCAB, (10 + i % 5,), generator=draw).tolist() for i in range(64)]
    work: dict[str, Callable[[], object]] = {}
    for name, kind in (("compiled", "float32"), ("compiled", "int8"), ("torch", None)):
        engine = prepare(name, model, compute_type=kind, threads=1)

        def search(engine: Any = engine, beam: int = 1, count: int = 1) -> object:
            # An untrained model rarely emits EOS: all checkouts decode up to the limit.
            config = DecodeConfig(beam=beam, max_ratio=1.0, max_extra=5)
            return engine.search(sentences[:count], config=config, bos=2, eos=3, pad=0)

        title = f"decoding: {name}{' ' + kind if kind else ''}"
        work[f"{title}, one sentence, greedy"] = search
        if name == "compiled":
            work[f"{title}, 64 sentences, beam 4"] = lambda search=search: search(beam=4, count=64)
    return work


def predicting() -> dict[str, Callable[[], object]]:
    """Return predictions of one sentence by a run that was trained for one step."""
    import regard  # noqa: PLC0415
    from regard.cli.main import main as command  # noqa: PLC0415

    draw = random.Random(1)
    texts = [" ".join(f"w{draw.randrange(VOCAB)}" for _ in range(12)) for _ in range(4000)]
    with tempfile.TemporaryDirectory() as name:
        pairs, run = Path(name, "pairs.tsv"), Path(name, "run")
        pairs.write_text(
            "".join(f"{source}\t{target}\n" for source, target in itertools.pairwise(texts)),
            encoding="utf-8",
        )
        model = (
            "--model.core.layers 4 --model.core.width 128 --model.core.heads 4 "
            "--model.core.feedforward 512"
        )
        rest = "--tokenizer.kind word --tokenizer.vocab-size 8000 --train.steps 1 --val-sample 1"
        # untrained, so the limit ends it
        ends = "--decode.beam 1 --decode.max-ratio 1 --decode.max-extra 5"
        words = (
            f"train translate --run {run} --data.train {pairs} --data.val {pairs} {model} {rest} "
            f"{ends}"
        )
        with contextlib.redirect_stdout(sys.stderr):
            if command(words.split()) != 0:
                raise SystemExit("the run could not be trained")
        loaded = {
            kind: regard.load(run, engine="compiled", compute_type=kind)
            for kind in ("float32", "int8")
        }
    return {
        f"predict: one sentence, compiled {kind}": lambda run=run: run.predict(texts[:1])
        for kind, run in loaded.items()
    }


def command_line() -> dict[str, Callable[[], object]]:
    """Return starts of the command line."""

    def start(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, "-m", "regard", *words], check=True, capture_output=True
        )

    return {
        "regard --help": start("--help"),
        "regard train translate --help": start("train", "translate", "--help"),
    }


PARTS = {
    "read": reader,
    "train": training,
    "decode": decoding,
    "predict": predicting,
    "help": command_line,
}


def serve(threads: int, parts: list[str]) -> None:
    """Run the requested piece of work repeatedly and print the mean seconds."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    work = {name: task for part in parts for name, task in PARTS[part]().items()}
    for task in work.values():
        task()
    print("|".join(work), flush=True)
    for line in sys.stdin:
        times, name = line.rstrip("\n").split(" ", 1)
        start_time = time.perf_counter()
        for _ in range(int(times)):
            work[name]()
        print((time.perf_counter() - start_time) / int(times), flush=True)


def start_server(checkout: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a process that serves requests with the package of a checkout, by its own copy of this
    file."""
    words = ["--serve", "--threads", str(options.threads), "--only", *options.only]
    return subprocess.Popen(
        [sys.executable, str(checkout / "benchmarks" / "checkouts.py"), *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(options.threads)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def request_time(process: subprocess.Popen[str], times: int, name: str) -> float:
    """Return the mean seconds of a piece of work."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{times} {name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts", nargs="*", type=lambda text: Path(text).resolve(), metavar="BEFORE AFTER"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.threads, options.only)
        return
    if len(options.checkouts) != 2:
        parser.error("name two checkouts: BEFORE AFTER")
    processes = [start_server(checkout, options) for checkout in options.checkouts]
    pieces = [
        process.stdout.readline().rstrip("\n").split("|") for process in processes if process.stdout
    ]
    print(
        f"{'work':46} {'before, ms':>11} {'after, ms':>10}  after / before: median (least to "
        f"greatest)"
    )
    for names in zip(
        *pieces, strict=True
    ):  # the same work, which the checkouts may name differently
        times = max(1, min(200, int(0.1 / request_time(processes[0], 1, names[0]))))
        rounds = []
        for number in range(options.rounds):
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {
                which: request_time(processes[which], times, names[which]) for which in order
            }
            rounds.append((seconds[0], seconds[1]))
        before, after = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
        ratios = sorted(later / earlier for earlier, later in rounds)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{names[1]:46} {before:11.3f} {after:10.3f}  {spread}", flush=True)
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main()
