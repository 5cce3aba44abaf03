"""`regard import FOLDER --run RUN`: public weights as a run; `regard export RUN --to FORMAT --out
FOLDER`: a trained run for other libraries."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.cli.runs import UseOptions, load_trained, read_command, say_if_slow
from regard.errors import DONE, UserError
from regard.exchange.formats import FORMATS, check_new_folder, export
from regard.settings.declare import settings
from regard.settings.help import show_help, two_columns
from regard.settings.options import NoSettings, option_name, parse
from regard.settings.tree import collect_groups
from regard.system.verbosity import print_notice

_IMPORT = "regard import FOLDER --run RUN"
_ABOUT_IMPORT = (
    "Import a folder of Transformers (config.json, safetensors, tokenizer) as a run: predict, look "
    "and bench use it, and `train RECIPE --init RUN` starts from it. Nothing that a file names is "
    "imported or run. Nothing is written if a setting or a tensor has no place here: the message "
    "says which. docs/exchange.md lists the families."
)
_EXPORT = "regard export RUN --to FORMAT --out FOLDER [options]"
_ABOUT_EXPORT = (
    "Write a trained run as a folder for other libraries. Nothing is written if the format cannot "
    "express the model: the message says what, and docs/exchange.md what each format can.\n\n"
    "Formats.\n" + two_columns([(name, format.summary) for name, format in FORMATS.items()])
)

if TYPE_CHECKING:  # a type checker cannot read the table
    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]


@settings
class ImportOptions:
    """Options of `regard import`."""

    run: Path | None = None
    """The new run folder."""
    recipe: Literal["reviews", "tags"] | None = None
    """Recipe of an encoder of texts without a classifier, such as a masked language model; reviews
    if not given."""


def run_import(argv: list[str]) -> int:
    """Parse the options and import the folder."""
    show_help(argv, _IMPORT, _ABOUT_IMPORT, collect_groups(ImportOptions()))
    parsed = parse(argv, ImportOptions(), NoSettings(), max_positionals=1)
    out = parsed.own.run
    if not parsed.positionals or out is None:
        raise UserError(f"FOLDER and --run must be given: {_IMPORT}")
    check_new_folder(out)
    with say_if_slow("loading PyTorch"):
        imported = importlib.import_module("regard.exchange.imported")
    given, recipe = Path(parsed.positionals[0]), parsed.own.recipe
    found = imported.import_folder(given, out, recipe=recipe, notify=print_notice)
    command = "predict" if found.origin.base is None else "look"
    print(f"{out} is a run of the recipe {found.recipe}: try  regard {command} {out} INPUT")
    return DONE


@settings
class ExportOptions(UseOptions):
    """Options of `regard export`."""

    to: FormatName | None = None
    """Format of the folder."""
    out: Path | None = None
    """The new folder."""
    license: str | None = None
    """License in the model card (transformers, ctranslate2), such as apache-2.0."""
    compute_type: Literal["float32", "float16", "bfloat16", "int16", "int8"] | None = None
    """Type of the stored weights (ctranslate2); float32 if not given."""


def run_export(argv: list[str]) -> int:
    """Parse the options, load the run and write the folder."""
    command = read_command(argv, ExportOptions(), usage=_EXPORT, about=_ABOUT_EXPORT)
    options = command.own
    if options.to is None or options.out is None:
        raise UserError(f"--to and --out must be given: {_EXPORT}")
    for name in ("license", "compute_type"):
        if getattr(options, name) is not None and name not in FORMATS[options.to].options:
            raise UserError(f"{option_name(name)} must not be given with --to {options.to}")
    check_new_folder(options.out)
    trained = load_trained(command.folder, options, command.run)
    export(trained, options.to, options.out, options, notify=print_notice)
    print(f"{options.out} is written ({options.to}).")
    return DONE
