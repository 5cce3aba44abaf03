"""Run the claims of the lab into docs/lab, with an index and the verdicts that `regard lab` lists.

python -m docs.gallery.lab [NAME ...]        all claims if none is named
"""

import json
import subprocess
import sys
from pathlib import Path

from regard.lab.registry import CLAIMS, UNDECIDED_HERE, VERDICTS

__all__ = ["FOLDER", "index", "main"]

FOLDER = Path(__file__).parents[1] / "lab"


def main(names: list[str]) -> None:
    """Run claims, and write the index and the verdicts of all; existing files are replaced."""
    command = [sys.executable, "-m", "regard", "lab", *(names or ["all"])]
    subprocess.run([*command, "--out", str(FOLDER), "--force"], check=True)
    records = {}
    for name in CLAIMS:
        records[name] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    verdicts = {name: record["verdict"] for name, record in records.items()}
    VERDICTS.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(index(records), encoding="utf-8")


def index(records: dict[str, dict]) -> str:
    """Return the index of the pages in Markdown."""
    seconds = sum(record["seconds"] for record in records.values())
    processor = next(iter(records.values()))["processor"]
    lines = [
        "# The lab: claims of the lectures, tested",
        "",
        "Each page has the claim, its experiment, the numbers, a figure and a verdict that could",
        "have come out otherwise. `regard lab NAME` repeats one, `regard lab all` all of them",
        f"({seconds / 60:.0f} minutes beside other work, {processor}).",
        "`--seeds 5 6 7 8 9` takes other seeds.",
        "How verdicts are reached: [protocol](../../regard/lab/protocol.py).",
        "",
        "| claim | verdict | experiment |",
        "|---|---|---|",
    ]
    for name, text in CLAIMS.items():
        lines.append(f"| {text} | {records[name]['verdict']} | [{name}]({name}.md) |")
    lines += ["", "## Not tested", ""]
    lines += [f"- {sentence}: {reason}." for sentence, reason in UNDECIDED_HERE.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
