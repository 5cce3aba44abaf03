"""Toy run: twenty pairs whose target is the source's words in capitals and reverse order."""

from pathlib import Path

_WORDS = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hal"]
SOURCES = [
    f"{_WORDS[i % 8]} {_WORDS[(3 * i + 1) % 8]} sees {_WORDS[(5 * i) % 7]}" for i in range(20)
]

_HIDDEN = "--model.core.width 16 --model.core.hidden 18 --model.core.attention-hidden 11"
SMALL = {
    "transformer": "--model.core transformer --model.core.width 16 --model.core.layers 1 "
    "--model.core.heads 2 --model.core.feedforward 24",
    "recurrent": f"--model.core recurrent {_HIDDEN}",
    "self-attentive": f"--model.core self-attentive {_HIDDEN} --model.core.self-attention-hidden 7",
}
"""Options of a small model of each core."""


def write_pairs(path: Path, sources: list[str]) -> Path:
    """Write a TSV of these sources and their targets."""
    rows = [f"{source}\t{' '.join(reversed(source.upper().split()))}" for source in sources]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def toy_options(folder: Path, *, core: str) -> str:
    """Write pairs to `folder`; return the recipe and the options of data, model and search."""
    train = write_pairs(folder / "train.tsv", SOURCES)
    val = write_pairs(folder / "val.tsv", SOURCES[:7])
    test = write_pairs(folder / "test.tsv", SOURCES[7:12])
    files = f"--data.train {train} --data.val {val} --data.test {test}"
    return (
        f"translate {files} {SMALL[core]} --data.max-length 12 --tokenizer.kind word "
        "--bleu.tokenize none --decode.beam 3"
    )


def toy_arguments(folder: Path, *, core: str, steps: int = 20) -> list[str]:
    """Write pairs to `folder`; return the arguments of `regard train` for `folder`/run."""
    return (
        f"{toy_options(folder, core=core)} --run {folder / 'run'} --train.steps {steps} "
        "--train.validate-every 8 --train.precision float32 --train.batch-tokens 60 "
        "--train.warmup 5 --train.average 2 --train.tensorboard false "
        "--train.keep-finished checkpoints"
    ).split()
