"""How fast does a language model go on with a text from the same weights, beside Transformers' GPT-2 and CTranslate2?

    python -m benchmarks.peers.generate --data FOLDER [--quick]

6 blocks of width 384, 6 heads, 65 characters, context 256, random weights that are the same in all (see same_weights),
a prompt of 16 and 200 new tokens, the likeliest each time; one text, and 32. This library's `sample` takes one text at
a time; "regard, steps" feeds the model by hand, 32 rows at once. One process for these and Transformers, turn by turn,
each with one thread and with all; CTranslate2 in processes of its own (2x1: two texts, or two batches of 16, in
flight).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.ct2_alone import alone
from benchmarks.peers.decoded import tell
from benchmarks.peers.engines import with_threads
from benchmarks.peers.gpt_own import Sizes
from benchmarks.peers.options import Options, Report, parsed
from benchmarks.peers.rounds import take_turns
from benchmarks.peers.same_weights import as_gpt2, our_gpt, save_gpt_for_ctranslate2, spelled
from benchmarks.peers.train_gpt import our_core
from regard.decode.config import SampleConfig
from regard.decode.sample import sample
from regard.engines.registry import prepare
from regard.models.language import LanguageModel
from regard.train.allocator import keep_freed_memory

PROMPT, NEW = 16, 200
ROWS = (1, 32)
WORKERS = ((1, 1), (2, 1), (1, 2))
SIZES = Sizes()

Continue = Callable[[Tensor], list[list[int]]]
"""Prompts (rows, 16) to what follows each."""


def sampled(model: LanguageModel) -> Continue:
    """What a user calls: one text at a time."""
    likeliest = SampleConfig(length=NEW, temperature=0.0)
    return lambda prompts: [
        list(sample(model, prompt, likeliest, window=None, seed=1, banned=[])) for prompt in prompts.tolist()
    ]


def stepped(model: LanguageModel) -> Continue:
    """All rows at once, a token a step."""

    @torch.no_grad()
    def go_on(prompts: Tensor) -> list[list[int]]:
        state = model.begin(len(prompts))
        for token in prompts.unbind(1):
            logits, state = model.step(token, state)
        said = []
        for number in range(NEW):
            said.append(logits.argmax(-1))
            if number < NEW - 1:
                logits, state = model.step(said[-1], state)
        return torch.stack(said, 1).tolist()

    return go_on


def compiled_in(compute_type: str, workers: int) -> Callable[[LanguageModel], Continue]:
    """The compiled engine."""

    def make(model: LanguageModel) -> Continue:
        engine = prepare("compiled", model, compute_type=compute_type, workers=workers)
        likeliest = SampleConfig(length=NEW, temperature=0.0)

        def go_on(prompts: Tensor) -> list[list[int]]:
            seeds = [1] * len(prompts)
            return engine.generate(prompts.tolist(), likeliest, window=None, seeds=seeds, banned=[])

        return go_on

    return make


OURS: dict[str, Callable[[LanguageModel], Continue]] = {
    "regard, steps": stepped,
    "regard, sample": sampled,
    **{
        f"regard, compiled {kind} {workers}x1": compiled_in(kind, workers)
        for kind in ("float32", "bfloat16", "int8")
        for workers in (1, 2)
    },
}
"""Ways of this library; the first is what outputs are compared with. `sample` is left out of 32 texts."""


def theirs(model: Any) -> Continue:
    """Transformers' generate with its cache."""

    @torch.inference_mode()
    def go_on(prompts: Tensor) -> list[list[int]]:
        how = {"do_sample": False, "max_new_tokens": NEW, "use_cache": True, "pad_token_id": 0}
        found = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **how)
        return found[:, PROMPT:].tolist()

    return go_on


def compare(options: Options, report: Report, rows: int, folder: Path, engines: dict[str, Continue]) -> None:
    """One table."""
    rounds = options.rounds(5)
    prompts = [torch.randint(SIZES.vocab, (rows, PROMPT)) for _ in range(rounds + 1)]
    said: dict[str, list[list[int]]] = {name: [] for name in engines}

    def turn(number: int, name: str) -> None:
        said[name] += engines[name](prompts[number])

    turns = {name: lambda number, name=name: turn(number, name) for name in engines}
    times = take_turns(turns, rounds=rounds, report=report)
    rates = {name: [rows * NEW / seconds for seconds in taken] for name, taken in times.seconds.items()}
    texts = [[spelled(number + 4) for number in prompt] for one in prompts for prompt in one.tolist()][: 2 * max(ROWS)]
    for compute_type in ("float32",) if options.quick else ("float32", "int8"):
        for workers, threads in WORKERS[: 1 if options.quick else None]:
            batch = 1 if rows == 1 else rows // workers
            job = {"texts": texts, "batch": batch, "beam": 1, "tokens": NEW}
            task = {"folder": str(folder), "kind": "generator", "compute_type": compute_type, "jobs": {"": job}}
            task |= {"inter_threads": workers, "intra_threads": threads, "rounds": options.rounds(2, 1)}
            done = alone(task)[""]
            name = f"CTranslate2 {compute_type} {workers}x{threads}"
            rates[name] = [len(texts) * NEW / seconds for seconds in done["seconds"]]
            said[name] = done["outputs"]
    title = f"{rows} {'texts' if rows > 1 else 'text'}: tokens/s"
    tell(report, title, rates, said, together=list(engines))


def main() -> None:
    options = parsed(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Going on with a text, 6 x 384, the same weights", options, "transformers", "ctranslate2")
    model = our_gpt(our_core(), vocab=SIZES.vocab)
    gpt2 = as_gpt2(model, SIZES)
    with tempfile.TemporaryDirectory() as folder:
        save_gpt_for_ctranslate2(gpt2, Path(folder), vocab=SIZES.vocab)
        for rows in ROWS:
            ways = {name: make(model) for name, make in OURS.items() if rows == 1 or "sample" not in name}
            ways["Transformers"] = theirs(gpt2)
            engines: dict[str, Continue] = {}
            for name, way in ways.items():
                if "compiled" in name:
                    engines |= {name: way} if rows > 1 or "2x1" not in name else {}
                else:
                    engines |= {f"{name}, {n} thr.": with_threads(way, n) for n in sorted({1, options.threads})}
            compare(options, report, rows, Path(folder), engines)


if __name__ == "__main__":
    main()
