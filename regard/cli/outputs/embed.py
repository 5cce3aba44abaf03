"""`regard embed RUN [INPUT ...|-] --out FILE`: vectors of texts, images, sounds ..."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.cli.inputs import MANY, BadInputs, add_input, check_words, read_inputs
from regard.cli.runs import UseOptions, check_new, load_trained, read_command, reading_settings
from regard.data.arrays import stack_vectors
from regard.data.tables import Input
from regard.errors import DONE, UserError
from regard.recipes.registry import get_entry
from regard.settings.declare import settings
from regard.system.progress import show_progress, track
from regard.system.table_writer import SUFFIXES, open_table_atomically
from regard.system.writing import open_text_atomically, replace_atomically

USAGE = "regard embed RUN [INPUT ...|-] --out FILE [options]"
ABOUT = (
    "Compute a vector of each INPUT, given as for `predict`, and write them in the order of the "
    "inputs, as an array of float32 (inputs, width): FILE.npy, with their names (text or file) "
    "line by line in FILE.names.txt; or FILE.npz, with the arrays `vectors` and `names`. Or as a "
    "table, with the columns of the input: FILE.csv or .tsv with a column for each number, "
    "vector_1, vector_2 ...; FILE.parquet or .jsonl with a list in the column `vector`."
)


@settings
class EmbedOptions(UseOptions):
    """Options of `regard embed`."""

    out: Path | None = None
    """File for the vectors: FILE.npy, .npz, .csv, .tsv, .parquet or .jsonl. It appears when it is
    complete."""
    pooling: Literal["auto", "mean"] = "auto"
    """auto: the vector from which the model classifies. Of a model without one, and with mean: the
    mean of the items that the encoder returns, or the decoder of a language model."""
    on_bad: Literal["error", "skip", "truncate"] = "error"
    """Handling of inputs that cannot be used (too long, not UTF-8, damaged): error stops; skip
    gives NaN (in tables, nothing) in their place and counts them, as is always done for blank lines
    of a file; truncate also cuts texts that are too long."""
    force: bool = False
    """Replace the files of --out if they exist."""


def run(argv: list[str]) -> int:
    """Parse the options, compute the vectors and write them."""
    folder, record, options, words = read_command(
        argv, EmbedOptions(), usage=USAGE, about=ABOUT, max_words=MANY, settings_of=reading_settings
    )
    out: Path | None = options.out
    if out is None or out.suffix not in (".npy", ".npz", *SUFFIXES):
        raise UserError(f"--out must be FILE.npy, .npz, {', '.join(SUFFIXES)}, got {out}")
    words = words or ["-"]
    check_words(words, get_entry(record.recipe).input_of(record.config))
    name_file = out.with_suffix(".names.txt") if out.suffix == ".npy" else None
    if not out.parent.is_dir():
        raise UserError(f"{out}: the folder {out.parent} does not exist")
    check_new(out, force=options.force)
    check_new(name_file, force=options.force)
    trained = load_trained(folder, options, record)
    bad = BadInputs(trained, options.on_bad, trained.recipe.shorten_embedded)
    compute = partial(trained.compute_vectors, pooling=options.pooling)
    inputs, vectors = list[Input](), list[Any]()
    with show_progress():
        for read in track(read_inputs(words, trained, skip_bad=bad.on_bad != "error"), "inputs"):
            for _, given, vector in bad.answer(read, compute):
                inputs.append(given)
                vectors.append(None if isinstance(vector, UserError) else vector)
    bad.report()
    if out.suffix in SUFFIXES:
        _write_table(out, inputs, vectors, trained.recipe.input_name)
        return DONE
    names, array = [], stack_vectors(vectors)
    for given in inputs:
        names.append(given.file or "" if given.source is None else given.source)
    with replace_atomically(out) as unfinished, unfinished.open("wb") as file:
        if name_file is None:
            np.savez(file, vectors=array, names=np.array(names, str))
        else:
            np.save(file, array)
    if name_file is not None:
        with open_text_atomically(name_file) as text:
            text.writelines(" ".join(name.splitlines()) + "\n" for name in names)
    return DONE


def _write_table(out: Path, inputs: Sequence[Input], vectors: Sequence[Any], name: str) -> None:
    """Write a row per input: its columns (or one of this name), then its vector."""
    columns = [f"vector_{i + 1}" for i in range(stack_vectors(vectors).shape[1])]
    with open_table_atomically(out, {}) as table:
        for given, vector in zip(inputs, vectors, strict=True):
            numbers = None if vector is None else [float(str(number)) for number in vector]
            cells: dict[str, Any] = {"vector": numbers}
            if out.suffix in (".csv", ".tsv"):
                cells = dict(zip(columns, numbers or [None] * len(columns), strict=True))
            table.write(add_input(cells, given, name, out))
