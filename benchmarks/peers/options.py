"""Command-line options of the comparisons, and the report that they write."""

import argparse
import platform
import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

__all__ = ["Options", "Report", "parse_options", "training_precisions"]


class Options(NamedTuple):
    """The command line of one comparison."""

    data: Path
    """Folder with multi30k/ and tinyshakespeare/ in it."""
    out: Path | None
    """File for the table, beside the screen."""
    quick: bool
    """Fewer rounds and only the small sizes: a smoke test, not a measurement."""
    threads: int
    memory: str
    """kept: freed memory stays in the process, for every contestant; default: as the C library
    does."""
    memory_of: list[str] | None
    """Only print the memory growth of the process with this contestant (used internally)."""

    def rounds(self, full: int, quick: int = 2) -> int:
        """Return the number of rounds to time."""
        return quick if self.quick else full


class Report:
    """Lines for standard output and for a file, which is overwritten."""

    def __init__(self, path: Path | None):
        self.path = path
        self.lines: list[str] = []

    def write(self, line: str = "") -> None:
        """Add a line."""
        print(line, flush=True)
        self.lines.append(line)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def head(self, title: str, options: Options, *packages: str) -> None:
        """Add the title, date, machine, versions and options."""
        from importlib.metadata import version  # noqa: PLC0415  # only the compared packages need to be installed

        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
        self.write(title)
        self.write(
            f"{date.today()}, {_processor()}, {options.threads} threads, memory {options.memory}, "
            f"Python {platform.python_version()}, {versions}{', QUICK' if options.quick else ''}"
        )


def training_precisions(options: Options, report: Report) -> tuple[str, ...]:
    """Return the precisions to train in: float32, and in full runs bfloat16 if the processor
    supports it.

    Without native instructions bfloat16 is tens of times slower, for every contestant.
    """
    import torch  # noqa: PLC0415  # `--help` needs no torch

    from regard.training.precision import has_native_bfloat16  # noqa: PLC0415

    if options.quick:
        return ("float32",)
    if not has_native_bfloat16(torch.device("cpu")):
        report.write("\n  bfloat16 is not compared: the processor has no instructions for it")
        return ("float32",)
    return ("float32", "bfloat16")


def parse_options(about: str | None, arguments: list[str] | None = None) -> Options:
    """Parse the options of a comparison; its docstring is the help text."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with multi30k/ and tinyshakespeare/"
    )
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--memory", choices=("kept", "default"), default="kept", help="freed memory kept or not"
    )
    parser.add_argument("--memory-of", nargs="+", metavar="NAME", help=argparse.SUPPRESS)
    return Options(**vars(parser.parse_args(arguments)))


def _processor() -> str:
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        if names:
            return f"{names[0]} x {len(names)}"
    return platform.processor() or platform.machine()
