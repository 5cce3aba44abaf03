"""What the verbs share that use a trained run: finding it, reading its settings, loading its model."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.cli.notices import tell
from regard.cli.options import wants_help
from regard.engines.config import EngineConfig
from regard.errors import UserError
from regard.ranges import Threads, check_device, check_ranges
from regard.recipes.folder import Run, read_run


@dataclass(frozen=True, kw_only=True)
class UseOptions:
    """Options of the command."""

    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, mps, xpu, or auto (an accelerator if there is one)."""
    threads: Threads | None = None
    """Processor threads to compute with; torch's choice if not given."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_device(self.device)


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(EngineConfig, UseOptions):
    """Options of the command."""

    def __post_init__(self) -> None:
        EngineConfig.__post_init__(self)
        UseOptions.__post_init__(self)


def one_run(argv: Sequence[str], usage: str) -> tuple[Path, Run | None]:
    """The run folder, which comes first, and its settings; for --help without a folder, no settings.

    Raises UserError if no folder is given, or it holds no run.
    """
    if not argv or argv[0].startswith("-"):
        if wants_help(argv):
            return Path(), None
        raise UserError(f"which run? {usage}")
    return Path(argv[0]), read_run(argv[0])


def opened(folder: Path, options: UseOptions) -> Any:
    """The trained model of a run folder; from here on torch is loaded."""
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    how: dict[str, Any] = {"device": options.device, "tell": tell}
    if isinstance(options, DecodingOptions):
        how |= {"engine": options.engine, "compute_type": options.compute_type, "workers": options.workers}
    importlib.import_module("regard.cli.waits").tell_of_compiling()
    return importlib.import_module("regard.recipes.task").load(folder, **how)
