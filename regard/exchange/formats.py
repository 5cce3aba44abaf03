"""Formats of `regard export`, and the folder that an export writes. (no torch)"""

import importlib
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.system.writing import flush_folder


@dataclass(frozen=True, kw_only=True)
class Format:
    """Format of an export: its summary, and the function that writes it."""

    summary: str
    function: str
    """MODULE:FUNCTION, imported when it is used: function(trained, folder, options, notify)."""
    options: tuple[str, ...] = ()
    """Options of `regard export` that only some formats have."""


_HERE = "regard.exchange"
FORMATS = {
    "transformers": Format(
        summary="a folder that `from_pretrained` of Transformers loads",
        function=f"{_HERE}.transformers:export",
        options=("license",),
    ),
    "ctranslate2": Format(
        summary="a folder that `Translator` or `Generator` of CTranslate2 opens",
        function=f"{_HERE}.ctranslate2:export",
        options=("license", "compute_type"),
    ),
    "onnx": Format(
        summary="graphs that ONNX Runtime runs, of the models of all recipes",
        function=f"{_HERE}.onnx:export",
    ),
    "torch": Format(
        summary="the same graphs as programs that `torch.export.load` reads",
        function=f"{_HERE}.graphs:export",
    ),
    "page": Format(
        summary="a page that runs a text model in a browser and shows its attention, offline",
        function=f"{_HERE}.page:export",
    ),
}
"""The formats by name."""


def export(
    trained: Any, name: str, out: Path, options: Any, *, notify: Callable[[str], None] = print
) -> None:
    """Write a trained run to a folder in a format.

    Raises: UserError if the folder is not empty, or the format cannot express the model; then
            nothing is written.
    """
    module, _, function = FORMATS[name].function.partition(":")
    is_own = not type(trained.recipe).model.__module__.startswith("regard.")
    if name != "transformers":
        trained.check_classifier()
    elif is_own:  # its settings do not say what the model computes
        raise UserError("Transformers cannot express the model of your recipe; choose another --to")
    with new_folder(out) as unfinished:
        try:
            getattr(importlib.import_module(module), function)(trained, unfinished, options, notify)
        except (AttributeError, TypeError, ValueError) as error:
            if not is_own:
                raise
            raise UserError(f"{name} cannot express the model of your recipe: {error}") from error


def check_new_folder(path: Path) -> None:
    """Raise UserError if there is a file, or a folder that is not empty."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file, expected the name of a new folder.")
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"{path}: is not empty; choose another folder.")


@contextmanager
def new_folder(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary folder that is renamed to `path` when the block ends; an error leaves
    nothing. Raises UserError as `check_new_folder`, and if it cannot be written."""
    check_new_folder(path)
    path = path.absolute()
    created = [above for above in path.parents if not above.exists()]
    unfinished = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):  # not empty
            for above in created:
                above.rmdir()
