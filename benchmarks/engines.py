"""Comparison of inference engines on one run: seconds, outputs per second, and the metric of their
outputs.

    python -m benchmarks.engines RUN [--count 1000] [--threads 2] [--beams 1 5] [--rounds 3] [--one]
        [--contestants torch:::1 torch compiled compiled:int8:1:2]
    python -m benchmarks.engines RUN --data FOLDER ...      # Multi30k's test_2016_flickr in place
    of the run's test

A contestant is ENGINE[:COMPUTE TYPE[:WORKERS[:THREADS]]], with the threads of all its workers
together. Each runs in a separate process, because thread pools of two libraries in one process
interfere; they take turns, one search at a time, so that load on the machine affects all. Seconds
are those of `predict`, tokenization included; they are medians, and the ratio to the first
contestant is the median of the ratios by round. `differ` counts the sentences whose output differs
from the first contestant's. With --one the sentences are decoded one at a time.
"""

import argparse
import gzip
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.recipes.base.text_to_text import TextToTextRecipe


def sentences(
    recipe: "TextToTextRecipe", data: Path | None, count: int
) -> tuple[list[str], list[str]]:
    """Return sources and references."""
    if data is None:
        texts = recipe.encode(recipe.load("test")).data
        return list(texts.sources[:count]), list(texts.targets[:count])
    lines = []
    for language in ("en", "de"):
        with gzip.open(
            data / f"test_2016_flickr.lc.norm.tok.{language}.gz",
            "rt",
            encoding="utf-8",
            newline="\n",
        ) as f:
            lines.append([line.strip() for line in f][:count])
    return lines[0], lines[1]


def work(pipe: Connection, options: argparse.Namespace, contestant: str) -> None:
    """Load the run, then decode with each beam size that is received; a beam of 0 ends the
    process."""
    import torch  # noqa: PLC0415

    from regard.recipes.base.text_to_text import TextToTextRecipe  # noqa: PLC0415
    from regard.recipes.load import load  # noqa: PLC0415

    engine, compute_type, workers, threads = [*contestant.split(":"), "", "", ""][:4]
    torch.set_num_threads(int(threads or options.threads))
    start = time.perf_counter()
    run = load(
        options.run,
        engine=engine,
        compute_type=compute_type or None,
        workers=int(workers) if workers else None,
    )
    pipe.send(time.perf_counter() - start)
    if not isinstance(run.recipe, TextToTextRecipe):
        raise SystemExit(f"RUN must be a run of translate or dates, got one of {run.run.recipe}")
    sources, references = sentences(run.recipe, options.data, options.count)
    run.predict(sources[:8], beam=2)  # warm up
    while beam := pipe.recv():
        start = time.perf_counter()
        if options.one:
            outputs = [run.predict([source], beam=beam)[0] for source in sources]
        else:
            outputs = run.predict(sources, beam=beam)
        seconds = time.perf_counter() - start
        normal = [[run.recipe.tokenizer.normalize(text)] for text in references]
        scores = run.recipe.text_scores(outputs, normal, is_test=False)
        pipe.send((seconds, scores[run.recipe.metric], outputs))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--contestants", nargs="+", default=["torch", "compiled", "compiled:int8"])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for contestant in options.contestants:
        parent, child = context.Pipe()
        process = context.Process(target=work, args=(child, options, contestant), daemon=True)
        process.start()
        pipes.append(parent)
        processes.append(process)
        print(f"{contestant}: loaded in {parent.recv():.2f} s", flush=True)
    for beam in options.beams:
        seconds: list[list[float]] = [[] for _ in pipes]
        results: list[tuple[float, list[str]]] = [(0.0, [])] * len(pipes)
        for _ in range(options.rounds):
            for index, pipe in enumerate(pipes):
                pipe.send(beam)
                duration, score, outputs = pipe.recv()
                seconds[index].append(duration)
                results[index] = score, outputs
        for index, contestant in enumerate(options.contestants):
            score, outputs = results[index]
            median = statistics.median(seconds[index])
            ratio = statistics.median(
                a / b for a, b in zip(seconds[0], seconds[index], strict=True)
            )
            differ = sum(a != b for a, b in zip(outputs, results[0][1], strict=True))
            print(
                f"beam {beam}  {contestant:24} {median:7.3f} s  least {min(seconds[index]):7.3f}  "
                f"{len(outputs) / median:7.1f} a second  x{ratio:5.2f}  score {score:6.2f}  differ "
                f"{differ}",
                flush=True,
            )
    for pipe in pipes:
        pipe.send(0)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
