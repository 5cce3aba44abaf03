"""Engines side by side on one run: seconds, outputs a second, and what the metric makes of their outputs.

    python -m benchmarks.engines RUN [--count 1000] [--threads 2] [--beams 1 5] [--rounds 3] [--one]
        [--contestants torch:::1 torch ctranslate2 ctranslate2:int8:1:2]
    python -m benchmarks.engines RUN --data FOLDER ...      # Multi30k's test_2016_flickr in place of the run's test

A contestant is ENGINE[:COMPUTE TYPE[:WORKERS[:THREADS]]], threads of all its workers together. Each lives in a process
of its own, because two libraries with threads disturb each other in one; they take turns, one search at a time, so that
the machine's mood is shared. Seconds are those of `predict`, tokenizers included; they are medians, and the ratio to
the first contestant is the median of the ratios round by round. `differ` counts the sentences whose output is not the
first contestant's. With --one the sentences are searched one at a time.
"""

import argparse
import gzip
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def sentences(run: Any, data: Path | None, count: int) -> tuple[list[str], list[str]]:
    """Sources and references."""
    if data is None:
        texts = run.material.held_out("test", run.codec)
        return list(texts.sources[:count]), list(texts.targets[:count])
    lines = []
    for language in ("en", "de"):
        with gzip.open(data / f"test_2016_flickr.lc.norm.tok.{language}.gz", "rt", encoding="utf-8", newline="\n") as f:
            lines.append([line.strip() for line in f][:count])
    return lines[0], lines[1]


def work(pipe: Connection, options: argparse.Namespace, contestant: str) -> None:
    """Load; then answer whenever a beam comes; a beam of 0 ends."""
    import torch  # noqa: PLC0415

    from regard.recipes.task import load  # noqa: PLC0415

    engine, compute_type, workers, threads = [*contestant.split(":"), "", "", ""][:4]
    torch.set_num_threads(int(threads or options.threads))
    begun = time.perf_counter()
    run = load(options.run, engine=engine, compute_type=compute_type or None, workers=int(workers) if workers else None)
    pipe.send(time.perf_counter() - begun)
    sources, references = sentences(run, options.data, options.count)
    metric = run.material.metric
    run.predict(sources[:8], beam=2)  # what is made at the first call
    while beam := pipe.recv():
        begun = time.perf_counter()
        if options.one:
            said = [run.predict([source], beam=beam)[0] for source in sources]
        else:
            said = run.predict(sources, beam=beam)
        pipe.send((time.perf_counter() - begun, metric.score(said, references), said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--contestants", nargs="+", default=["torch", "ctranslate2", "ctranslate2:int8"])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for contestant in options.contestants:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, options, contestant), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
        print(f"{contestant}: loaded in {here.recv():.2f} s", flush=True)
    for beam in options.beams:
        seconds: list[list[float]] = [[] for _ in pipes]
        found: list[tuple[float, list[str]]] = [(0.0, [])] * len(pipes)
        for _ in range(options.rounds):
            for place, pipe in enumerate(pipes):
                pipe.send(beam)
                taken, score, said = pipe.recv()
                seconds[place].append(taken)
                found[place] = score, said
        for place, contestant in enumerate(options.contestants):
            score, said = found[place]
            median = statistics.median(seconds[place])
            ratio = statistics.median(a / b for a, b in zip(seconds[0], seconds[place], strict=True))
            differ = sum(a != b for a, b in zip(said, found[0][1], strict=True))
            print(
                f"beam {beam}  {contestant:24} {median:7.3f} s  least {min(seconds[place]):7.3f}  "
                f"{len(said) / median:7.1f} a second  x{ratio:5.2f}  score {score:6.2f}  differ {differ}",
                flush=True,
            )
    for pipe in pipes:
        pipe.send(0)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
