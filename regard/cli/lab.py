"""`regard lab NAME`: test a claim of the lectures by an experiment."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated

from regard.cli.runs import say_if_slow
from regard.errors import DONE
from regard.lab.registry import CLAIMS, UNDECIDED_HERE, known_verdicts, module_of
from regard.settings.declare import settings
from regard.settings.help import show_help, two_columns
from regard.settings.options import NoSettings, parse
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups
from regard.system.lock import lock_folder
from regard.system.progress import show_progress

USAGE = "regard lab [NAME ...] [options]"
ABOUT = (
    "Test claims of the lectures. Without NAME, list the claims with verdicts; `all` runs all. "
    "An experiment runs its arms over seeds, in pairs with the same data, and prints its numbers "
    "and a verdict: holds, refuted, undecided, or invalid if a control fails. The folder of --out "
    "receives NAME.md, NAME.svg and NAME.json."
)


@settings
class LabOptions:
    """Options of `regard lab`."""

    seeds: tuple[Annotated[int, Range(0, 1_000_000)], ...] = (0, 1, 2, 3, 4)
    """Seeds of the pairs; differences need at least two for an interval."""
    quick: bool = False
    """Train a tenth of the steps, and decide nothing: to see that it runs."""
    out: Path = Path("runs/lab")
    """Folder of the results. An interrupted claim keeps its finished seeds there, with which the
    same command continues."""
    force: bool = False
    """Replace the results in the folder."""
    json: bool = False
    """Print one JSON object per claim instead of tables."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must be one or more different numbers")


def run(argv: list[str]) -> int:
    """List the claims, or run some."""
    show_help(argv, USAGE, ABOUT, collect_groups(LabOptions()))
    parsed = parse(argv, LabOptions(), NoSettings(), max_positionals=len(CLAIMS) + 1)
    options, names = parsed.own, list(dict.fromkeys(parsed.positionals))
    if not names:
        _list_claims(options.json)
        return DONE
    for name in names:  # before torch is loaded
        if name != "all":
            module_of(name)
    if "all" in names:
        names = list(CLAIMS)
    with say_if_slow("loading PyTorch"):
        protocol = importlib.import_module("regard.lab.protocol")
        session = importlib.import_module("regard.lab.session")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = cores or 1
    with lock_folder(options.out), protocol.workers(count) as pool, show_progress():
        for name in names:
            record, text = session.run_claim(
                name,
                seeds=options.seeds,
                quick=options.quick,
                out=options.out,
                force=options.force,
                pool=pool,
            )
            print(json.dumps(record) if options.json else f"{text}\n{options.out / name}.md\n")
            sys.stdout.flush()
    return DONE


def _list_claims(as_json: bool) -> None:
    verdicts = known_verdicts()
    if as_json:
        print(json.dumps(verdicts))
        return
    print(
        two_columns(
            [(f"{name} ({verdicts.get(name, 'not run')})", text) for name, text in CLAIMS.items()]
        )
    )
    print("\nNot tested, as no experiment of minutes decides it:\n")
    print(two_columns(list(UNDECIDED_HERE.items())))
    print("\n`regard lab NAME` tests one; the pages of these verdicts are in docs/lab.")
