"""Muon beside AdamW: validation loss of runs with the rates of both swept, over seeds.

    python benchmarks/muon.py language dates translate images --data $DATA --out OUT

AdamW trains for the steps of the task and Muon for --share of them, each with its own schedule: the
share in which Muon reaches the loss of AdamW is the question. The rate of each is the best of three
on seed 1; its other seeds follow at that rate. A line for each run: task, optimizer, steps, rate,
seed, validation loss (nats a token; images: a image) and metric, processor seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

CORE = "--model.core.layers {} --model.core.width {} --model.core.feedforward {}"
RATES = ("1e-3", "2e-3", "4e-3")
TASKS = {
    "language": (600, CORE.format(4, 128, 512) + " --train.warmup 30"),
    "dates": (600, "--train.warmup 100"),
    "translate": (
        500,
        CORE.format(2, 128, 512) + " --train.warmup 100 --train.schedule cosine"
        " --train.batch-tokens 2048 --train.average 0 --val-sample 200 --train.precision bfloat16",
    ),
    "images": (800, CORE.format(2, 64, 192) + " --batch 64 --train.warmup 50"),
}


def write_data(task: str, data: Path) -> list[str]:
    """Return the options of the data of a task."""
    if task == "language":
        return ["--data.train", f"{data}/tinyshakespeare/input.txt.gz"]
    if task == "translate":
        words = []
        for split in ("train", "val"):
            stem = f"{data}/multi30k/{split}.lc.norm.tok"
            words += [f"--data.{split}", f"{stem}.en.gz", f"--data.{split}-target", f"{stem}.de.gz"]
        return words
    if task == "images":
        return ["--data.train", f"{data}/fashion-mnist/train-images-idx3-ubyte.gz"]
    return []


def train(run: Path, task: str, data: Path, words: list[str]) -> tuple[float, str, float]:
    """Train; return the last validation loss, the metrics in words, and processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", "regard", "train", task, "--run", str(run)]
    command += [*write_data(task, data), *TASKS[task][1].split(), *words]
    subprocess.run(command, check=True, capture_output=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if line["kind"] == "validation"][-1]
    others = ("exact_match", "bleu", "accuracy")
    text = "  ".join(f"{name} {metrics[name]:.4g}" for name in others if name in metrics)
    return metrics["nll"], text, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", choices=list(TASKS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for task in given.tasks:
        for optimizer in ("adamw", "muon"):
            steps = round(TASKS[task][0] * (given.share if optimizer == "muon" else 1))
            losses: dict[str, float] = {}
            for rate in RATES:
                losses[rate] = measure(given, task, optimizer, steps, rate, seed=1)
            best = min(losses, key=lambda rate: losses[rate])
            for seed in range(2, given.seeds + 1):
                measure(given, task, optimizer, steps, best, seed=seed)


def measure(
    given: argparse.Namespace, task: str, optimizer: str, steps: int, rate: str, *, seed: int
) -> float:
    run = given.out / f"{task}-{optimizer}-{steps}-{rate}-{seed}"
    words = ["--train.optimizer", optimizer, "--train.steps", str(steps), "--train.lr", rate]
    words += ["--seed", str(seed), "--train.validate-every", str(steps)]
    nll, text, seconds = train(run, task, given.data, words)
    line = f"{task} | {optimizer} | {steps} | {rate} | {seed} | {nll:.4f} | {text}"
    print(f"{line} | {seconds:.0f}", flush=True)
    return nll


if __name__ == "__main__":
    main()
