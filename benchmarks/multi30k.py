"""Multi30k English to German: BLEU of several trained runs, also against source length.

    python benchmarks/multi30k.py --data FOLDER --out benchmarks/results/multi30k NAME=RUN [NAME=RUN
    ...]

Protocol: test_2016_flickr, lower-cased, normalized and Moses-tokenized files, BLEU on these tokens
(sacrebleu --tokenize none), beam 5, length penalty 1. Captions are short, so long sources are
concatenations of 2, 3 and 4 consecutive test pairs. No model has seen such sources in training.

Writes OUT.json (every figure) and OUT-length.svg, OUT-curves.svg (the plots).
"""

import argparse
import gzip
import json
import time
from itertools import pairwise
from pathlib import Path

import sacrebleu
import torch
from matplotlib.figure import Figure
from sacrebleu.metrics.bleu import BLEUScore

from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load

NUM_JOINED = (1, 2, 3, 4)
EDGES = (0, 10, 15, 20, 25, 30, 40, 50, 60)
"""Bin edges of source words: more than the first, at most the second."""
LEAST_PAIRS = 30
"""Bins with fewer pairs are left out."""
COLORS = ("#1b6ca8", "#d1495b", "#5f6b73", "#3c8d53")


def read_lines(path: Path) -> list[str]:
    """Read the lines of a gzipped text."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.strip() for line in file]


def join_lines(lines: list[str], count: int) -> list[str]:
    """Join every `count` consecutive lines; an incomplete rest is left out."""
    return [" ".join(lines[i : i + count]) for i in range(0, len(lines) - count + 1, count)]


def bleu(outputs: list[str], references: list[str]) -> BLEUScore:
    """Return corpus BLEU of tokenized texts."""
    return sacrebleu.corpus_bleu(outputs, [references], tokenize="none", force=True)


def by_length(triples: list[tuple[str, str, str]]) -> list[dict[str, float]]:
    """Return BLEU of (source, output, reference) in each bin of source words."""
    rows = []
    for least, most in pairwise(EDGES):
        in_bin = [t for t in triples if least < len(t[0].split()) <= most]
        if len(in_bin) >= LEAST_PAIRS:
            _, outputs, references = map(list, zip(*in_bin, strict=True))
            mean = sum(len(t[0].split()) for t in in_bin) / len(in_bin)
            score = bleu(outputs, references).score
            rows.append(
                {"over": least, "up_to": most, "pairs": len(in_bin), "words": mean, "bleu": score}
            )
    return rows


def measure(run: TrainedRun, sources: list[str], references: list[str]) -> dict:
    """Return all figures of one run."""
    start = time.perf_counter()
    outputs = run.predict(sources, beam=5, length_penalty=1.0)
    seconds = time.perf_counter() - start
    greedy = run.predict(sources, beam=1)
    score = bleu(outputs, references)
    triples = list(zip(sources, outputs, references, strict=True))
    for count in NUM_JOINED[1:]:
        longer, references_joined = join_lines(sources, count), join_lines(references, count)
        triples += zip(
            longer, run.predict(longer, beam=5, length_penalty=1.0), references_joined, strict=True
        )
    return {
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "bleu": score.score,
        "detail": str(score),
        "bleu_greedy": bleu(greedy, references).score,
        "seconds_beam5": seconds,
        "by_length": by_length(triples),
        "curve": curve(run.folder / "log.jsonl"),
        "training": json.loads((run.folder / "report.json").read_text(encoding="utf-8"))[
            "training"
        ],
    }


def curve(log: Path) -> list[dict[str, float]]:
    """Return the metrics of every validation of a run."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["kind"] == "validation"]


def plot_lengths(figures: dict[str, dict], path: Path) -> None:
    """Plot BLEU against source length."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for (name, values), color in zip(figures.items(), COLORS, strict=False):
        rows = values["by_length"]
        axes.plot(
            [r["words"] for r in rows], [r["bleu"] for r in rows], "o-", color=color, label=name
        )
    axes.axvline(20, color="#bbbbbb", linestyle=":")
    axes.text(20.4, 1, "beyond: mostly several\ncaptions end to end", fontsize=8, color="#777777")
    axes.set(
        xlabel="source words",
        ylabel="BLEU",
        ylim=(0, None),
        title="Multi30k English to German, test 2016",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)


def plot_curves(figures: dict[str, dict], path: Path) -> None:
    """Plot validation BLEU and perplexity against training steps."""
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    for axes, key, title in zip(
        figure.subplots(1, 2),
        ("bleu", "perplexity"),
        ("validation BLEU, greedy", "validation perplexity"),
        strict=True,
    ):
        for (name, values), color in zip(figures.items(), COLORS, strict=False):
            rows = values["curve"]
            axes.plot(
                [r["step"] / 1000 for r in rows], [r[key] for r in rows], color=color, label=name
            )
        axes.set(xlabel="thousand steps of 4,096 tokens", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        if key == "perplexity":
            axes.set_ylim(0, 40)
        axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sources, references = (
        read_lines(options.data / f"test_2016_flickr.lc.norm.tok.{x}.gz") for x in ("en", "de")
    )
    figures = {}
    for item in options.runs:
        name, _, folder = item.partition("=")
        figures[name] = measure(load(folder), sources, references)
        print(f"{name:28} {figures[name]['parameters']:>10,} parameters  BLEU "
              f"{figures[name]['bleu']:.2f}  "
              f"greedy {figures[name]['bleu_greedy']:.2f}", flush=True)  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(
        json.dumps(figures, indent=1) + "\n", encoding="utf-8"
    )
    plot_lengths(figures, options.out.with_name(options.out.name + "-length.svg"))
    plot_curves(figures, options.out.with_name(options.out.name + "-curves.svg"))


if __name__ == "__main__":
    main()
