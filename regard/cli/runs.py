"""Shared code of the commands that use a trained run: its options, its settings, its model."""

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.engines.config import EngineConfig
from regard.errors import UserError
from regard.recipes.base.entry import without_test
from regard.recipes.base.run import Run
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import read_run
from regard.settings.declare import settings
from regard.settings.help import show_help
from regard.settings.options import NoSettings, parse, wants_help
from regard.settings.ranges import Threads, check_device
from regard.settings.tree import collect_groups, settings_by_path
from regard.system.progress import report_slow
from regard.system.verbosity import print_notice

_LOG = logging.getLogger("regard.native.cache")


@settings
class UseOptions:
    """Options of commands that use a run."""

    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps, xpu, or auto (an accelerator if there is one)."""
    threads: Threads | None = None
    """Number of CPU threads; torch's default if not given."""

    def __post_init__(self) -> None:
        check_device(self.device)


@settings
class DecodingOptions(UseOptions, EngineConfig):
    """Options of commands that decode."""


class Command(NamedTuple):
    """Parsed command line of a command that uses a run, with the settings that it changes."""

    folder: Path
    run: Run
    own: Any
    words: list[str]


def read_command(
    argv: Sequence[str],
    own: Any,
    *,
    usage: str,
    about: str,
    max_words: int = 0,
    settings_of: Callable[[Run], tuple[Any, list[str]]] | None = None,
) -> Command:
    """Parse the command line of a command on a run folder.

    settings_of: function that returns the settings of the run and the paths of those that are
                 options; none by default.
    """
    run, config, allowed = None, NoSettings(), list[str]()
    if argv and not argv[0].startswith("-"):
        run = read_run(argv[0])
        if settings_of is not None:
            config, allowed = settings_of(run)
    if wants_help(argv):
        groups = [*collect_groups(own), *collect_groups(config)]
        ending = "" if run else "With a RUN, --help also shows the options of that run."
        hidden = settings_by_path(config).keys() - allowed
        show_help(argv, usage, about, groups, hidden=hidden, ending=ending)
    if run is None:
        raise UserError(f"RUN is missing: {usage}")
    parsed = parse(argv, own, config, allowed=allowed, max_positionals=1 + max_words)
    if settings_of is not None:
        run = replace(run, config=parsed.config)
    return Command(Path(argv[0]), run, parsed.own, parsed.positionals[1:])


def input_settings(run: Run) -> tuple[Any, list[str]]:
    """Return a run's settings for reading and answering inputs, and the paths that may change."""
    entry, config = get_entry(run.recipe), without_test(run.config)
    return config, [path for path in settings_by_path(config) if entry.may_change(path)]


def reading_settings(run: Run) -> tuple[Any, list[str]]:
    """Return a run's settings, and the paths of those for reading inputs and targets."""
    entry, (config, _) = get_entry(run.recipe), input_settings(run)
    paths = [path for path in settings_by_path(config) if entry.may_change(path, for_test=True)]
    others = ("data.test", "data.references", "data.on_bad")
    return config, [p for p in paths if p.startswith("data.") and not p.startswith(others)]


def check_new(path: Path | None, *, force: bool) -> None:
    """Raise UserError for an output file that exists, unless it may be replaced."""
    if path is not None and path.is_file() and not force:
        raise UserError(f"{path} exists; it is replaced only with --force")


def say_if_slow(text: str) -> AbstractContextManager[None]:
    """Print a notice on a terminal if the context takes longer than 2 s."""
    return report_slow(print_notice if sys.stderr.isatty() else lambda _: None, text)


def load_trained(folder: Path, options: UseOptions, run: Run | None = None) -> Any:
    """Load the trained model of a run folder; this imports torch."""
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    load_options: dict[str, Any] = {"device": options.device, "notify": print_notice, "run": run}
    if isinstance(options, DecodingOptions):
        load_options["engine"] = options.engine
        load_options["compute_type"] = options.compute_type
        load_options["workers"] = options.workers
    announce_compiling()
    with say_if_slow(f"loading {folder}"):
        return importlib.import_module("regard.recipes.load").load(folder, **load_options)


def announce_compiling() -> None:
    """Print one notice when the first loop is compiled."""
    if not any(isinstance(handler, _CompilationNotice) for handler in _LOG.handlers):
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(_CompilationNotice())


class _CompilationNotice(logging.Handler):
    """Logging handler that prints a notice for the first record."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setLevel(logging.CRITICAL)  # no further record
        remedy = getattr(record, "remedy", None)
        more = f" They cannot be cached: {remedy}." if remedy else ""
        print_notice(f"Compiling loops for this machine: this may take half a minute.{more}")
