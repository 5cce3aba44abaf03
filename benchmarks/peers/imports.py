"""Import time and memory of this library and others.

    python -m benchmarks.peers.imports --data FOLDER [--quick]

Each line is a new process, run five times after a first one that fills the disk cache: wall time of
the process, of the import alone as measured by the process, and peak memory. Goals: `import regard`
with all of its public names under 1.5 s beyond torch's own import, `python -m regard --help` under
0.5 s in all.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.peers.options import Options, Report, parse_options

_ALL = "import regard\nfor name in regard.__all__: getattr(regard, name)"
IMPORTS = {
    "nothing": "pass",
    "torch": "import torch",
    "regard": "import regard",
    "regard, all its public names": _ALL,
    "torch, then the same": f"import torch\nbegin()\n{_ALL}",
    "transformers, MarianMTModel": "from transformers import MarianMTModel",
    "x_transformers": "import x_transformers",
    "joeynmt.model": "import joeynmt.model",
    "ctranslate2": "import ctranslate2",
}
COMMANDS = {
    "python -m regard --help": ["--help"],
    "python -m regard train dates --help": ["train", "dates", "--help"],
}
_MEASURED = """
import resource, sys, time
start = time.perf_counter()
def begin():
    global start
    start = time.perf_counter()
{code}
print(time.perf_counter() - start)
"""


class ProcessCost(NamedTuple):
    """Measurements of one process."""

    whole_s: float
    import_s: float
    megabytes: float


def process(arguments: list[str]) -> ProcessCost:
    """Run Python and return the cost. The last word that it prints may be a number of seconds."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert child.stdout is not None
    printed = child.stdout.read().split()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{arguments[-1][:60]!r} ended with {child.returncode}")
    try:
        import_seconds = float(printed[-1])
    except ValueError:
        import_seconds = float("nan")
    return ProcessCost(seconds, import_seconds, _megabytes(usage))


def measure(arguments: list[str], times: int) -> ProcessCost:
    """Return the medians of `times` processes after a first one."""
    costs = [process(arguments) for _ in range(times + 1)][1:]
    return ProcessCost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def main() -> None:
    options: Options = parse_options(__doc__)
    report = Report(options.out)
    report.head("Starting", options)
    report.write()
    report.write(f"    {'':40} {'process, s':>11} {'import, s':>11} {'memory, MB':>11}")
    times, costs = options.rounds(5), {}
    for name, code in IMPORTS.items():
        try:
            costs[name] = measure(["-c", _MEASURED.format(code=code)], times)
        except RuntimeError as error:
            report.write(f"    {name:40} {error}")
            continue
        cost = costs[name]
        report.write(
            f"    {name:40} {cost.whole_s:11.2f} {cost.import_s:11.2f} {cost.megabytes:11.0f}"
        )
    for name, arguments in COMMANDS.items():
        costs[name] = cost = measure(["-m", "regard", *arguments], times)
        report.write(f"    {name:40} {cost.whole_s:11.2f} {'':11} {cost.megabytes:11.0f}")
    beyond = costs["torch, then the same"].import_s
    help_seconds = costs["python -m regard --help"].whole_s
    report.write(
        f"  -> import of all public names {beyond:.2f} s beyond torch's own (goal: under 1.5); "
        f"--help {help_seconds:.2f} s (goal: under 0.5)"
    )


def _megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


if __name__ == "__main__":
    main()
