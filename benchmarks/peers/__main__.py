"""All comparisons with other libraries, one after the other, each in a separate process.

    python -m benchmarks.peers --data FOLDER [--out FOLDER] [--only PART,PART] [--quick] [--threads
    2] [--memory kept]

FOLDER has multi30k/{train,test_2016_flickr}.lc.norm.tok.{en,de}.gz and
tinyshakespeare/input.txt.gz. A part writes OUT/PART.txt (growth also figures), and the remaining
time is printed. Run it on an idle machine: with two threads on two cores, another program costs a
multiple of its share.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

PARTS = {
    "imports": (90, 25),
    "train_seq2seq": (800, 45),
    "train_gpt": (350, 40),
    "train_vit": (100, 15),
    "train_recurrent": (100, 20),
    "decode": (420, 35),
    "generate": (240, 35),
    "growth": (200, 25),
}
"""Expected seconds of each part on two idle cores, in full and quick, to estimate the remaining
time."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", choices=("kept", "default"), default="kept")
    options = parser.parse_args()
    parts = list(PARTS) if options.only is None else options.only.replace("-", "_").split(",")
    for name in parts:
        if name not in PARTS:
            parser.error(f"--only must be some of {', '.join(PARTS)}, got {name}")
    expected = {name: PARTS[name][1 if options.quick else 0] for name in parts}
    start, done, failed = time.monotonic(), 0.0, []
    for number, name in enumerate(parts, start=1):
        slower = (time.monotonic() - start) / done if done else 1.0
        remaining = slower * (sum(expected.values()) - done)
        print(
            f"[{number}/{len(parts)}] {name}; about {remaining / 60:.0f} min left in all",
            file=sys.stderr,
            flush=True,
        )
        if run(name, options):
            failed.append(name)
        done += expected[name]
        print(flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:.1f} min{'; failed: ' + ', '.join(failed) if failed else ''}", file=sys.stderr)
    return int(bool(failed))


def run(name: str, options: argparse.Namespace) -> int:
    """Run one part and return its exit code."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        f"benchmarks.peers.{name}",
        "--data",
        str(options.data),
    ]
    command += ["--threads", str(options.threads), "--memory", options.memory]
    command += ["--quick"] if options.quick else []
    command += ["--out", str(options.out / f"{name}.txt")] if options.out else []
    threads = {"OMP_NUM_THREADS": str(options.threads), "TRANSFORMERS_VERBOSITY": "error"}
    offline = {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, check=False, env=os.environ | threads | offline).returncode


if __name__ == "__main__":
    sys.exit(main())
