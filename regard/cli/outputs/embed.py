"""`regard embed RUN [INPUT ...|-] --out FILE.npy`: vectors of texts, images, sounds ..."""

from pathlib import Path
from typing import Literal

import numpy as np

from regard.cli.inputs import MANY, BadInputs, check_words, read_inputs
from regard.cli.runs import UseOptions, check_new, load_trained, read_command, reading_settings
from regard.data.arrays import stack_vectors
from regard.errors import DONE, UserError
from regard.recipes.registry import get_entry
from regard.settings.declare import settings
from regard.system.progress import show_progress, track
from regard.system.writing import open_text_atomically, replace_atomically

USAGE = "regard embed RUN [INPUT ...|-] --out FILE.npy [options]"
ABOUT = (
    "Compute a vector of each INPUT, given as for `predict`, and write them as an array of float32 "
    "(inputs, width) in the order of the inputs: FILE.npy, with their names (text or file) line by "
    "line in FILE.names.txt; or FILE.npz, with the arrays `vectors` and `names`."
)


@settings
class EmbedOptions(UseOptions):
    """Options of `regard embed`."""

    out: Path | None = None
    """File for the vectors: FILE.npy or FILE.npz. It appears when it is complete."""
    pooling: Literal["auto", "mean"] = "auto"
    """auto: the vector from which the model classifies. Of a model without one, and with mean: the
    mean of the items that the encoder returns, or the decoder of a language model."""
    on_bad: Literal["error", "skip", "truncate"] = "error"
    """Handling of inputs that cannot be used (too long, not UTF-8, damaged): error stops; skip
    gives NaN in their place and counts them, as is always done for blank lines of a file; truncate
    also cuts texts that are too long."""
    force: bool = False
    """Replace the files of --out if they exist."""


def run(argv: list[str]) -> int:
    """Parse the options, compute the vectors and write them."""
    command = read_command(
        argv, EmbedOptions(), usage=USAGE, about=ABOUT, max_words=MANY, settings_of=reading_settings
    )
    folder, record, options, words = command
    out: Path | None = options.out
    if out is None or out.suffix not in (".npy", ".npz"):
        raise UserError(f"--out must be FILE.npy or FILE.npz, got {out}")
    words = words or ["-"]
    check_words(words, get_entry(record.recipe).input_of(record.config))
    name_file = out.with_suffix(".names.txt") if out.suffix == ".npy" else None
    if not out.parent.is_dir():
        raise UserError(f"{out}: the folder {out.parent} does not exist")
    check_new(out, force=options.force)
    check_new(name_file, force=options.force)
    trained = load_trained(folder, options, record)
    bad, names, vectors = BadInputs(trained, options.on_bad), [], []
    with show_progress():
        for block in track(read_inputs(words, trained, skip_bad=bad.on_bad != "error"), "inputs"):
            first = bad.count + 1
            inputs, values = bad.prepare(block)
            found = trained.compute_vectors(values, options.pooling, first=first, is_skipping=True)
            for given, vector in zip(inputs, found, strict=True):
                names.append(given.file or "" if given.source is None else given.source)
                if isinstance(vector, UserError):
                    bad.skip(given, vector)
                    vector = None  # noqa: PLW2901
                vectors.append(vector)
    array = stack_vectors(vectors)
    with replace_atomically(out) as unfinished, unfinished.open("wb") as file:
        if name_file is None:
            np.savez(file, vectors=array, names=np.array(names, str))
        else:
            np.save(file, array)
    if name_file is not None:
        with open_text_atomically(name_file) as text:
            text.writelines(" ".join(name.splitlines()) + "\n" for name in names)
    bad.report()
    return DONE
