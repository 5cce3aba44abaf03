"""What every comparison is told on its command line, and the text that it writes."""

import argparse
import platform
import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

__all__ = ["Options", "Report", "parsed", "training_precisions"]


class Options(NamedTuple):
    """The command line of one comparison."""

    data: Path
    """Folder with multi30k/ and tinyshakespeare/ in it."""
    out: Path | None
    """File for the table, beside the screen."""
    quick: bool
    """Fewer rounds and the small sizes alone: shows that everything works, not how fast it is."""
    threads: int
    memory: str
    """kept: memory that is freed stays in the process, for every contestant; default: as the system has it."""
    memory_of: list[str] | None
    """Only tell how far the process grows with this contestant (the comparison asks itself)."""

    def rounds(self, full: int, quick: int = 2) -> int:
        """How many rounds to time."""
        return quick if self.quick else full


class Report:
    """Lines for the screen and for a file, which is written anew."""

    def __init__(self, path: Path | None):
        self.path = path
        self.lines: list[str] = []

    def say(self, line: str = "") -> None:
        """One line more."""
        print(line, flush=True)
        self.lines.append(line)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def head(self, title: str, options: Options, *packages: str) -> None:
        """What was compared, where and when."""
        from importlib.metadata import version  # noqa: PLC0415  # only the packages that are compared need be there

        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
        self.say(title)
        self.say(
            f"{date.today()}, {_processor()}, {options.threads} threads, memory {options.memory}, "
            f"Python {platform.python_version()}, {versions}{', QUICK' if options.quick else ''}"
        )


def training_precisions(options: Options, report: Report) -> tuple[str, ...]:
    """The precisions to train in: float32; in full also bfloat16, where the processor multiplies it.

    Without such instructions bfloat16 takes tens of times as long, for every contestant.
    """
    import torch  # noqa: PLC0415  # `--help` needs no torch

    from regard.train.precision import has_native_bfloat16  # noqa: PLC0415

    if options.quick:
        return ("float32",)
    if not has_native_bfloat16(torch.device("cpu")):
        report.say("\n  bfloat16 is not compared: the processor has no instructions for it")
        return ("float32",)
    return ("float32", "bfloat16")


def parsed(about: str | None, arguments: list[str] | None = None) -> Options:
    """The options of a comparison; its docstring is the help."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with multi30k/ and tinyshakespeare/")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", choices=("kept", "default"), default="kept", help="freed memory kept or not")
    parser.add_argument("--memory-of", nargs="+", metavar="NAME", help=argparse.SUPPRESS)
    return Options(**vars(parser.parse_args(arguments)))


def _processor() -> str:
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        if names:
            return f"{names[0]} x {len(names)}"
    return platform.processor() or platform.machine()
