"""Runs campaigns: `python -m tests.campaigns NAME ... [--cases N] [--seed S] [--processes P] [--only NUMBER]`."""

import argparse
import importlib
import sys
from pathlib import Path

from tests.campaigns.campaign import Campaign, Tally, gather

FOLDER = Path(__file__).parent
SUPPORT = {"__main__", "campaign", "child"} | {
    f"reads_{part}" for part in ("cases", "gradients", "layouts", "misfits", "oracle")
}
NAMES = sorted({path.stem for path in FOLDER.glob("[a-z]*.py") if not path.stem.startswith("test_")} - SUPPORT)


def main() -> int:
    reading = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    reading.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is given")
    reading.add_argument("--cases", type=int, help="how many cases; each campaign's own number if not given")
    reading.add_argument("--seed", type=int, default=1, help="another seed makes other cases")
    reading.add_argument("--processes", type=int, default=2)
    reading.add_argument("--only", type=int, help="one case alone, in this process, so that a debugger sees it")
    given = reading.parse_args()
    if unknown := sorted(set(given.names) - set(NAMES)):
        reading.error(f"unknown campaign {unknown[0]}; there are {', '.join(NAMES)}")
    bad = 0
    for name in given.names or NAMES:
        campaign: Campaign = importlib.import_module(f"tests.campaigns.{name}").CAMPAIGN
        if given.only is not None:
            outcome = campaign.run(given.seed, given.only)
            print(f"{name} {given.only}: {outcome.kind} {outcome.detail}\n  {outcome.case}")
            bad += outcome.kind not in campaign.fine
            continue
        tally = Tally(campaign, given.seed)
        for number, outcome in gather(
            campaign, seed=given.seed, cases=given.cases or campaign.cases, processes=given.processes
        ):
            tally.add(number, outcome)
        print(tally.table())
        bad += tally.num_bad
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
