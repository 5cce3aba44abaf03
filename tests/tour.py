"""Files that a sentence passes in `regard predict`, and a training batch in `regard train`.

    python tests/tour.py [CHECKOUT] [--core transformer] [--engine auto] [--files]

CHECKOUT is a folder that holds `regard/`; this one if not given. A small run of `regard train
translate` is started, then `regard predict RUN "SENTENCE"`, each in a process that reports the
calls of functions (sys.setprofile).

    file      a file of `regard/` outside `native/` with a function that runs (not at import)
    reading   each function of a phase once, in the order of their first calls
    stop      functions of one file (or folder) that follow each other in the reading
    return    a stop in a file (or folder) that was left before: stops - files

    predict   settings: from the command line to `load`; loading: the run; engine: its compilation;
              answer: the rest
    train     set-up: from the command line to the first step; step: the first step (plan, batch,
              backward, clipping, optimizer, log), which ends the observation; loss: the model

--files lists the stops with their functions. How often `run.json` is opened is reported too.
Processes and threads that a command starts are not observed.
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

SENTENCE = "ada sees bob"
_PAIRS = "\n".join(
    f"{a} sees {b}\t{b} seen-by {a}" for a in ("ada", "bob", "eve") for b in ("dan", "gus", "ida")
)
_SIZES = {
    "transformer": "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 "
    "--model.core.feedforward 16",
    "recurrent": "--model.core.width 8 --model.core.hidden 8 --model.core.attention-hidden 8",
}
_FIRST = {"predict": "settings", "train": "set-up"}
"""Phase in which a command begins."""
_PHASES = {
    ("regard/recipes/load.py", "load"): ("loading", "answer"),
    ("regard/engines/registry.py", "prepare"): ("engine", "answer"),
    ("regard/training/loop.py", "_Run.step"): ("step", None),
    ("regard/training/distribution.py", "_Objective.forward"): ("loss", "step"),
}
"""Phase during and after a function; None: the observation ends."""


def observe(argv: Sequence[str], package: Path) -> dict[str, Any]:
    """Run a command of `regard`; return each phase's functions in order of their first calls."""
    # Outside of the observation, which slows imports down.
    for package_used in ("torch", "numba", "tokenizers"):
        importlib.import_module(package_used)
    from numba.core import compiler  # noqa: PLC0415

    from regard.cli.main import main  # noqa: PLC0415  # of the checkout

    compile_function = compiler.compile_extra

    def compile_unobserved(*args: Any, **options: Any) -> Any:
        """Compile as numba does: while it is observed, that takes minutes."""
        observer = sys.getprofile()
        sys.setprofile(None)
        try:
            return compile_function(*args, **options)
        finally:
            sys.setprofile(observer)

    phase: str | None = _FIRST[argv[0]]
    phases: dict[str, dict[tuple[str, str], None]] = {}
    num_opened, num_imports = 0, 0

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal num_opened
        num_opened += (
            event == "open" and str(args[0]).endswith("run.json") and args[1] in ("r", "rb", None)
        )

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal num_imports, phase
        code = frame.f_code
        if event not in ("call", "return") or phase is None:
            return
        if code.co_name == "<module>":
            num_imports += 1 if event == "call" else -1
        if num_imports or not code.co_filename.startswith(f"{package}{os.sep}"):
            return
        path = str(Path(code.co_filename).relative_to(package.parent))
        place = path, code.co_qualname
        if place in _PHASES:
            phase = _PHASES[place][event == "return"]
        if event == "call" and phase is not None and not path.startswith("regard/native/"):
            phases.setdefault(phase, {}).setdefault(place)

    compiler.compile_extra = compile_unobserved
    sys.addaudithook(audit)
    sys.setprofile(profile)
    try:
        main(argv)
    finally:
        sys.setprofile(None)
    return {"phases": {name: list(places) for name, places in phases.items()}, "opened": num_opened}


def stops(places: Sequence[str]) -> tuple[int, int, int]:
    """Return the number of different places, of stops and of returns."""
    visits = [place for place, _ in groupby(places)]
    return len(set(visits)), len(visits), len(visits) - len(set(visits))


def commands(folder: Path, *, core: str, engine: str) -> Iterator[list[str]]:
    """Write data to a folder and return a command that trains, and one that predicts."""
    data, run = folder / "pairs.tsv", str(folder / "run")
    data.write_text(_PAIRS, encoding="utf-8")
    files = (
        f"--data.train {data} --data.val {data} --data.test {data} --tokenizer.kind word "
        f"--tokenizer.min-count 1"
    )
    limits = (
        f"--model.core {core} {_SIZES[core]} --train.steps 2 --train.tensorboard false "
        f"--train.batch-tokens 60"
    )
    yield [
        "train",
        "translate",
        "--run",
        run,
        *files.split(),
        *limits.split(),
        "--train.log-every",
        "1",
    ]
    yield ["predict", run, SENTENCE, *(["--engine", engine] if engine != "auto" else [])]


def report(command: str, seen: dict[str, Any], *, with_files: bool) -> None:
    """Print the counts of a command."""
    phases = {name: [tuple(place) for place in places] for name, places in seen["phases"].items()}
    everything = [place for places in phases.values() for place in places]
    for name, places in [*phases.items(), ("all", everything)]:
        paths = [path for path, _ in places]
        files, visits, returns = stops(paths)
        folders = stops([str(Path(path).parent) for path in paths])
        print(
            f"{command:8}{name:8}{len(places):5} functions in {files:3} files, {visits:3} stops, "
            f"{returns:3} returns",
            end="",
        )
        print(f"; in {folders[0]:2} folders, {folders[1]:3} stops, {folders[2]:3} returns")
        if with_files and name != "all":
            for path, group in groupby(places, key=lambda place: place[0]):
                print(f"    {path:52} {', '.join(function for _, function in group)}")
    if command == "predict":
        print(f"{command:8}run.json opened {seen['opened']} times")


def main() -> None:
    """Run both commands in the checkout and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkout", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    parser.add_argument("--core", choices=_SIZES, default="transformer")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--observe", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.observe:
        command, result = args.observe
        with contextlib.redirect_stdout(sys.stderr):
            seen = observe(json.loads(command), args.checkout / "regard")
        Path(result).write_text(json.dumps(seen), encoding="utf-8")
        return
    checkout = args.checkout.resolve()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        for command in commands(Path(folder), core=args.core, engine=args.engine):
            result = Path(folder, "seen.json")
            line = [
                sys.executable,
                __file__,
                str(checkout),
                "--observe",
                json.dumps(command),
                str(result),
            ]
            process = subprocess.run(
                line, env=environment, capture_output=True, text=True, check=False
            )
            if process.returncode:
                sys.exit(process.stderr)
            report(
                command[0], json.loads(result.read_text(encoding="utf-8")), with_files=args.files
            )


if __name__ == "__main__":
    main()
