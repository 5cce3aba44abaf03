"""The folder of a run, and which run may use it. (no torch)

    RUN/run.json            recipe, seed and settings; size, time and SHA-256 of the data
    RUN/artifacts           vocabularies, labels and scales, computed from the training data
    RUN/checkpoints         and snapshots, log.jsonl, tb: see regard.training
    RUN/model.safetensors   the best parameters; of a finished run, the selected ones
    RUN/report.json         test scores; written when the run is finished

One process owns the folder while it trains. A run with a checkpoint is resumed by the same settings
and the same data, wherever that is now; settings that do not affect the parameters may change. A
run without a checkpoint is replaced.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipes.base.entry import Entry
from regard.recipes.base.run import ARTIFACTS, Init, Run, Source, data_paths, training_fingerprint
from regard.recipes.presets import apply_preset
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.settings.options import option_name
from regard.settings.tree import apply_changes, find_differences, to_plain
from regard.system.files import check_file, hash_file, read_json
from regard.system.lock import lock_folder
from regard.system.writing import write_atomically

FORMAT_VERSION = 6
"""Version of run.json; folders of another version are refused."""
_FILE, _REPORT, _WEIGHTS = "run.json", "report.json", "model.safetensors"
_UNFINISHED, _CHECKPOINT = ".artifacts.new", "checkpoints/step-*[0-9]/state.json"
_MAX_SHOWN = 5
_LIMITS = "steps", "epochs", "minutes"


def read_run(folder: str | Path, own: Entry | None = None, *, is_start: bool = False) -> Run:
    """Read the run of a folder.

    own:      the entry of its recipe, if that is not one of the package.
    is_start: another run starts from it, which may be of a recipe of the package, too.
    Raises:   UserError, naming the file, if it is missing, damaged, or of another version.
    """
    path = Path(folder) / _FILE
    if not path.exists():
        raise UserError(f"{folder} is not a run folder: it has no run.json")
    content = read_json(path, dict[str, Any])
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by another version of regard (format {version}, this one reads "
            f"{FORMAT_VERSION}): train it again"
        )
    run = read_json(path, Run)
    entries = RECIPES if own is None else {own.name: own} | (RECIPES if is_start else {})
    if run.recipe not in entries:
        raise UserError(
            f"{path}: recipe must be one of {', '.join(entries)}, got {run.recipe!r}; a recipe of "
            f"your own needs its Entry: regard.load(folder, recipe=ENTRY)"
        )
    config = apply_changes(
        entries[run.recipe].config(),
        run.config,
        called=lambda name: f"{path}: config.{name}",
        complete=True,
    )
    own = own if own is not None and own.name == run.recipe else None
    return dataclasses.replace(run, config=config, own=own)


def write_run(folder: Path, run: Run) -> None:
    """Write the run.json of a folder."""
    plain = dataclasses.replace(run, config=to_plain(run.config), own=None)
    content = {"format_version": FORMAT_VERSION} | dataclasses.asdict(plain)
    del content["own"]
    write_atomically(folder / _FILE, json.dumps(content, indent=2) + "\n")


def initial_settings(
    entry: Entry, init: str | Path | None, preset: str | None
) -> tuple[Any, Init | None]:
    """Return the default settings of a run, and the reference to the run that it starts from.

    They are those of the run `init`, if it is given, or of the preset.
    """
    if init is not None and preset is not None:
        raise UserError("--init has the settings of that run: leave out --preset")
    if init is not None:
        return read_init(Path(init), entry)
    config = entry.config()
    return config if preset is None else apply_preset(preset, entry.name, config), None


def read_init(folder: Path, entry: Entry) -> tuple[Any, Init]:
    """Return the settings of a trained run, but data and training, as defaults, and its reference.

    Training is that of the recipe with a rate, warm-up and number of steps for trained parameters:
    a fifth of the recipe's rate, and less for a wider model than the recipe's, in proportion; a
    tenth of the run; a third of the steps; by AdamW.

    Raises: UserError if the run is of another recipe, or has no parameters.
    """
    before = read_run(folder, entry, is_start=True)
    is_derived = False  # from the recipe of that run, with the same settings
    if not isinstance(entry.recipe, str) and entry.config is type(before.config):
        theirs = get_entry(before.own or before.recipe).load_class()
        is_derived = issubclass(entry.load_class(), theirs)
    if before.recipe != entry.name and not is_derived:
        names = f"a run of {before.recipe}, expected a run of {entry.name}"
        raise UserError(f"--init {folder}: is {names}")
    path = folder / _WEIGHTS
    check_file(path)
    default, data = type(before.config)(), before.config.data
    files = {}
    for item in dataclasses.fields(data):
        is_number = isinstance(getattr(data, item.name), int | float)  # such as val_share
        if item.name.startswith(("train", "val", "test")) and not is_number:
            files[item.name] = getattr(default.data, item.name)
    train, ratio = default.train, min(_width(default) / _width(before.config), 1)
    train = dataclasses.replace(train, lr=float(f"{train.lr / 5 * ratio:.1e}"), optimizer="adamw")
    if train.steps is not None:
        train = dataclasses.replace(train, warmup=0.1, steps=-(-train.steps // 3))
    config = dataclasses.replace(
        before.config, data=dataclasses.replace(data, **files), train=train
    )
    return config, Init(folder=str(folder.absolute()), weights=hash_file(path))


def _width(config: Any) -> int:
    """Return the width of the core of a model; 1 if it has none, or of a size for each layer."""
    core = getattr(getattr(config, "model", None), "core", None)
    return getattr(core, "width", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Folder that is locked for a run."""

    path: Path
    run: Run
    """Settings, with the precision `auto` replaced."""
    is_resumed: bool
    """True if the folder held this run; another one is replaced."""
    report: dict[str, Any] | None = None
    """Report of a run that is finished, so that nothing is left to do."""

    def start(self, fit: Callable[[], Mapping[str, Any]]) -> None:
        """Write run.json and, for a new run, the artifacts that `fit` returns by file name."""
        unfinished, run = self.path / _UNFINISHED, self.run
        try:
            if not self.is_resumed:
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                for name, artifact in fit().items():
                    artifact.save(unfinished / name)
                data = {name: find_source(path, None) for name, path in data_paths(run).items()}
                run = dataclasses.replace(run, data=data)
            (self.path / _REPORT).unlink(missing_ok=True)
            write_run(self.path, run)
            if not self.is_resumed:
                shutil.rmtree(self.path / ARTIFACTS, ignore_errors=True)
                unfinished.rename(self.path / ARTIFACTS)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def discard(self) -> None:
        """Remove what `start` wrote, if nothing else was written: the run was refused."""
        names = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        if names <= {_FILE, ARTIFACTS}:
            (self.path / _FILE).unlink(missing_ok=True)
            shutil.rmtree(self.path / ARTIFACTS, ignore_errors=True)

    def write_report(self, report: Mapping[str, Any]) -> None:
        content = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.path / _REPORT, content)


@contextmanager
def open_run_folder(
    folder: Path, run: Run, *, resolve: Callable[[], str], notify: Callable[[str], None]
) -> Generator[RunFolder, None, None]:
    """Create and lock the folder of a run; it is removed again if it stays empty, or the run is
    refused before its training begins.

    resolve: returns the precision of a new run.
    Raises:  UserError if the folder holds another run with a checkpoint, naming the differences, or
             files of something else, or if another process works in it.
    """
    if "\ufffd" in os.fsencode(folder).decode("utf-8", "replace"):
        raise UserError(f"{folder}: must be UTF-8, as safetensors requires of names.")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    with lock_folder(folder):
        try:
            opened = _open(folder, run, resolve, notify)
            try:
                yield opened
            except UserError:
                opened.discard()
                raise
        finally:
            with suppress(OSError):  # not empty
                for path in created:
                    path.rmdir()


def check_run_folder(folder: Path, run: Run) -> None:
    """Raise UserError as `open_run_folder` for other settings; needs no torch and no data."""
    if folder.is_dir() and (before := _find_run(folder, run)) is not None:
        _check_settings(folder, before, _with_precision(run, before.config.train.precision))


def longer_command(folder: Path, run: Run) -> str:
    """Return the command that trains a new run from a finished one, with its data and limits."""
    program = "regard" if run.recipe in NAMES else f"python {sys.argv[0]}"
    words = [*program.split(), "train", run.recipe, "--init", str(folder)]
    words += ["--run", f"{folder}-longer"]
    default = to_plain(type(run.config)().data)
    for name, value in to_plain(run.config.data).items():
        is_number = isinstance(value, int | float)  # such as val_share, which --init takes over
        if name.startswith(("train", "val", "test")) and value != default[name] and not is_number:
            words += [option_name(f"data.{name}"), *(value if isinstance(value, list) else [value])]
    for name in _LIMITS:
        limit = getattr(run.config.train, name)
        if limit is not None or name == "steps":  # --init has steps of its own
            words += [f"--train.{name}", "none" if limit is None else str(limit)]
    return shlex.join(words)


def find_unfinished_step(folder: Path) -> int | None:
    """Return the step of the last checkpoint of a run; None if it is finished."""
    steps = [int(path.parent.name[5:]) for path in folder.glob(_CHECKPOINT)]
    return None if (folder / _REPORT).exists() else max(steps, default=None)


def find_source(path: str, known: Source | None) -> Source:
    """Return the identity of a file, of all files of a folder, or of another name.

    Files of the known size and time are not read again.
    """
    root = Path(path)
    files = [root] if root.is_file() else []
    if root.is_dir():
        files = sorted(file for file in root.rglob("[!.]*") if file.is_file())
    stats = [file.stat() for file in files]
    size = sum(stat.st_size for stat in stats)
    modified = max((stat.st_mtime_ns for stat in stats), default=0)
    if known is not None and files and (known.size, known.modified) == (size, modified):
        return known
    if root.is_file():
        return Source(size=size, modified=modified, sha256=hash_file(root))
    lines = [f"{file.relative_to(root).as_posix()}\t{hash_file(file)}" for file in files] or [path]
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    return Source(size=size, modified=modified, sha256=hashlib.sha256(content).hexdigest())


def _open(
    folder: Path, run: Run, resolve: Callable[[], str], notify: Callable[[str], None]
) -> RunFolder:
    before = _find_run(folder, run)
    if before is None:
        if (folder / _FILE).exists():  # stopped before its first checkpoint
            earlier = read_run(folder, run.own)
            same = _with_precision(run, earlier.config.train.precision)
            if training_fingerprint(earlier) == training_fingerprint(same):
                run = same
        return RunFolder(path=folder, run=_with_precision(run, resolve()), is_resumed=False)
    run = _with_precision(run, before.config.train.precision)
    _check_settings(folder, before, run)
    data = _check_data(folder, before, run, notify)
    steps, made = run.config.train.steps, find_unfinished_step(folder)
    if steps is not None and made is not None and steps < made:
        raise UserError(
            f"the run in {folder} has made {made} steps, more than --train.steps {steps}"
        )
    report, has_checkpoint = None, _has_checkpoint(folder)
    old, new = before.config.train, run.config.train
    is_longer = any(getattr(old, name) != getattr(new, name) for name in (*_LIMITS, "patience"))
    if (folder / _REPORT).exists() and is_longer:
        command = f"a new run from it, with its own schedule: {longer_command(folder, run)}"
        if not has_checkpoint:
            raise UserError(
                f"the run in {folder} is finished and kept no checkpoints (--train.keep-finished "
                f"model), so it cannot be continued; {command}"
            )
        notify(f"the run in {folder} was finished, and its schedule goes on; {command}")
    if (folder / _REPORT).exists() and (before.config == run.config or not has_checkpoint):
        report = read_json(folder / _REPORT, dict[str, Any])
    run = dataclasses.replace(before, config=run.config, data=data)
    return RunFolder(path=folder, run=run, is_resumed=True, report=report)


def _find_run(folder: Path, run: Run) -> Run | None:
    """Return the run in a folder, if it has a checkpoint or parameters."""
    if (folder / _FILE).exists():
        before = read_run(folder, run.own)
        if before.origin is not None:
            raise UserError(
                f"{folder} is imported from {before.origin.folder}, and is not trained further: "
                f"--init {folder} starts a new run from it"
            )
        return before if _has_checkpoint(folder) or (folder / _WEIGHTS).exists() else None
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names:
        raise UserError(
            f"{folder} holds files of something else ({', '.join(names[:_MAX_SHOWN])}); choose "
            f"another folder with --run"
        )
    return None


def _has_checkpoint(folder: Path) -> bool:
    """Return True if the run has a checkpoint, its own or of a model that it trains first."""
    return any(folder.glob(_CHECKPOINT)) or any(folder.glob(f"*/{_CHECKPOINT}"))


def _with_precision(run: Run, precision: str) -> Run:
    train = run.config.train
    if train.precision == "auto":
        train = dataclasses.replace(train, precision=precision)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, train=train))


def _check_settings(folder: Path, before: Run, now: Run) -> None:
    if before.recipe != now.recipe:
        raise UserError(f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}")
    differences = find_differences(training_fingerprint(before), training_fingerprint(now))
    # Paths as they are given: the fingerprint has their number.
    given = find_differences(to_plain(before.config), to_plain(now.config))
    rows = []
    for name, values in differences.items():
        theirs, mine = given.get(name, values)
        option = option_name(name.removesuffix(".name"))
        rows.append(f"{option} is {theirs!r} there and {mine!r} here")
    if rows:
        raise UserError(
            f"{folder} holds a run of {now.recipe} with other settings: "
            f"{'; '.join(rows[:_MAX_SHOWN])}; choose another folder with --run"
        )


def _check_data(
    folder: Path, before: Run, now: Run, notify: Callable[[str], None]
) -> dict[str, Source]:
    """Return the data of a run that is resumed. Raises UserError if it is not that of its start."""
    paths, sources = data_paths(before), {}
    for name, path in data_paths(now).items():
        known, has_moved = before.data.get(name), paths.get(name) != path
        is_gone = not has_moved and not Path(path).exists()
        sources[name] = known if known and is_gone else find_source(path, known)
        if known is None or known.sha256 != sources[name].sha256:
            raise UserError(
                f"{option_name(name)}: {path} is not the data that the run in {folder} started "
                f"with; choose another folder with --run"
            )
        if has_moved:
            notify(f"{name} has moved from {paths[name]} to {path}; its content is the same")
    return sources
