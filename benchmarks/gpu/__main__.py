"""All parts of benchmarks.gpu, one after the other, each in a separate process.

    python -m benchmarks.gpu [--data FOLDER] [--only PART,PART] [--force] [--out FOLDER]
    python -m benchmarks.gpu --device cpu --quick [--only PART,PART]

FOLDER has multi30k/{train,test_2016_flickr}.lc.norm.tok.{en,de}.gz; without it, the parts that
translate are left out. A finished part is written to OUT/CARD.txt, and the next run skips it unless
--force is given. --quick runs everything with tiny sizes and one round, which tests that it runs
and measures nothing; its tables are written to CARD-quick.txt.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from benchmarks.gpu.measure import Setting, head

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
PARTS = {
    "correct": (25, 120),
    "additive": (90, 240),
    "dot": (80, 240),
    "gpt": (90, 240),
    "seq2seq": (40, 150),
    "decode": (90, 240),
    "recipes": (60, 300),
}
"""Expected seconds of each part, to estimate the remaining time, and its limit."""
NEED_DATA = ("seq2seq", "decode")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with multi30k/ in it")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the tables")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--force", action="store_true", help="also run parts that are finished")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # in its own process
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    for name in names:
        if name not in PARTS:
            parser.error(f"--only must be some of {', '.join(PARTS)}, got {name}")
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu needs --quick: it tests that the parts run")
    if options.data is not None and not (options.data / "multi30k").is_dir():
        parser.error(f"--data must be a folder with multi30k/ in it, got {options.data}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a GPU; --device cpu --quick tests that its parts run")
    if options.part is not None:
        run_here(options.part, options)
        return 0
    return run_all(names, options)


def run_here(name: str, options: argparse.Namespace) -> None:
    """Run a part in this process, which prints its table."""
    if options.quick and options.device == "cpu":
        torch.compiler.set_stance("force_eager")  # compiling takes minutes and is not tested here
    setting = Setting(torch.device(options.device), options.quick, options.data)
    print(head(setting), flush=True)
    importlib.import_module(f"benchmarks.gpu.{name}").run(setting)


def run_all(names: list[str], options: argparse.Namespace) -> int:
    """Run the parts that are not finished; return 1 if one failed."""
    card = "cpu" if options.device == "cpu" else torch.cuda.get_device_name()
    name_of_file = re.sub(r"[^A-Za-z0-9.]+", "-", card) + ("-quick" if options.quick else "")
    path = options.out / f"{name_of_file}.txt"
    finished = read_sections(path)
    left = [name for name in names if options.force or name not in finished]
    for name in names:
        if name not in left:
            print(f"{name} is in {path}; --force runs it again", file=sys.stderr)
    for name in [name for name in left if name in NEED_DATA and options.data is None]:
        print(f"{name} is left out: it needs --data FOLDER", file=sys.stderr)
        left.remove(name)
    start, expected_so_far, failed = time.monotonic(), 0, []
    for number, name in enumerate(left, start=1):
        expected = sum(PARTS[other][0] for other in left[number - 1 :])
        factor = (time.monotonic() - start) / expected_so_far if expected_so_far else 1.0
        minutes = expected * factor / 60
        print(
            f"[{number}/{len(left)}] {name}; about {minutes:.1f} min left in all",
            file=sys.stderr,
            flush=True,
        )
        lines = run_apart(name, options)
        if lines is None:
            failed.append(name)
        else:
            finished[name] = lines
            write_sections(path, finished)
        expected_so_far += PARTS[name][0]
        print(flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:.1f} min{'; failed: ' + ', '.join(failed) if failed else ''}", file=sys.stderr)
    return int(bool(failed))


def run_apart(name: str, options: argparse.Namespace) -> list[str] | None:
    """Run a part in a separate process and return its lines; None if it failed or took too long."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "--part", name]
    command += ["--device", options.device]
    command += ["--quick"] if options.quick else []
    command += ["--data", str(options.data)] if options.data else []
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONUNBUFFERED": "1"}
    limit, start, lines = PARTS[name][1], time.monotonic(), []
    environment = os.environ | variables
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        timer = threading.Timer(limit, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    timer.cancel()
    seconds = time.monotonic() - start
    if code := process.returncode:
        reason = f"took more than {limit} s" if seconds >= limit else f"ended with code {code}"
        print(f"{name} {reason}", file=sys.stderr)
        return None
    return [*lines, f"{seconds:.0f} s"]


def read_sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of each finished part."""
    sections: dict[str, list[str]] = {}
    if path.exists():
        for section in path.read_text(encoding="utf-8").split("## ")[1:]:
            name, *lines = section.rstrip().splitlines()
            sections[name] = lines
    return sections


def write_sections(path: Path, sections: dict[str, list[str]]) -> None:
    """Write the lines of each finished part, in the order of `PARTS`."""
    parts = ["\n".join([f"## {name}", *sections[name]]) for name in PARTS if name in sections]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
