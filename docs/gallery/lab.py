"""Run the claims of the lab into docs/lab, with an index and the verdicts that `regard lab` lists.

python -m docs.gallery.lab [NAME ...]        all claims if none is named
python -m docs.gallery.lab --redraw          pages and figures from the saved numbers
"""

import json
import subprocess
import sys
from pathlib import Path

from regard.lab.figure import plot_claim
from regard.lab.page import format_page
from regard.lab.protocol import as_results, decide, load_module
from regard.lab.registry import CLAIMS, UNDECIDED_HERE, VERDICTS

__all__ = ["FOLDER", "index", "main", "redraw"]

FOLDER = Path(__file__).parents[1] / "lab"


def main(names: list[str]) -> None:
    """Run claims, and write the index and the verdicts of all; existing files are replaced."""
    if names != ["--redraw"]:
        command = [sys.executable, "-m", "regard", "lab", *(names or ["all"])]
        subprocess.run([*command, "--out", str(FOLDER), "--force"], check=True)
    records = {}
    for name in CLAIMS:
        records[name] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if names == ["--redraw"]:
            redraw(name, records[name])
    verdicts = {name: record["verdict"] for name, record in records.items()}
    VERDICTS.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(index(records), encoding="utf-8")


def redraw(name: str, record: dict) -> None:
    """Write the page and the figure of a claim with its saved numbers; its texts are of today."""
    claim = load_module(name).CLAIM
    results = as_results(claim, record["numbers"])
    outcome = decide(claim, results, quick=record["quick"])
    plot_claim(name, claim, results, outcome, FOLDER / f"{name}.svg")
    page = format_page(name, claim, results, outcome, record)
    (FOLDER / f"{name}.md").write_text(page, encoding="utf-8")


def index(records: dict[str, dict]) -> str:
    """Return the index of the pages in Markdown."""
    seconds = sum(record["seconds"] for record in records.values())
    processor = next(iter(records.values()))["processor"]
    lines = [
        "# The lab: claims of the lectures, tested",
        "",
        "Each page has the claim, its experiment, the numbers, a figure and a verdict. Where a",
        "statement follows from definitions, as its page says, the experiment tests the code; the",
        "other verdicts could have come out otherwise.",
        "`regard lab NAME` repeats one, `regard lab all` all of them",
        f"({seconds / 60:.0f} minutes beside other work, {processor}).",
        "`--seeds 5 6 7 8 9` takes other seeds.",
        "How verdicts are reached: [protocol](../../regard/lab/protocol.py).",
        "",
        "| claim | verdict | experiment |",
        "|---|---|---|",
    ]
    for name, text in CLAIMS.items():
        lines.append(f"| {text} | {records[name]['verdict']} | [{name}]({name}.md) |")
    lines += [
        "",
        "## Training",
        "",
        "Models are trained on batches drawn at each step (steps of 64: of 64 examples), by AdamW",
        "with betas 0.9 and 0.98, gradients clipped to norm 1, a warm-up over a tenth of the steps",
        "and a cosine schedule, in float32 (path-length: float64). Arms of a seed get the same",
        "batches. Learning rates are the better of two on a seed of their own. Each test is on new",
        "examples. The decoder's input are the right symbols before: if a whole output is",
        "right, greedy decoding gives the same.",
        "",
        "## Not tested",
        "",
    ]
    lines += [f"- {sentence}: {reason}." for sentence, reason in UNDECIDED_HERE.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
