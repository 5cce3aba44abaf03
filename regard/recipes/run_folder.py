"""Settings of a run folder (run.json), and which run may use the folder. (no torch)

    run.json   {"format_version", "recipe", "seed", "config", "regard", "created", "checksum"}

A folder belongs to the run whose settings its run.json holds. Training with the same settings
resumes it; settings that do not affect the parameters (length of training, decoding) may change,
and so may the paths of the data, whose content is compared instead (regard.recipes.learned_files).
A run without a checkpoint is replaced by one with other settings. Nothing else is ever overwritten.
Hidden files (.gitignore, .DS_Store) are ignored and left in place.

The checksum covers the whole file. After an intended edit, set "checksum" to the value that the
error message states.
"""

import dataclasses
import glob
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import UserError, similar_names
from regard.recipes import learned_files
from regard.recipes.base.entry import Entry
from regard.recipes.base.run import (
    Init,
    Run,
    data_paths,
    find_moved_data,
    parameter_settings,
    training_fingerprint,
)
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.settings.options import option_name
from regard.settings.tree import apply_changes, find_differences, to_plain
from regard.system.files import check_file, check_readable, read_json
from regard.system.fingerprints import add_checksum, file_fingerprint, summarize, verify_checksum
from regard.system.lock import DirectoryChangedError, RunDirectory, lock_directory
from regard.system.output_files import FOLDERS, check_no_link, claim_folder
from regard.system.writing import write_atomically

FORMAT_VERSION = 3
"""Version of the run folder's format; folders of another version are refused."""
_FILE = "run.json"
_KEYS = {
    "format_version": int,
    "recipe": str,
    "seed": int,
    "config": dict,
    "regard": str,
    "created": str,
}
_MAX_SHOWN = 5
_WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".onnx")
"""Suffixes of files of weights."""
_UNFINISHED = {".run.json.new", ".learned.json.new", ".report.json.new", ".learned.new"}
"""Temporary files that a killed process may have left behind."""
_REPORT = "report.json"
_WEIGHTS = "model.safetensors"
_RESULTS = (_REPORT, _WEIGHTS, "log.jsonl")
_TRAINING = {"log.jsonl", "tb", "checkpoints", "snapshots", ".model.safetensors.new"}
"""Files that training creates before its first checkpoint."""


def read_run(folder: str | Path, own: Entry | None = None, *, is_start: bool = False) -> Run:
    """Read the run of a folder.

    own:      the entry of its recipe, if that is not one of the package.
    is_start: another run starts from it, which may be of a recipe of the package, too.

    Raises UserError, naming the file, if it is missing, damaged, or of another format version.
    """
    path = Path(folder) / _FILE
    if not path.is_file():
        if path.parent.is_file():
            kind = (
                "; weights of other libraries cannot be loaded"
                if path.parent.suffix in _WEIGHT_SUFFIXES
                else ""
            )
            raise UserError(
                f"{folder} is a file, expected a run folder, such as training writes{kind}"
            )
        problem = (
            "is not a run folder: it has no run.json" if Path(folder).is_dir() else "does not exist"
        )
        near = " or ".join(_suggest_runs(path.parent))
        hint = (
            f". Did you mean {near}?"
            if near
            else f"; create one with `regard train RECIPE --run {folder}`"
        )
        raise UserError(f"{folder} {problem}{hint}")
    content = _json(path)
    version = content.get("format_version")
    if type(version) is int and version != FORMAT_VERSION:
        age, remedy = (
            ("an older", "train it again")
            if version < FORMAT_VERSION
            else ("a newer", "update regard")
        )
        raise UserError(
            f"{folder} was written by {age} version of regard (format {version}, this one reads "
            f"{FORMAT_VERSION}): "
            f"{remedy}"
        )
    for key, kind in _KEYS.items():
        if not isinstance(content.get(key), kind) or isinstance(content[key], bool):
            raise UserError(
                f"{path}: damaged: {key} must be {kind.__name__}, got {content.get(key)!r}"
            )
    entries = RECIPES if own is None else {own.name: own} | (RECIPES if is_start else {})
    if content["recipe"] not in entries:
        hint = "; if it is your own recipe, run its Python file instead of `regard`, or pass its Entry in Python: "
        hint = hint + "regard.load(folder, recipe=ENTRY)" if own is None else ""
        names = ", ".join(entries) if own is not None else f"one of {', '.join(entries)}"
        raise UserError(f"{path}: recipe must be {names}, got {content['recipe']!r}{hint}")
    try:
        config = apply_changes(
            entries[content["recipe"]].config(),
            content["config"],
            called=lambda name: f"{path}: config.{name}",
            complete=True,
        )
    except UserError as error:  # errors about several settings at once do not name the file
        raise error if str(path) in str(error) else UserError(f"{path}: config: {error}") from error
    verify_checksum(path, content)
    init = content.get("init")
    if init is not None and not (isinstance(init, dict) and init.keys() == {"folder", "weights"}):
        raise UserError(f"{path}: damaged: init must hold folder and weights, got {init!r}")
    start = {key: content[key] for key in ("recipe", "seed", "created", "regard")}
    own = own if own is not None and own.name == content["recipe"] else None
    return Run(**start, config=config, init=None if init is None else Init(**init), own=own)


def find_unfinished_step(folder: Path) -> int | None:
    """Return the step of the last checkpoint of a run whose training has not finished; None for a
    finished run."""
    steps = [
        path.name.removeprefix("step-")
        for path in (folder / "checkpoints").glob("step-*")
        if path.is_dir()
    ]
    numbers = [int(step) for step in steps if step.isdecimal()]
    return None if (folder / _REPORT).exists() else max(numbers, default=None)


def _is_derived(entry: Entry, before: Run) -> bool:
    """Return True if the recipe is a subclass of that of another run, with the same settings."""
    is_own = not isinstance(entry.recipe, str) and entry.config is type(before.config)
    return is_own and issubclass(
        entry.load_class(), get_entry(before.own or before.recipe).load_class()
    )


def read_init(folder: Path, recipe: str, own: Entry | None = None) -> tuple[Init, Any]:
    """Return the reference to a trained run, and its settings as defaults: without files of data,
    and for training.

    Raises: UserError if the run is of another recipe, or has no parameters.
    """
    before = read_run(folder, own, is_start=True)
    entry = own or get_entry(recipe)
    if before.recipe != recipe and not _is_derived(entry, before):
        raise UserError(f"--init {folder}: is a run of {before.recipe}, expected a run of {recipe}")
    path = folder / _WEIGHTS
    if not path.is_file():
        raise UserError(f"--init {folder}: {path} is missing: the run has no parameters yet")
    learned_files.check_learned(folder)
    default, config = type(before.config)(), before.config
    splits = [
        item.name
        for item in dataclasses.fields(config.data)
        if item.name.startswith(("train", "val", "test"))
    ]
    numbers = [
        name for name in splits if isinstance(getattr(config.data, name), int | float)
    ]  # such as val_share
    files = {name: getattr(default.data, name) for name in splits if name not in numbers}
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, **files), train=default.train
    )
    return Init(folder=str(folder.absolute()), weights=file_fingerprint(path)), config


class RunFolder:
    """Folder of a run, locked for training. What it held before is read once, under the lock.

    Created by `open_run_folder` on the main process; other processes receive a copy and only read.

    run:         settings, with the precision `auto` replaced.
    reason:      reason for the precision; empty if it was given.
    fingerprint: settings that affect the parameters, as JSON.
    is_resumed:  True if the folder already held this run.
    report:      report of the run if it was finished before, so that nothing is left to do.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run: Run,
        resolve: Callable[[], tuple[str, str]],
        notify: Callable[[str], None],
    ):
        self.directory, folder = directory, directory.path
        before = self._before = read_run(folder, run.own) if (folder / _FILE).exists() else None
        self._has_begun = has_begun(folder)
        self.learned = learned_files.LearnedRecord()
        if before is None:
            _check_nothing_else(folder)
        elif (folder / learned_files.FILE).exists():
            self.learned = learned_files.read_learned(folder)
        self.run, self.reason = self._resolve_precision(run, resolve)
        self.fingerprint, self._paths = training_fingerprint(self.run), data_paths(self.run)
        self._moved, self.is_resumed, self.report = {}, False, None
        if before is None:
            return
        self._moved = find_moved_data(before, run)
        is_same = before.recipe == run.recipe
        is_same = is_same and not find_differences(training_fingerprint(before), self.fingerprint)
        # Without a digest (a recipe that reads its files itself), data is the same only if its path
        # is.
        self.is_resumed = is_same and self.learned.can_compare(self._moved)
        if self.is_resumed:
            self.run = dataclasses.replace(before, config=self.run.config)
            self._check_steps(run.config.train.steps)
            self.report = self._find_report(notify)
            is_finished = (folder / _REPORT).exists() and (folder / _WEIGHTS).exists()
            if self.report is None and is_finished and not _has_checkpoint(folder):
                raise UserError(
                    f"the run in {folder} is finished and kept no checkpoints "
                    f"(--train.keep-finished model), so it "
                    f"cannot be continued; a new run can start from its parameters: regard train "
                    f"{run.recipe} --init "
                    f"{folder} --run OTHER, and options of its data"
                )
        elif self._has_begun or not _is_all_known(folder):
            _refuse_another(folder, before, self.run)

    def _resolve_precision(
        self, run: Run, resolve: Callable[[], tuple[str, str]]
    ) -> tuple[Run, str]:
        """Return the run with a precision in place of `auto`: the one that the run in the folder
        started with, if any.

        Another run, which will replace that one, resolves its own.
        """
        before, earlier = self._before, None
        if before is not None and run.config.train.precision == "auto":
            differences = find_differences(training_fingerprint(before), training_fingerprint(run))
            is_same = before.recipe == run.recipe and not differences.keys() - {"train.precision"}
            if self._has_begun or is_same:
                earlier = before.config.train.precision, "the run started with it"
        precision, reason = earlier or resolve()
        config = dataclasses.replace(
            run.config, train=dataclasses.replace(run.config.train, precision=precision)
        )
        return dataclasses.replace(run, config=config), reason

    def _check_steps(self, steps: int | None) -> None:
        """Raise UserError if the run has made more steps than it is to make now."""
        made = max(
            (int(path.name[5:]) for path in self.directory.path.glob("checkpoints/step-*[0-9]")),
            default=0,
        )
        if steps is not None and steps < made:
            folder = self.directory.path
            raise UserError(
                f"the run in {folder} has made {made} steps; --train.steps must be at least that, "
                f"got {steps}"
            )

    def _find_report(self, notify: Callable[[str], None]) -> dict[str, Any] | None:
        """Return the report of a run that is finished with exactly these settings, else None."""
        folder, path = self.directory.path, self.directory.path / _REPORT
        for name in _RESULTS:
            # These will be written: report a folder or pipe of that name before training, not after
            # it.
            if os.path.lexists(folder / name):
                check_file(folder / name)
        if not path.exists() or self._before is None or not self._is_finished(folder):
            return None
        try:
            report = verify_checksum(path, _json(path))
            same = report.get("config") == to_plain(self._before.config)
            training, test = report.get("training"), report.get("test")
            is_whole = (
                isinstance(training, dict)
                and "stop_reason" in training
                and isinstance(test, dict | None)
            )
            if same and not is_whole:
                raise UserError(f"{path}: damaged: it must hold training and test")
        except UserError as error:
            notify(f"{error}; it is written again")
            return None
        return report if same and (folder / _WEIGHTS).exists() else None

    def _is_finished(self, folder: Path) -> bool:
        """Return True if the run in the folder has the same settings; if it kept no checkpoints,
        the same limits."""
        before: Any = self._before
        if before.config == self.run.config or _has_checkpoint(folder):
            return before.config == self.run.config
        limits = ("steps", "epochs", "minutes", "patience")
        return all(
            getattr(before.config.train, name) == getattr(self.run.config.train, name)
            for name in limits
        )

    def claim(
        self,
        learn: Callable[[Path], None],
        digests: Mapping[str, str],
        notify: Callable[[str], None],
    ) -> bool:
        """Claim the folder after the data has been checked. Return True if training has no
        checkpoint yet.

        learn:   writes vocabularies, labels and scales to a folder; not called once training
        started with them.
        digests: digests by path of the data that was read (regard.system.fingerprints).
        """
        data = self._summarize(digests)

        def write(root: Path) -> bool:
            if not self._has_begun:
                learned_files.learn(
                    root, learn, claim=lambda: self._write_settings(root), data=data
                )
                return True
            learned_files.check_learned(root)
            self.learned.check_data(root, data)
            self._report_moved(notify)
            self._write_settings(root)
            return not any(root.glob("checkpoints/step-*"))

        return self.directory.write(write)

    def may_have_other_data(self) -> bool:
        """Return True if a finished run is given other paths of data, or data that was written
        after its report."""
        report = (self.directory.path / _REPORT).stat().st_mtime
        existing = [path for path in self._paths.values() if os.path.exists(path)]
        return bool(self._moved) or any(os.stat(path).st_mtime > report for path in existing)

    def check_same_data(self, digests: Mapping[str, str], notify: Callable[[str], None]) -> None:
        """Raise UserError if a finished run is given data other than that of its training.

        digests: digests by path of the data that was read.
        """
        if change := self.learned.describe_change(self._summarize(digests)):
            folder, name = self.directory.path, self.run.recipe
            raise UserError(
                f"{change}, but the run in {folder} is finished, so nothing was trained. To train "
                f"on this data, choose "
                f"another folder: regard train {name} --run OTHER, with --init {folder} to start "
                f"from its parameters"
            )
        self._report_moved(notify)

    def _summarize(self, digests: Mapping[str, str]) -> dict[str, Any]:
        """Return digests of data by role."""
        by_ending = getattr(self.run.config.data, "format", "auto") == "auto"
        return summarize(digests, self._paths, by_ending=by_ending)

    def _report_moved(self, notify: Callable[[str], None]) -> None:
        for name, (before, now) in self._moved.items():
            notify(f"{name} has moved from {before} to {now}; its content is the same")

    def _write_settings(self, root: Path) -> None:
        if self._before is not None and not self.is_resumed:
            release(root)
        if self._before != self.run:
            _write(root, self.run)

    def release(self) -> None:
        """Undo the claim of a run that has no checkpoint, so that other settings may use the
        folder."""
        if not has_begun(self.directory.path):
            release(self.directory.path)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write report.json, which marks the run as finished."""
        content = json.dumps(add_checksum(report), indent=2, ensure_ascii=False) + "\n"
        self.directory.write(lambda root: write_atomically(root / _REPORT, content))
        self.directory.check("it holds this finished run")


@contextmanager
def open_run_folder(
    folder: Path, run: Run, *, resolve: Callable[[], tuple[str, str]], notify: Callable[[str], None]
) -> Generator[RunFolder, None, None]:
    """Create, lock and read the folder of a run; folders created here are removed again if they
    stay empty.

    resolve: returns the precision of a new run and the reason for it.
    Raises:  UserError if the folder holds another run with a checkpoint, naming the differences, or
             files of something else, or if another process trains in it. Nothing was changed then.
    """
    _check_path(folder)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with lock_directory(folder) as directory:
            root = directory.path
            opened = RunFolder(directory, run, resolve, notify)
            if opened.report:
                yield opened
                return
            clean(root)
            check_own_files(root, opened.learned.files)
            try:
                yield opened
            finally:
                with suppress(
                    OSError, DirectoryChangedError
                ):  # files that could not be removed earlier
                    clean(directory.path)
    finally:
        with suppress(OSError):
            for path in created:
                path.rmdir()


def check_run_folder(folder: Path, run: Run) -> None:
    """Raise UserError as `open_run_folder` if a folder holds another run or files of something
    else.

    Imports no torch; nothing is locked or written, so that the folder must be checked again when it
    is opened.
    """
    _check_path(folder)
    if folder.is_dir():
        # The precision matters only if there is nothing to resume.
        RunFolder(
            RunDirectory(folder),
            run,
            lambda: (run.config.train.precision, ""),
            notify=lambda _: None,
        )


def check_data_files(recipe: str, settings: Any, *, is_resumed: bool = False) -> None:
    """Raise UserError for a file that settings of data name and that does not exist, without
    reading any."""
    data = to_plain(settings)
    if recipe not in NAMES or data.get("format") == "huggingface":
        return  # a recipe of the user may give other meanings to these settings
    for name, value in data.items():
        for path in value if isinstance(value, list) else [value]:
            is_file = (
                name.startswith(("train", "val", "test"))
                and isinstance(path, str)
                and not path.startswith("hf:")
            )
            if not is_file or os.path.exists(path):
                continue
            option = option_name(f"data.{name}")
            if matches := glob.glob(path, recursive=True):
                one = (
                    "join them into one file"
                    if RECIPES[recipe].input == "text"
                    else "name their folder"
                )
                remedy = (
                    "name them, or leave out the quotes"
                    if isinstance(value, list)
                    else f"it takes one: {one}"
                )
                raise UserError(
                    f"{option}: {path} is a pattern of {len(matches)} files, and is not expanded: "
                    f"{remedy}"
                )
            if path == "-":
                raise UserError(
                    f"{option} must be a file, got - (standard input), which cannot be read more "
                    "than once, as resumed and later runs must: write the data to a file"
                )
            try:
                check_readable(Path(path))
            except UserError as error:
                moved = (
                    f" The run was started with this file: if it has moved, give {option} NEW."
                    if is_resumed
                    else ""
                )
                raise UserError(f"{error}{moved}") from error


def _suggest_runs(folder: Path) -> list[str]:
    """Return the most recent runs in a folder; if there is none, those of similar names beside it
    and in runs/."""
    if inside := _list_runs(folder):
        return [str(run) for run in inside[:_MAX_SHOWN]]
    near = {
        run.name: str(run) for parent in (Path("runs"), folder.parent) for run in _list_runs(parent)
    }
    return [near[name] for name in similar_names(folder.name, near)]


def _list_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder, the most recently changed first."""
    return [
        path.parent
        for path in sorted(folder.glob(f"*/{_FILE}"), key=os.path.getmtime, reverse=True)
    ]


def check_own_files(folder: Path, learned: Iterable[str]) -> None:
    """Raise UserError if a file of the run is a symbolic link, or a folder of it links to files of
    something else."""
    for name in (_FILE, learned_files.FILE, *_RESULTS, *learned):
        check_no_link(folder, name)
    for name in FOLDERS:
        claim_folder(folder / name)


def clean(folder: Path) -> None:
    """Remove the temporary files that a killed process left behind."""
    for name in _UNFINISHED:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def release(folder: Path) -> None:
    """Undo the claim of a run without a checkpoint: remove its settings and learned files."""
    assert not has_begun(folder)
    learned_files.discard(folder)
    (folder / _FILE).unlink(missing_ok=True)


def has_begun(folder: Path) -> bool:
    """Return True if the run has a checkpoint, its own or of a model that it trains first, or
    weights."""
    return _has_checkpoint(folder) or (folder / _WEIGHTS).exists()


def _has_checkpoint(folder: Path) -> bool:
    return any(
        any(folder.glob(pattern)) for pattern in ("checkpoints/step-*", "*/checkpoints/step-*")
    )


def _check_path(folder: Path) -> None:
    """Raise UserError if the path leads to a file, or through a symbolic link to nothing."""
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path} is a symbolic link to {path.readlink()}, which does not exist: make that "
                f"folder, or choose "
                "another with --run"
            )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder for a run; choose another with --run")


def _check_nothing_else(folder: Path) -> None:
    """Raise UserError if a folder without a run holds files other than hidden ones and links to
    other disks."""
    names = sorted(path.name for path in folder.iterdir())
    names = [name for name in names if not (name.startswith(".") or _is_linked(folder / name))]
    if names:
        listing = ", ".join(names[:_MAX_SHOWN]) + (" ..." if len(names) > _MAX_SHOWN else "")
        raise UserError(
            f"{folder} holds files of something else ({listing}); choose another folder with --run"
        )


def _is_all_known(folder: Path) -> bool:
    """Return True if a folder without a checkpoint holds only files that its run created, and
    hidden files."""
    known = {_FILE, learned_files.FILE, *learned_files.list_unchanged_files(folder), *_TRAINING}
    rest = [
        path
        for path in folder.iterdir()
        if path.name not in known and not path.name.startswith(".")
    ]
    return all(
        path.is_dir()
        and not path.is_symlink()
        and {child.name for child in path.iterdir()} <= _TRAINING
        for path in rest
    )


def _is_linked(path: Path) -> bool:
    """Return True for a link to a folder on another disk, created before the run; `claim_folder`
    checks its target."""
    return path.name in FOLDERS and path.is_symlink()


def _refuse_another(folder: Path, before: Run, now: Run) -> NoReturn:
    if before.recipe != now.recipe:
        raise UserError(
            f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}; choose another "
            f"with --run"
        )
    other = find_differences(training_fingerprint(before), training_fingerprint(now))
    given = find_differences(parameter_settings(before), parameter_settings(now))
    changes = {name: pair for name, pair in given.items() if name in other} or find_moved_data(
        before, now
    )
    options = [option_name(name.removesuffix(".name")) for name in changes]
    pairs = zip(options, changes.values(), strict=True)
    rows = [
        f"{name} is {_format_value(theirs)} there and {_format_value(mine)} here"
        for name, (theirs, mine) in pairs
    ]
    more = f" (and {len(rows) - _MAX_SHOWN} more)" if len(rows) > _MAX_SHOWN else ""
    raise UserError(
        f"{folder} holds a run of {now.recipe} with other settings: "
        f"{'; '.join(rows[:_MAX_SHOWN])}{more}. "
        f"Choose another folder with --run; `regard train --run {folder}` continues that run with "
        f"its settings"
    )


def _write(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content: Mapping[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe": run.recipe,
        "seed": run.seed,
        "regard": run.regard,
        "created": run.created,
        "config": to_plain(run.config),
        **({} if run.init is None else {"init": dataclasses.asdict(run.init)}),
    }
    write_atomically(folder / _FILE, json.dumps(add_checksum(content), indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: must be a JSON object, got {type(content).__name__}")
    return content


def _format_value(value: object) -> str:
    return "not given" if value is None else repr(value)
