"""The folder of a run, and which run may use it. (no torch)

    RUN/run.json            recipe, seed and settings, and the data: size, modification time, SHA-256
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
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from regard.errors import UserError
from regard.recipes.base.entry import Entry
from regard.recipes.base.run import (
    ARTIFACTS,
    Init,
    Run,
    data_paths,
    parameter_settings,
    training_fingerprint,
)
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.settings.options import option_name
from regard.settings.tree import apply_changes, find_differences, to_plain
from regard.system.files import check_file, hash_file, read_json
from regard.system.lock import lock_folder
from regard.system.writing import write_atomically

FORMAT_VERSION = 4
"""Version of run.json; folders of another version are refused."""
_FILE, _REPORT, _WEIGHTS = "run.json", "report.json", "model.safetensors"
_UNFINISHED = ".artifacts.new"
_LIMITS = ("steps", "epochs", "minutes", "patience")
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Data of a run: a file, or all files of a folder."""

    path: str
    size: int
    modified: int
    """Time of the last modification in nanoseconds."""
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Content:
    """Content of run.json."""

    format_version: int
    recipe: str
    seed: int
    regard: str
    created: str
    config: dict[str, Any]
    data: dict[str, Source]
    """By the name of the setting: data.train, data.val.0 ..."""
    init: Init | None = None


def read_run(folder: str | Path, own: Entry | None = None, *, is_start: bool = False) -> Run:
    """Read the run of a folder.

    own:      the entry of its recipe, if that is not one of the package.
    is_start: another run starts from it, which may be of a recipe of the package, too.
    Raises:   UserError, naming the file, if it is missing, damaged, or of another version.
    """
    path, content = Path(folder) / _FILE, _read(folder)
    entries = RECIPES if own is None else {own.name: own} | (RECIPES if is_start else {})
    if content.recipe not in entries:
        raise UserError(
            f"{path}: recipe must be one of {', '.join(entries)}, got {content.recipe!r}; a recipe "
            f"of your own needs its Entry: regard.load(folder, recipe=ENTRY)"
        )
    config = apply_changes(
        entries[content.recipe].config(),
        content.config,
        called=lambda name: f"{path}: config.{name}",
        complete=True,
    )
    return Run(
        recipe=content.recipe,
        seed=content.seed,
        config=config,
        created=content.created,
        regard=content.regard,
        init=content.init,
        own=own if own is not None and own.name == content.recipe else None,
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
    check_file(path)
    default, data = type(before.config)(), before.config.data
    files = {}
    for item in dataclasses.fields(data):
        is_number = isinstance(getattr(data, item.name), int | float)  # such as val_share
        if item.name.startswith(("train", "val", "test")) and not is_number:
            files[item.name] = getattr(default.data, item.name)
    config = dataclasses.replace(
        before.config, data=dataclasses.replace(data, **files), train=default.train
    )
    return Init(folder=str(folder.absolute()), weights=hash_file(path)), config


def _is_derived(entry: Entry, before: Run) -> bool:
    """Return True if the recipe is a subclass of that of another run, with the same settings."""
    if isinstance(entry.recipe, str) or entry.config is not type(before.config):
        return False
    return issubclass(entry.load_class(), get_entry(before.own or before.recipe).load_class())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Folder that is locked for a run."""

    path: Path
    run: Run
    """Settings, with the precision `auto` replaced."""
    is_resumed: bool
    """True if the folder held this run; another one is replaced."""
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    """Data of a run that is resumed."""
    report: dict[str, Any] | None = None
    """Report of a run that is finished, so that nothing is left to do."""

    def start(self, fit: Callable[[Path], None]) -> None:
        """Write run.json and, for a new run, the artifacts that `fit` writes to a folder."""
        if self.is_resumed:
            (self.path / _REPORT).unlink(missing_ok=True)
            _write(self.path, self.run, self.sources)
            return
        unfinished = self.path / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            fit(unfinished)
            _write(self.path, self.run, find_sources(self.run, {}))
            (self.path / _REPORT).unlink(missing_ok=True)
            shutil.rmtree(self.path / ARTIFACTS, ignore_errors=True)
            unfinished.rename(self.path / ARTIFACTS)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write report.json, which marks the run as finished."""
        write_atomically(
            self.path / _REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        )


@contextmanager
def open_run_folder(
    folder: Path,
    run: Run,
    *,
    resolve: Callable[[], Literal["float32", "bfloat16"]],
    notify: Callable[[str], None],
) -> Generator[RunFolder, None, None]:
    """Create and lock the folder of a run; it is removed again if it stays empty.

    resolve: returns the precision of a new run.
    Raises:  UserError if the folder holds another run with a checkpoint, naming the differences, or
             files of something else, or if another process trains in it.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder for a run; choose another with --run")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    with lock_folder(folder):
        try:
            yield _open(folder, run, resolve, notify)
        finally:
            with suppress(OSError):  # not empty
                for path in created:
                    path.rmdir()


def check_run_folder(folder: Path, run: Run) -> None:
    """Raise UserError as `open_run_folder`, without a look at the data and without torch."""
    if folder.is_dir():
        before, has_begun = _find_run(folder, run)
        if before is not None and has_begun:
            _check_settings(folder, before, _with_precision(run, before))


def has_checkpoint(folder: Path) -> bool:
    """Return True if the run has a checkpoint, its own or of a model that it trains first."""
    patterns = ("checkpoints/step-*/state.json", "*/checkpoints/step-*/state.json")
    return any(any(folder.glob(pattern)) for pattern in patterns)


def find_unfinished_step(folder: Path) -> int | None:
    """Return the step of the last checkpoint of a run; None if it is finished."""
    steps = [int(path.parent.name[5:]) for path in folder.glob("checkpoints/step-*/state.json")]
    return None if (folder / _REPORT).exists() else max(steps, default=None)


def check_data_files(recipe: str, settings: Any) -> None:
    """Raise UserError for a file that settings of data name and that does not exist."""
    data = to_plain(settings)
    if recipe not in NAMES or data.get("format") == "huggingface":
        return  # a recipe of the user may give other meanings to these settings
    for name, value in data.items():
        for path in value if isinstance(value, list) else [value]:
            is_path = name.startswith(("train", "val", "test")) and isinstance(path, str)
            if not is_path or path.startswith("hf:") or os.path.exists(path):
                continue
            if path == "-":
                raise UserError(
                    f"{option_name(f'data.{name}')} must be a file, got - (standard input)"
                )
            check_file(Path(path))


def _open(
    folder: Path,
    run: Run,
    resolve: Callable[[], Literal["float32", "bfloat16"]],
    notify: Callable[[str], None],
) -> RunFolder:
    before, has_begun = _find_run(folder, run)
    if before is None or not has_begun:
        train = dataclasses.replace(run.config.train, precision=resolve())
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, train=train))
        return RunFolder(path=folder, run=run, is_resumed=False)
    run = _with_precision(run, before)
    _check_settings(folder, before, run)
    sources = _check_data(folder, run, notify)
    run = dataclasses.replace(before, config=run.config)
    steps, made = run.config.train.steps, find_unfinished_step(folder)
    if steps is not None and made is not None and steps < made:
        raise UserError(
            f"the run in {folder} has made {made} steps, more than --train.steps {steps}"
        )
    report = None
    if (folder / _REPORT).exists() and (folder / _WEIGHTS).exists():
        is_same = before.config == run.config
        if not is_same and not has_checkpoint(folder):
            trains = before.config.train, run.config.train
            is_same = all(getattr(trains[0], name) == getattr(trains[1], name) for name in _LIMITS)
            if not is_same:
                raise UserError(
                    f"the run in {folder} is finished and kept no checkpoints "
                    f"(--train.keep-finished model), so it cannot be continued; --init {folder} "
                    f"starts a new run from its parameters"
                )
        report = read_json(folder / _REPORT, dict[str, Any]) if is_same else None
    return RunFolder(path=folder, run=run, is_resumed=True, sources=sources, report=report)


def _find_run(folder: Path, run: Run) -> tuple[Run | None, bool]:
    """Return the run in a folder, if any, and True if it has a checkpoint or parameters."""
    if (folder / _FILE).exists():
        return read_run(folder, run.own), has_checkpoint(folder) or (folder / _WEIGHTS).exists()
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names:
        raise UserError(
            f"{folder} holds files of something else ({', '.join(names[:_MAX_SHOWN])}); choose "
            f"another folder with --run"
        )
    return None, False


def _with_precision(run: Run, before: Run) -> Run:
    """Return a run with the precision that it started with in place of `auto`."""
    train = run.config.train
    if train.precision != "auto":
        return run
    train = dataclasses.replace(train, precision=before.config.train.precision)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, train=train))


def _check_settings(folder: Path, before: Run, now: Run) -> None:
    """Raise UserError for settings that affect the parameters and differ."""
    if before.recipe != now.recipe:
        raise UserError(f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}")
    differences = find_differences(training_fingerprint(before), training_fingerprint(now))
    if not differences:
        return
    given = find_differences(parameter_settings(before), parameter_settings(now))
    rows = []
    for name, (theirs, mine) in given.items():
        if name in differences:
            option = option_name(name.removesuffix(".name"))
            rows.append(f"{option} is {_format(theirs)} there and {_format(mine)} here")
    more = f" (and {len(rows) - _MAX_SHOWN} more)" if len(rows) > _MAX_SHOWN else ""
    raise UserError(
        f"{folder} holds a run of {now.recipe} with other settings: "
        f"{'; '.join(rows[:_MAX_SHOWN])}{more}. Choose another folder with --run"
    )


def _check_data(folder: Path, run: Run, notify: Callable[[str], None]) -> dict[str, Source]:
    """Return the data of a run that is resumed. Raises UserError if it is not that of its start."""
    recorded = _read(folder).data
    sources = find_sources(run, recorded)
    for name in {**recorded, **sources}:
        was, now = recorded.get(name), sources.get(name)
        is_named = now is not None and not now.sha256
        if was is None or now is None or was.sha256 != now.sha256 or (is_named and was != now):
            raise UserError(
                f"{option_name(name)}: {data_paths(run).get(name)} is not the data that the run in "
                f"{folder} started with; choose another folder with --run"
            )
        if was.path != now.path:
            notify(f"{name} has moved from {was.path} to {now.path}; its content is the same")
    return sources


def find_sources(run: Run, recorded: Mapping[str, Source]) -> dict[str, Source]:
    """Return the training and validation data of a run by the name of its setting.

    A file of the recorded size and time is not read again. Data that is gone, or is not a file,
    such as a name at Hugging Face, is identified by its name.
    """
    sources = {}
    for name, path in data_paths(run).items():
        root, known = Path(path), recorded.get(name)
        if not (root.is_file() or root.is_dir()):
            if known is not None and known.path == path:
                sources[name] = known
            elif known is None or not known.sha256:
                sources[name] = Source(path=path, size=0, modified=0, sha256="")
            else:
                check_file(root)
            continue
        files = _list_files(root)
        stats = [file.stat() for file in files]
        size = sum(stat.st_size for stat in stats)
        modified = max((stat.st_mtime_ns for stat in stats), default=0)
        if known is not None and (known.size, known.modified) == (size, modified):
            sources[name] = dataclasses.replace(known, path=path)
            continue
        digest = hash_file(root) if files == [root] else _hash_files(root, files)
        sources[name] = Source(path=path, size=size, modified=modified, sha256=digest)
    return sources


def _list_files(root: Path) -> list[Path]:
    """Return a file, or the files of a folder and its folders, except hidden ones."""
    files = [root]
    if root.is_dir():
        files = []
        for file in sorted(root.rglob("*")):
            is_hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
            if file.is_file() and not is_hidden:
                files.append(file)
    return files


def _hash_files(root: Path, files: list[Path]) -> str:
    """Return the SHA-256 of the names and the content of the files of a folder."""
    lines = [f"{file.relative_to(root).as_posix()}\t{hash_file(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _read(folder: str | Path) -> _Content:
    path = Path(folder) / _FILE
    if not path.exists():
        raise UserError(f"{folder} is not a run folder: it has no run.json")
    version = read_json(path, dict[str, Any]).get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by another version of regard (format {version}, this one reads "
            f"{FORMAT_VERSION}): train it again"
        )
    return read_json(path, _Content)


def _write(folder: Path, run: Run, sources: Mapping[str, Source]) -> None:
    content = _Content(
        format_version=FORMAT_VERSION,
        recipe=run.recipe,
        seed=run.seed,
        regard=run.regard,
        created=run.created,
        config=to_plain(run.config),
        data=dict(sources),
        init=run.init,
    )
    write_atomically(folder / _FILE, json.dumps(dataclasses.asdict(content), indent=2) + "\n")


def _format(value: object) -> str:
    return "not given" if value is None else repr(value)
