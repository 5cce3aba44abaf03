"""A claim from its trials, which are saved as they finish, to its numbers, figure and page."""

import hashlib
import json
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch

from regard.bench.machine import processor_name
from regard.errors import UserError
from regard.lab.figure import plot_claim
from regard.lab.page import format_page
from regard.lab.protocol import Trial, as_results, choose_rates, decide, load_module, run_all
from regard.system.files import read_json
from regard.system.progress import track
from regard.system.verbosity import print_notice
from regard.system.writing import write_atomically


def run_claim(
    name: str,
    *,
    seeds: Sequence[int],
    quick: bool,
    out: Path,
    force: bool,
    pool: ProcessPoolExecutor | None,
) -> tuple[dict[str, Any], str]:
    """Run a claim, write NAME.json, NAME.svg and NAME.md into a folder; return numbers and page.

    A claim that was finished before is returned as it is, unless `force`.
    Raises: UserError for an unknown claim, and for files of another run without `force`.
    """
    module, path = load_module(name), out / f"{name}.json"
    # Finished seeds hold only for this code: of the claim and of the lab.
    paths = (Path(str(module.__file__)), *sorted(Path(__file__).parent.glob("*.py")))
    source = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
    claim = module.CLAIM
    settings = {"claim": name, "source": source, "seeds": list(seeds), "quick": quick}
    record: dict[str, Any] = settings | {"rates": {}, "numbers": {}, "seconds": 0.0}
    if path.is_file() and not force:
        record = read_json(path, dict)
        if any(record.get(key) != settings[key] for key in settings):
            problem = f"{path} is of other seeds, options or code"
            raise UserError(f"{problem}: --force replaces it, --out writes elsewhere")
        if "verdict" in record:
            print_notice(f"{name}: finished before; --force runs it again")
            return record, (out / f"{name}.md").read_text(encoding="utf-8")
        print_notice(f"{name}: continuing after {len(record['numbers'])} finished trials")
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
        kept = f"{len(record['numbers'])} of {len(seeds) * len(claim.arms)} trials"
        print_notice(f"{kept} are kept in {path}; the same command continues")
        raise
    record["numbers"] = dict(sorted(record["numbers"].items()))
    results = as_results(claim, record["numbers"])
    outcome = decide(claim, results, quick=quick)
    record |= {
        "processor": f"{processor_name(torch.device('cpu'))}, {platform.machine()}",
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "hypotheses": [part._asdict() for part in outcome.hypotheses],
        "controls": [part._asdict() for part in outcome.controls],
        "verdict": outcome.verdict,
    }
    plot_claim(name, claim, results, outcome, out / f"{name}.svg")
    page = format_page(name, claim, results, outcome, record)
    write_atomically(out / f"{name}.md", page)
    _write(path, record)
    return record, page


def _write(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(record, indent=1) + "\n")
