"""`regard serve` under load, on one machine with its load generator.

    python -m benchmarks.serve [PART ...] --data FOLDER --runs FOLDER [--out FOLDER] [--quick]

Parts: throughput, peer, overload, equality, page, soak. --data has multi30k/ in it; --runs keeps
the two models, which are trained if they are not there. A part writes OUT/PART.txt. Run it on an
idle machine.
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.peers.options import Options, Report
from benchmarks.serve.measures import PARTS, Setup


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, required=True, help="folder with multi30k/ in it")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the models")
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--quick", action="store_true", help="a smoke test, not a measurement")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")
    setup = Setup(given.data, given.runs, given.quick)
    options = Options(given.data, None, given.quick, 2, "default", None)
    for name in given.parts or PARTS:
        start, part = time.monotonic(), PARTS[name]
        report = Report(given.out / f"{name}.txt" if given.out else None)
        report.head(f"{name}: {part.__doc__}", options, "uvicorn", "starlette", "ctranslate2")
        part(setup, report)
        print(f"{time.monotonic() - start:.0f} s\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
