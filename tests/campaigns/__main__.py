"""Run campaigns: `python -m tests.campaigns NAME ... [--cases N ...] [--seed S] [--processes P]
[--only NUMBER]`."""

import argparse
import importlib
import sys
from pathlib import Path

from tests.campaigns.campaign import Campaign, Tally, gather

FOLDER = Path(__file__).parent
SUPPORT = {"campaign", "child"}
# A name with an underscore is that of a part: reads_oracle.py of reads.py.
NAMES = sorted({path.stem for path in FOLDER.glob("[a-z]*.py") if "_" not in path.stem} - SUPPORT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if not given"
    )
    parser.add_argument(
        "--cases",
        type=int,
        nargs="+",
        help="number of cases, one for all campaigns or one for each; the default of each campaign "
        "if not given",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="run one case in this process, for a debugger")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(NAMES)):
        parser.error(f"unknown campaign {unknown[0]}; there are {', '.join(NAMES)}")
    names, cases = options.names or NAMES, options.cases or [None]
    if len(cases) not in (1, len(names)):
        parser.error(
            f"--cases must be one number, or one for each of {len(names)} campaigns, got "
            f"{len(cases)}"
        )
    bad = 0
    for name, count in zip(
        names, cases if len(cases) == len(names) else cases * len(names), strict=True
    ):
        campaign: Campaign = importlib.import_module(f"tests.campaigns.{name}").CAMPAIGN
        if options.only is not None:
            outcome = campaign.run(options.seed, options.only)
            print(f"{name} {options.only}: {outcome.kind} {outcome.detail}\n  {outcome.case}")
            bad += outcome.kind not in campaign.fine
            continue
        tally = Tally(campaign, options.seed)
        for number, outcome in gather(
            campaign, seed=options.seed, cases=count or campaign.cases, processes=options.processes
        ):
            tally.add(number, outcome)
        print(tally.table())
        bad += tally.num_bad
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
