"""A claim from its trials to its files: numbers (JSON), figure (SVG) and page (Markdown).

Finished seeds are saved as they come, so that an interrupted command continues with the next one.
"""

import json
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch

from regard.bench.machine import processor_name
from regard.errors import UserError
from regard.lab.figure import plot_claim
from regard.lab.page import format_page
from regard.lab.protocol import (
    Trial,
    as_results,
    choose_rates,
    decide,
    load_claim,
    run_all,
    source_hash,
)
from regard.system.progress import track
from regard.system.writing import write_atomically

Record = dict[str, Any]


def run_claim(
    name: str,
    *,
    seeds: Sequence[int],
    quick: bool,
    out: Path,
    force: bool,
    pool: ProcessPoolExecutor | None,
    notify: Callable[[str], None],
) -> tuple[Record, str]:
    """Run a claim, write NAME.json, NAME.svg and NAME.md into a folder; return numbers and page.

    A claim that was finished before is returned as it is, unless `force`.
    Raises: UserError for an unknown claim, and for files of another run without `force`.
    """
    claim, path = load_claim(name), out / f"{name}.json"
    settings = {"claim": name, "source": source_hash(name), "seeds": list(seeds), "quick": quick}
    record: Record = settings | {"rates": {}, "numbers": {}, "seconds": 0.0}
    if path.is_file() and not force:
        record = _read(path)
        if any(record.get(key) != settings[key] for key in settings):
            raise UserError(
                f"{path} is of other seeds, options or code: --force replaces it, --out writes "
                "elsewhere"
            )
        if "verdict" in record:
            notify(f"{name}: finished before; --force runs it again")
            return record, (out / f"{name}.md").read_text(encoding="utf-8")
        notify(f"{name}: continuing after {len(record['numbers'])} finished trials")
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic() - record["seconds"]
    if not record["rates"]:
        record["rates"] = choose_rates(name, claim, pool, quick=quick)
    trials = []
    for seed in seeds:
        for arm in claim.arms:
            if f"{arm}/{seed}" not in record["numbers"]:
                trials.append(Trial(arm, seed, record["rates"][arm], quick=quick))
    running = run_all(name, trials, pool)
    try:
        for trial, numbers in track(running, f"trials of {name}", len(trials), size=lambda _: 1):
            record["numbers"][f"{trial.arm}/{trial.seed}"] = numbers
            record["seconds"] = time.monotonic() - start
            _write(path, record)
    except KeyboardInterrupt:
        kept = (
            f"{len(record['numbers'])} of {len(seeds) * len(claim.arms)} trials are kept in {path}"
        )
        notify(f"{kept}; the same command continues")
        raise
    record["numbers"] = dict(sorted(record["numbers"].items()))
    results = as_results(claim, record["numbers"])
    outcome = decide(claim, results, quick=quick)
    record["processor"] = f"{processor_name(torch.device('cpu'))}, {platform.machine()}"
    record |= {"date": date.today().isoformat(), "torch": torch.__version__}
    for kind in ("hypotheses", "controls"):
        record[kind] = [part._asdict() for part in getattr(outcome, kind)]
    record["verdict"] = outcome.verdict
    plot_claim(name, claim, results, outcome, out / f"{name}.svg")
    page = format_page(name, claim, results, outcome, record)
    write_atomically(out / f"{name}.md", page)
    _write(path, record)
    return record, page


def _read(path: Path) -> Record:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {**record, "numbers": dict(record["numbers"])}
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: is no result of the lab; --force replaces it") from None


def _write(path: Path, record: Record) -> None:
    write_atomically(path, json.dumps(record, indent=1, allow_nan=True) + "\n")
