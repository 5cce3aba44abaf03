"""Translation speed with the same weights, compared with Transformers' generate and CTranslate2.

    python -m benchmarks.peers.decode --data FOLDER [--quick]

4+4 blocks of width 128 and 6+6 of 512, random weights (see same_weights), Multi30k test sentences
spread over all lengths (mean 14.8 subwords), 20 new tokens each, greedy and beam 4; one sentence at
a time, and batches of 64 similar lengths. This library and Transformers take turns in one process,
each with one thread and with all; the best of each counts. CTranslate2 runs in separate processes,
for float32 and int8 and for workers x threads 1x1, 2x1, 1x2: 2x1 decodes two sentences (batches) in
parallel, 1x1 and 1x2 are one stream, like the others. Outputs are compared with this library's.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.ct2_alone import run_alone
from benchmarks.peers.decoded import report_decoding
from benchmarks.peers.engines import (
    OURS,
    TOKENS,
    Decode,
    Engine,
    decode_with_transformers,
    with_threads,
)
from benchmarks.peers.material import test_sentences
from benchmarks.peers.options import Options, Report, parse_options
from benchmarks.peers.rounds import take_turns
from benchmarks.peers.same_weights import (
    as_marian,
    our_translator,
    save_for_ctranslate2,
    token_name,
)
from benchmarks.peers.translators import SIZES
from regard.system.allocator import keep_freed_memory

SETTINGS = {
    "greedy, batch 1": (1, 1),
    "beam 4, batch 1": (1, 4),
    "greedy, batch 64": (64, 1),
    "beam 4, batch 64": (64, 4),
}
"""Batch size and beam size."""
WORKERS = ((1, 1), (2, 1), (1, 2))
"""Workers of CTranslate2 and threads of each."""
LEAST = 128
"""Minimum number of sentences for CTranslate2 in the small size (some twice), and maximum in the
large size."""

Sentences = Sequence[Sequence[int]]


def portion(sentences: Sentences, batch: int, size: str, number: int) -> Sentences:
    """Return the sentences of a round: similar lengths in a batch, all lengths over the rounds."""
    count = batch if batch > 1 else (4 if size == "6+6 x 512" else 8)
    if batch == 1:
        step = len(sentences) // count
        return [
            sentences[(position * step + 37 * number) % len(sentences)] for position in range(count)
        ]
    start = (number * 5 * batch + 3 * batch) % (len(sentences) - batch)
    return sentences[start : start + batch]


def contestants(size: str, threads: int, folder: Path) -> dict[str, Decode]:
    """Return the engines of this library and Transformers, with one thread and with all; write
    CTranslate2's files."""
    model = our_translator(SIZES[size])
    marian = as_marian(model, SIZES[size])
    save_for_ctranslate2(marian, folder)
    methods: dict[str, Decode] = {}
    for name, engine in (
        OURS | {"Transformers": Engine(lambda _: decode_with_transformers(marian))}
    ).items():
        decode = engine.make(model)
        if engine.varies:
            methods |= {f"{name}, {n} thr.": with_threads(decode, n) for n in sorted({1, threads})}
        else:
            methods[name] = decode
    return methods


def compare(options: Options, report: Report, size: str, all_sentences: Sentences) -> None:
    """Report the tables of one size."""
    rounds = options.rounds(5)
    with tempfile.TemporaryDirectory() as folder:
        engines = contestants(size, options.threads, Path(folder))
        rates: dict[str, dict[str, list[float]]] = {}
        answers: dict[str, dict[str, Any]] = {}
        for setting, (batch, beam) in SETTINGS.items():
            portions = [portion(all_sentences, batch, size, number) for number in range(rounds + 1)]
            outputs: dict[str, list[list[int]]] = {name: [] for name in engines}

            def turn(number: int, name: str) -> None:
                outputs_by_setting = engines[name](portions[number], batch, beam)  # noqa: B023  # called within this round only
                outputs[name] += outputs_by_setting if number else []  # noqa: B023

            turns = {name: lambda number, name=name: turn(number, name) for name in engines}
            times = take_turns(turns, rounds=rounds, report=report)
            counts = [len(part) for part in portions[1:]]
            rates[setting] = {
                name: [n / s for n, s in zip(counts, seconds, strict=True)]
                for name, seconds in times.seconds.items()
            }
            flat = [sentence for part in portions[1:] for sentence in part]
            answers[setting] = outputs | {"": flat}
        outputs_by_setting = ctranslate2_alone(options, Path(folder), size, answers)
        for setting in SETTINGS:
            other_rates, outputs = outputs_by_setting[setting], answers[setting]
            report_decoding(
                report,
                f"{size}, {setting}: sentences/s",
                rates[setting] | {name: values for name, (values, _) in other_rates.items()},
                outputs | {name: tokens for name, (_, tokens) in other_rates.items()},
                together=list(rates[setting]),
            )


def ctranslate2_alone(
    options: Options, folder: Path, size: str, answers: dict[str, Any]
) -> dict[str, dict[str, tuple]]:
    """Return rates and outputs of CTranslate2 on the same sentences, by setting and
    configuration."""
    jobs: dict[str, dict[str, Any]] = {}
    for setting, (batch, beam) in SETTINGS.items():
        texts = [[token_name(number) for number in sentence] for sentence in answers[setting][""]]
        texts = texts * -(-LEAST // len(texts)) if size == "4+4 x 128" else texts[:LEAST]
        jobs[setting] = {"texts": texts, "batch": batch, "beam": beam, "tokens": TOKENS}
    results: dict[str, dict[str, tuple]] = {setting: {} for setting in SETTINGS}
    kinds = ("float32",) if options.quick else ("float32", "int8")
    for compute_type in kinds:
        for workers, threads in WORKERS[: 1 if options.quick else None]:
            task = {
                "folder": str(folder),
                "kind": "translator",
                "compute_type": compute_type,
                "jobs": jobs,
            }
            task |= {
                "inter_threads": workers,
                "intra_threads": threads,
                "rounds": options.rounds(3, 1),
            }
            for setting, setting_results in run_alone(task).items():
                rates = [
                    len(jobs[setting]["texts"]) / seconds for seconds in setting_results["seconds"]
                ]
                outputs = [
                    [int(piece.removeprefix("t")) for piece in tokens]
                    for tokens in setting_results["outputs"]
                ]
                results[setting][f"CTranslate2 {compute_type} {workers}x{threads}"] = (
                    rates,
                    outputs,
                )
    return results


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head(
        "Translation, 20 new tokens per sentence, the same weights",
        options,
        "transformers",
        "ctranslate2",
    )
    sentences = test_sentences(options.data)
    for size in SIZES:
        if not (options.quick and size == "6+6 x 512"):
            compare(options, report, size, sentences)


if __name__ == "__main__":
    main()
