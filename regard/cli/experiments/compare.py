"""`regard compare RUN RUN ...`: settings, test metrics and answers of runs beside each other."""

import importlib
import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from regard.cli.evaluate import test_settings
from regard.cli.runs import DecodingOptions, check_new, load_trained, read_command, say_if_slow
from regard.errors import DONE, UserError
from regard.recipes.base.entry import keep_test
from regard.recipes.base.run import Run
from regard.recipes.metrics.report import metric_names
from regard.recipes.run_folder import read_run
from regard.settings.declare import settings
from regard.settings.help import show_help
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups, settings_by_path
from regard.system.progress import show_progress
from regard.system.terminal import table
from regard.system.writing import valid_text, write_atomically

USAGE = "regard compare RUN RUN ... [options]"
ABOUT = (
    "Compare runs of one recipe on the same test data: that of the runs, or --data.test; on their "
    "validation data, which training has seen to choose parameters, if they have none. Prints "
    "the settings that differ; each metric with its 95 % interval, and the p-value of its "
    "difference to the first run, by paired bootstrap (of sacrebleu for BLEU, chrF and TER); and "
    "the examples whose scores differ most. Metrics that are not computed from the answers to "
    "single examples, such as the average precision of boxes, have no interval."
)


@settings
class CompareOptions(DecodingOptions):
    """Options of `regard compare`."""

    samples: Annotated[int, Range(40, 1_000_000)] = 1000
    """Samples of the bootstrap."""
    examples: Annotated[int, Range(0, 1_000_000)] = 5
    """Number of examples to show, those that differ most first."""
    json: bool = False
    """Print one JSON object instead of tables."""
    out: Path | None = None
    """File to write in place of standard output."""
    force: bool = False
    """Replace the file of --out if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, evaluate the runs and print what differs."""
    folders = [*takewhile(lambda word: not word.startswith("-"), argv)]
    words = argv[len(folders) :]
    show_help(argv, USAGE, ABOUT, collect_groups(CompareOptions()))
    if len(folders) < 2:
        raise UserError(f"two or more RUNs are needed: {USAGE}")
    options, records = CompareOptions(), list[Run]()
    for folder in folders:
        before = read_run(folder)
        if records and before.recipe != records[0].recipe:
            first = f"{folders[0]} is a run of {records[0].recipe}"
            raise UserError(f"{first} and {folder} one of {before.recipe}: they do not compare")
        _, record, options, _ = read_command(
            [folder, *words], CompareOptions(), usage=USAGE, about=ABOUT, settings_of=test_settings
        )
        if not record.config.data.test:
            record = replace(record, config=keep_test(record.config, before.config))
        records.append(record)
    check_new(options.out, force=options.force)
    runs = []
    for folder, record in zip(folders, records, strict=True):
        runs.append(load_trained(Path(folder), options, record))
    with say_if_slow("evaluating on the test data"), show_progress():
        module = importlib.import_module("regard.recipes.comparison")
        found = module.compare_runs(runs, samples=options.samples, examples=options.examples)
    result = {"recipe": records[0].recipe, "runs": folders, "settings": _differing(records)} | found
    text = json.dumps(result, ensure_ascii=False) if options.json else _format(result)
    if options.out is None:
        print(valid_text(text))
    else:
        write_atomically(options.out, text + "\n")
    return DONE


def _differing(records: list[Run]) -> dict[str, list[Any]]:
    """Return the settings that differ, by path, with the value of each run; None: it has none."""
    values: dict[str, list[Any]] = {"seed": [record.seed for record in records]}
    values["init"] = [record.init and record.init.folder for record in records]
    trees = [settings_by_path(record.config) for record in records]
    for path in dict.fromkeys(path for tree in trees for path in tree):
        values[path] = []
        for tree in trees:
            value = tree[path].value if path in tree else None
            is_plain = value is None or isinstance(value, bool | int | float)
            values[path].append(value if is_plain else str(value))
    return {path: own for path, own in values.items() if any(value != own[0] for value in own)}


def _format(result: dict[str, Any]) -> str:
    """Return the tables of a comparison."""
    runs = result["runs"]
    parts = ["no setting differs"]
    if result["settings"]:
        rows = [["settings that differ", *runs]]
        for path, values in result["settings"].items():
            rows.append([path, *("-" if value is None else str(value) for value in values)])
        parts = [table(rows)]
    rows, names = [["metric", *runs]], metric_names(result["metrics"])
    for name, estimates in result["metrics"].items():
        cells = []
        for one in estimates:
            cell = f"{one['score']:.4g}"
            if "low" in one:
                cell += f" [{one['low']:.4g}, {one['high']:.4g}]"
            p = one.get("p")
            cells.append(cell if p is None else f"{cell} p {p:.2g}")
        rows.append([names.get(name, name.replace("_", " ")), *cells])
    title = f"{result['data']}: {result['examples']:,} examples"
    if not any("low" in one for estimates in result["metrics"].values() for one in estimates):
        title += "; no intervals: they need several examples with metrics of their own"
    else:
        title += "; 95 % intervals and p of the difference to the first run from "
        title += f"{result['samples']:,} samples"
        title += ": too narrow, of so few examples" if result["examples"] < 30 else ""
    if "perplexity" in result["metrics"] and any(
        path.startswith(("tokenizer.", "data.train")) for path in result["settings"]
    ):
        title += "; tokenizers may differ, and nll and perplexity are per token of each"
        title += ": compare bits per byte" if "bits_per_byte" in result["metrics"] else ""
    parts.append(f"{title}\n{table(rows)}")
    if result["differences"]:
        rows = _difference_rows(runs, result["differences"])
        parts.append(f"examples that differ most\n{table(rows)}")
    return "\n\n".join(parts)


def _difference_rows(runs: list[str], differences: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for entry in differences:
        rows.append([str(entry["input"]), "input", entry["source"].strip()])
        if "reference" in entry:
            rows.append(["", "reference", entry["reference"]])
        for i, folder in enumerate(runs):
            shown = f"({entry['metric']} {entry['scores'][i]:.4g})"
            if "outputs" in entry:
                shown = f"{entry['outputs'][i]}  {shown}"
            rows.append(["", folder, shown])
    return rows
