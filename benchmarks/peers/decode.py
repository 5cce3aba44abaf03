"""How fast are sentences translated from the same weights, beside Transformers' generate and CTranslate2?

    python -m benchmarks.peers.decode --data FOLDER [--quick]

4+4 blocks of width 128 and 6+6 of 512, random weights (see same_weights), Multi30k test sentences spread over all
lengths (mean 14.8 pieces), 20 new tokens each, greedy and beam 4; one sentence at a time, and 64 of like length at a
time. This library and Transformers take turns in one process, each with one thread and with all; the best of each
counts. CTranslate2 has processes of its own, for float32 and int8 and for workers x threads 1x1, 2x1, 1x2: 2x1 has
two sentences (batches) in flight, 1x1 and 1x2 are one stream, as the others are. Outputs are compared with this
library's.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.ct2_alone import alone
from benchmarks.peers.decoded import tell
from benchmarks.peers.engines import OURS, TOKENS, Decode, Engine, theirs, with_threads
from benchmarks.peers.material import test_sentences
from benchmarks.peers.options import Options, Report, parsed
from benchmarks.peers.rounds import take_turns
from benchmarks.peers.same_weights import as_marian, our_translator, save_for_ctranslate2, spelled
from benchmarks.peers.translators import SIZES
from regard.train.allocator import keep_freed_memory

SETTINGS = {
    "greedy, batch 1": (1, 1),
    "beam 4, batch 1": (1, 4),
    "greedy, batch 64": (64, 1),
    "beam 4, batch 64": (64, 4),
}
"""Sentences at a time and beam."""
WORKERS = ((1, 1), (2, 1), (1, 2))
"""Of CTranslate2, and the threads of each."""
LEAST = 128
"""Sentences that CTranslate2 gets at least (some twice, for a few take it no time), and in the large size at most."""

Sentences = Sequence[Sequence[int]]


def portion(sentences: Sentences, batch: int, size: str, number: int) -> Sentences:
    """The sentences of a round, of like length in each batch and of all lengths over the rounds."""
    count = batch if batch > 1 else (4 if size == "6+6 x 512" else 8)
    if batch == 1:
        step = len(sentences) // count
        return [sentences[(place * step + 37 * number) % len(sentences)] for place in range(count)]
    start = (number * 5 * batch + 3 * batch) % (len(sentences) - batch)
    return sentences[start : start + batch]


def contestants(size: str, threads: int, folder: Path) -> dict[str, Decode]:
    """Engines of this library and Transformers, with one thread and with all; CTranslate2's files are written."""
    model = our_translator(SIZES[size])
    marian = as_marian(model, SIZES[size])
    save_for_ctranslate2(marian, folder)
    found: dict[str, Decode] = {}
    for name, engine in (OURS | {"Transformers": Engine(lambda _: theirs(marian))}).items():
        decode = engine.make(model)
        if engine.varies:
            found |= {f"{name}, {n} thr.": with_threads(decode, n) for n in sorted({1, threads})}
        else:
            found[name] = decode
    return found


def compare(options: Options, report: Report, size: str, all_sentences: Sentences) -> None:
    """Tables of one size."""
    rounds = options.rounds(5)
    with tempfile.TemporaryDirectory() as folder:
        engines = contestants(size, options.threads, Path(folder))
        rates: dict[str, dict[str, list[float]]] = {}
        answers: dict[str, dict[str, list[list[int]]]] = {}
        for setting, (batch, beam) in SETTINGS.items():
            portions = [portion(all_sentences, batch, size, number) for number in range(rounds + 1)]
            said: dict[str, list[list[int]]] = {name: [] for name in engines}

            def turn(number: int, name: str) -> None:
                found = engines[name](portions[number], batch, beam)  # noqa: B023  # called within this round only
                said[name] += found if number else []  # noqa: B023

            turns = {name: lambda number, name=name: turn(number, name) for name in engines}
            times = take_turns(turns, rounds=rounds, report=report)
            counts = [len(one) for one in portions[1:]]
            rates[setting] = {
                name: [n / s for n, s in zip(counts, taken, strict=True)] for name, taken in times.seconds.items()
            }
            flat = [sentence for one in portions[1:] for sentence in one]
            answers[setting] = said | {"": flat}
        found = ctranslate2_alone(options, Path(folder), size, answers)
        for setting in SETTINGS:
            others, said = found[setting], answers[setting]
            tell(
                report,
                f"{size}, {setting}: sentences/s",
                rates[setting] | {name: values for name, (values, _) in others.items()},
                said | {name: outputs for name, (_, outputs) in others.items()},
                together=list(rates[setting]),
            )


def ctranslate2_alone(
    options: Options, folder: Path, size: str, answers: dict[str, Any]
) -> dict[str, dict[str, tuple]]:
    """Rates and outputs of CTranslate2 on the same sentences, by setting and by what it was told to use."""
    jobs = {}
    for setting, (batch, beam) in SETTINGS.items():
        texts = [[spelled(number) for number in sentence] for sentence in answers[setting][""]]
        texts = texts * -(-LEAST // len(texts)) if size == "4+4 x 128" else texts[:LEAST]
        jobs[setting] = {"texts": texts, "batch": batch, "beam": beam, "tokens": TOKENS}
    found: dict[str, dict[str, tuple]] = {setting: {} for setting in SETTINGS}
    kinds = ("float32",) if options.quick else ("float32", "int8")
    for compute_type in kinds:
        for workers, threads in WORKERS[: 1 if options.quick else None]:
            task = {"folder": str(folder), "kind": "translator", "compute_type": compute_type, "jobs": jobs}
            task |= {"inter_threads": workers, "intra_threads": threads, "rounds": options.rounds(3, 1)}
            for setting, done in alone(task).items():
                rates = [len(jobs[setting]["texts"]) / seconds for seconds in done["seconds"]]
                said = [[int(piece.removeprefix("t")) for piece in one] for one in done["outputs"]]
                found[setting][f"CTranslate2 {compute_type} {workers}x{threads}"] = (rates, said)
    return found


def main() -> None:
    options = parsed(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Translating, 20 new tokens a sentence, the same weights", options, "transformers", "ctranslate2")
    sentences = test_sentences(options.data)
    for size in SIZES:
        if not (options.quick and size == "6+6 x 512"):
            compare(options, report, size, sentences)


if __name__ == "__main__":
    main()
