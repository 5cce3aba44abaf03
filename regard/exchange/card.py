"""Model card of an exported run: recipe, data, metrics with their signature, sizes and license."""

import json
from pathlib import Path
from typing import Any

from regard import __version__
from regard.recipes.base.run import data_paths
from regard.recipes.metrics.report import round_scores
from regard.system.files import read_json

_HIDDEN = ("samples", "signature", "data", "examples")


def write_card(trained: Any, folder: Path, architecture: str, *, license_name: str | None) -> None:
    """Write the README.md of a folder."""
    library = "ctranslate2" if architecture == "CTranslate2" else "transformers"
    run, report = trained.run, trained.folder / "report.json"
    scores = (read_json(report, dict[str, Any])["test"] or {}) if report.exists() else {}
    count = sum(value.numel() for value in trained.model.parameters())
    data = ", ".join(Path(path).name for path in data_paths(run).values())
    rows = {
        "recipe": f"{run.recipe}: {trained.recipe.entry.summary}",
        "architecture": architecture,
        "parameters": f"{count:,}",
        "sizes": trained.recipe.describe(),
        "data": data or "built in",
    }
    for name, value in round_scores(scores).items():
        if name not in _HIDDEN and isinstance(value, int | float):
            rows[name] = str(value)
    if "signature" in scores:
        rows["signature"] = scores["signature"]
        rows["test data"] = f"{scores['data']}, {scores['examples']:,} examples"
    front = {"library_name": library, "tags": ["regard"]}
    if license_name is not None:
        front["license"] = license_name
    lines = ["---", *[f"{name}: {json.dumps(value)}" for name, value in front.items()], "---"]
    lines += [f"# {trained.folder.resolve().name}", "", f"Exported by regard {__version__}.", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {value.replace('|', ' ')} |" for name, value in rows.items()]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
