"""Speed of text generation with the same weights, compared with Transformers' GPT-2 and
CTranslate2.

    python -m benchmarks.peers.generate --data FOLDER [--quick]

6 blocks of width 384, 6 heads, 65 characters, context 256, random weights that are the same in all
(see same_weights), a prompt of 16 and 200 new tokens, greedy; one text, and 32. This library's
`sample` takes one text at a time; "regard, steps" calls the model directly, with 32 rows at once.
These and Transformers take turns in one process, each with one thread and with all; CTranslate2
runs in separate processes (2x1: two texts, or two batches of 16, in parallel).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.ct2_alone import run_alone
from benchmarks.peers.decoded import report_decoding
from benchmarks.peers.engines import with_threads
from benchmarks.peers.gpt_own import Sizes
from benchmarks.peers.options import Options, Report, parse_options
from benchmarks.peers.rounds import take_turns
from benchmarks.peers.same_weights import as_gpt2, our_gpt, save_gpt_for_ctranslate2, token_name
from benchmarks.peers.train_gpt import our_core
from regard.decode.config import SampleConfig
from regard.decode.sample import sample
from regard.engines.registry import prepare
from regard.models.model import Model
from regard.system.allocator import keep_freed_memory

PROMPT, NEW = 16, 200
ROWS = (1, 32)
WORKERS = ((1, 1), (2, 1), (1, 2))
SIZES = Sizes()

Continue = Callable[[Tensor], list[list[int]]]
"""Function from prompts (rows, 16) to their continuations."""


def continue_by_sample(model: Model) -> Continue:
    """Continue one text at a time with the public function."""
    likeliest = SampleConfig(length=NEW, temperature=0.0)
    return lambda prompts: [
        list(sample(model, prompt, likeliest, window=None, seed=1, banned=[]))
        for prompt in prompts.tolist()
    ]


def continue_by_steps(model: Model) -> Continue:
    """Continue all rows at once, one token per step."""

    @torch.no_grad()
    def continue_texts(prompts: Tensor) -> list[list[int]]:
        first, *others = prompts.unbind(1)
        logits, state = model.step(first, model.start(rows=len(prompts)))
        for token in others:
            logits, state = model.step(token, state)
        outputs = []
        for number in range(NEW):
            outputs.append(logits.argmax(-1))
            if number < NEW - 1:
                logits, state = model.step(outputs[-1], state)
        return torch.stack(outputs, 1).tolist()

    return continue_texts


def continue_compiled(compute_type: str, workers: int) -> Callable[[Model], Continue]:
    """Continue with the compiled engine."""

    def make(model: Model) -> Continue:
        engine = prepare("compiled", model, compute_type=compute_type, workers=workers)
        likeliest = SampleConfig(length=NEW, temperature=0.0)

        def continue_texts(prompts: Tensor) -> list[list[int]]:
            seeds = [1] * len(prompts)
            return engine.generate(prompts.tolist(), likeliest, window=None, seeds=seeds, banned=[])

        return continue_texts

    return make


OURS: dict[str, Callable[[Model], Continue]] = {
    "regard, steps": continue_by_steps,
    "regard, sample": continue_by_sample,
    **{
        f"regard, compiled {kind} {workers}x1": continue_compiled(kind, workers)
        for kind in ("float32", "bfloat16", "int8")
        for workers in (1, 2)
    },
}
"""Methods of this library; outputs are compared with the first. `sample` is left out for 32
texts."""


def continue_with_transformers(model: Any) -> Continue:
    """Continue with Transformers' `generate` and its cache."""

    @torch.inference_mode()
    def continue_texts(prompts: Tensor) -> list[list[int]]:
        options = {"do_sample": False, "max_new_tokens": NEW, "use_cache": True, "pad_token_id": 0}
        outputs = model.generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), **options
        )
        return outputs[:, PROMPT:].tolist()

    return continue_texts


def compare(
    options: Options, report: Report, rows: int, folder: Path, engines: dict[str, Continue]
) -> None:
    """Report one table."""
    rounds = options.rounds(5)
    prompts = [torch.randint(SIZES.vocab, (rows, PROMPT)) for _ in range(rounds + 1)]
    outputs: dict[str, list[list[int]]] = {name: [] for name in engines}

    def turn(number: int, name: str) -> None:
        outputs[name] += engines[name](prompts[number])

    turns = {name: lambda number, name=name: turn(number, name) for name in engines}
    times = take_turns(turns, rounds=rounds, report=report)
    rates = {
        name: [rows * NEW / seconds for seconds in durations]
        for name, durations in times.seconds.items()
    }
    texts = [
        [token_name(number + 4) for number in prompt]
        for batch in prompts
        for prompt in batch.tolist()
    ][: 2 * max(ROWS)]
    for compute_type in ("float32",) if options.quick else ("float32", "int8"):
        for workers, threads in WORKERS[: 1 if options.quick else None]:
            batch = 1 if rows == 1 else rows // workers
            job = {"texts": texts, "batch": batch, "beam": 1, "tokens": NEW}
            task = {
                "folder": str(folder),
                "kind": "generator",
                "compute_type": compute_type,
                "jobs": {"": job},
            }
            task |= {
                "inter_threads": workers,
                "intra_threads": threads,
                "rounds": options.rounds(2, 1),
            }
            result = run_alone(task)[""]
            name = f"CTranslate2 {compute_type} {workers}x{threads}"
            rates[name] = [len(texts) * NEW / seconds for seconds in result["seconds"]]
            outputs[name] = result["outputs"]
    title = f"{rows} {'texts' if rows > 1 else 'text'}: tokens/s"
    report_decoding(report, title, rates, outputs, together=list(engines))


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head(
        "Text generation, 6 x 384, the same weights", options, "transformers", "ctranslate2"
    )
    model = our_gpt(our_core(), vocab=SIZES.vocab)
    gpt2 = as_gpt2(model, SIZES)
    with tempfile.TemporaryDirectory() as folder:
        save_gpt_for_ctranslate2(gpt2, Path(folder), vocab=SIZES.vocab)
        for rows in ROWS:
            methods = {
                name: make(model)
                for name, make in OURS.items()
                if rows == 1 or "sample" not in name
            }
            methods["Transformers"] = continue_with_transformers(gpt2)
            engines: dict[str, Continue] = {}
            for name, method in methods.items():
                if "compiled" in name:
                    engines |= {name: method} if rows > 1 or "2x1" not in name else {}
                else:
                    engines |= {
                        f"{name}, {n} thr.": with_threads(method, n)
                        for n in sorted({1, options.threads})
                    }
            compare(options, report, rows, Path(folder), engines)


if __name__ == "__main__":
    main()
