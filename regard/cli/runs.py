"""Shared code of the commands that use a trained run: reading its settings and loading its
model."""

import importlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.cli.notices import announce_compiling, print_notice
from regard.engines.config import EngineConfig
from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import read_run
from regard.settings.declare import settings
from regard.settings.options import NoSettings, wants_help
from regard.settings.ranges import Threads, check_device
from regard.settings.tree import settings_by_path
from regard.system.progress import report_slow


@settings
class UseOptions:
    """Options of the command."""

    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps, xpu, or auto (an accelerator if there is one)."""
    threads: Threads | None = None
    """Number of CPU threads; torch's default if not given."""

    def __post_init__(self) -> None:
        check_device(self.device)


@settings
class DecodingOptions(EngineConfig, UseOptions):
    """Options of the command."""

    def __post_init__(self) -> None:
        UseOptions.__post_init__(self)


def help_ending(command: str, record: Run | None) -> str:
    """Return the end of a help page: how to see the options of a run, unless they are shown."""
    if record is not None:
        return ""
    return f"\n\n`regard {command} RUN --help` also shows the options of that run: decoding, sampling, a threshold ..."


def read_run_argument(argv: Sequence[str], usage: str) -> tuple[Path, Run | None]:
    """Return the run folder, the first argument, and its settings; no settings for --help without a
    folder.

    Raises UserError if no folder is given, or it is not a run folder.
    """
    if not argv or argv[0].startswith("-"):
        if wants_help(argv):
            return Path(), None
        raise UserError(f"RUN is missing: {usage}")
    return Path(argv[0]), read_run(argv[0])


def input_settings(record: Run | None) -> tuple[Any, list[str]]:
    """Return the settings of a run for reading inputs and answering them, and the paths of those
    that may change."""
    if record is None:
        return NoSettings(), []
    entry, config = get_entry(record.recipe), record.config
    if hasattr(config.data, "format"):  # that of each file
        config = replace(config, data=replace(config.data, format="auto"))
    return config, [path for path in settings_by_path(config) if entry.may_change(path)]


def with_config(record: Run | None, config: Any) -> Run | None:
    """Return a run with changed settings."""
    return None if record is None else replace(record, config=config)


def say_if_slow(text: str) -> AbstractContextManager[None]:
    """Print a notice on a terminal if the context takes longer than 2 s."""
    return report_slow(print_notice if sys.stderr.isatty() else lambda _: None, text)


def load_trained(folder: Path, options: UseOptions, run: Run | None = None) -> Any:
    """Load the trained model of a run folder, whose settings may have been read before; this
    imports torch."""
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    load_options: dict[str, Any] = {"device": options.device, "notify": print_notice, "run": run}
    if isinstance(options, DecodingOptions):
        load_options |= {
            "engine": options.engine,
            "compute_type": options.compute_type,
            "workers": options.workers,
        }
    announce_compiling()
    with say_if_slow(f"loading {folder}"):
        return importlib.import_module("regard.recipes.load").load(folder, **load_options)
