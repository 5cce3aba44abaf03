"""Start of a run from the parameters and tokenizers of another one: `regard train RECIPE --init RUN`.

settings      those of RUN, except for its data and its training, are the defaults of the new run
tokenizers    are those of RUN (`Recipe.take_over`)
parameters    of the same name are copied; their shapes must be equal
new           parameters of the output whose shape depends on the labels, if the labels are other ones
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import UserError
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import Init
from regard.recipes.run_folder import read_run
from regard.settings.options import option_name
from regard.settings.tree import find_differences, to_plain
from regard.system.files import read_json
from regard.system.fingerprints import file_fingerprint
from regard.training.tensors import read_tensors, tensors_of

_WEIGHTS, _LABELS = "model.safetensors", "labels.json"


def check_init(recipe: Recipe[Any]) -> None:
    """Raise UserError for tokenizers of other settings than those of the run that this one starts from.

    So does a recipe that trains other models first: its parameters have a meaning only with theirs.
    """
    run = recipe.run
    if run.init is None:
        return
    if type(recipe).pretrain is not Recipe.pretrain:
        raise UserError(
            f"--init: a run of {run.recipe} cannot start from another one: its model reads the codes of models that "
            "each run trains first. To continue a run, give --run RUN without the recipe"
        )
    names = [item.name for item in fields(run.config) if "tokenizer" in item.name]
    theirs = to_plain(read_run(run.init.folder, run.own).config)
    differences = find_differences({n: theirs[n] for n in names}, {n: to_plain(run.config)[n] for n in names})
    for name, (before, now) in differences.items():
        raise UserError(
            f"{option_name(name)} must be {before!r}, the setting of the tokenizer of --init {run.init.folder}, which "
            f"is taken over; got {now!r}"
        )


def copy_parameters(model: nn.Module, init: Init, folder: Path) -> str:
    """Copy the parameters of the run `init` to a new model, whose labels are in `folder`; return a note on new ones.

    Raises: UserError if a parameter has another shape, or the run has changed since `read_init`.
    """
    path = Path(init.folder) / _WEIGHTS
    if not path.is_file() or file_fingerprint(path) != init.weights:
        raise UserError(f"{path} has changed or is missing: choose --init again, and another folder with --run")
    given, own = read_tensors(path), tensors_of(model)
    labels = [read_json(place / _LABELS) if (place / _LABELS).exists() else None for place in (path.parent, folder)]
    count = len((labels[1] or {"names": []})["names"])
    new, wrong = [], []
    with torch.no_grad():
        for name, value in own.items():
            is_output = name.startswith("writes.")
            depends = is_output and labels[0] != labels[1] and len(value.shape) > 0
            if name not in given or (depends and (value.shape != given[name].shape or value.shape[0] == count)):
                new.append(name)
            elif value.shape != given[name].shape:
                wrong.append(f"{name} is {tuple(given[name].shape)} there and {tuple(value.shape)} here")
            else:
                value.copy_(given[name])
    if wrong:
        raise UserError(
            f"--init {init.folder}: the model has another form: {'; '.join(wrong[:5])}. Leave out the --model options "
            "and those of the size of inputs, which are then those of that run"
        )
    unused = sorted(given.keys() - own.keys())
    note = f"parameters of {init.folder}: {len(own) - len(new)} of {len(own)} tensors copied"
    note += f"; new: {', '.join(new)}" if new else ""
    return note + (f"; not used: {', '.join(unused)}" if unused else "")
