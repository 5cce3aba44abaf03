"""Start of a run from the parameters and tokenizers of another one: `regard train RECIPE --init
RUN`.

settings      those of RUN, except for its data and its training, are the defaults of the new run
tokenizers    are those of RUN (`Recipe.fit_tokenizer`)
parameters    of the same name are copied; their shapes must be equal
labels        if they are other ones, the parameters of each label that both runs have are copied
              (Writer.label_axes)
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import UserError
from regard.models.model import Model
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import ARTIFACTS, Init
from regard.recipes.run_folder import read_run
from regard.settings.options import option_name
from regard.settings.tree import find_differences, to_plain
from regard.system.files import hash_file, read_json
from regard.training.tensors import read_tensors, tensors_of

_WEIGHTS, _LABELS = "model.safetensors", "labels.json"
_WRITER = "writer."


def check_init(recipe: Recipe[Any]) -> None:
    """Raise UserError for tokenizers of other settings than those of the run that this one starts
    from.

    So does a recipe that trains other models first: its parameters have a meaning only with theirs.
    """
    run = recipe.run
    if run.init is None:
        return
    if type(recipe).pretrain is not Recipe.pretrain:
        raise UserError(
            f"--init: a run of {run.recipe} cannot start from another one: its model reads the "
            f"codes of models that "
            "each run trains first. To continue a run, give --run RUN without the recipe"
        )
    names = [item.name for item in fields(run.config) if "tokenizer" in item.name]
    theirs = to_plain(read_run(run.init.folder, run.own, is_start=True).config)
    differences = find_differences(
        {n: theirs[n] for n in names}, {n: to_plain(run.config)[n] for n in names}
    )
    for name, (before, now) in differences.items():
        raise UserError(
            f"{option_name(name)} must be {before!r}, the setting of the tokenizer of --init "
            f"{run.init.folder}, which "
            f"is taken over; got {now!r}"
        )


def copy_parameters(model: nn.Module, init: Init, folder: Path) -> str:
    """Copy the parameters of the run `init` to a new model, whose labels are in `folder`; return a
    note on new ones.

    Raises: UserError if a parameter has another shape, or the run has changed since `read_init`.
    """
    path = Path(init.folder) / _WEIGHTS
    if not path.is_file() or hash_file(path) != init.weights:
        raise UserError(
            f"{path} has changed or is missing: choose --init again, and another folder with --run"
        )
    given, own = read_tensors(path), tensors_of(model)
    before, now = _read_labels(path.parent), _read_labels(folder)
    axes = (
        {f"{_WRITER}{name}": axis for name, axis in _label_axes(model).items()}
        if before != now
        else {}
    )
    known = [label for label in now if label in before]
    source, target = (
        torch.tensor([names.index(label) for label in known]) for names in (before, now)
    )
    new, wrong = [], []
    with torch.no_grad():
        for name, value in own.items():
            axis = axes.get(name)
            # A writer of one's own may not say what belongs to a label: what has a side of that
            # length begins anew.
            may_depend = (
                before != now and not axes and name.startswith(_WRITER) and len(now) in value.shape
            )
            if name not in given or may_depend or (axis is not None and not known):
                new.append(name)
                continue
            shape, before_shape = list(value.shape), list(given[name].shape)
            if axis is not None:  # the number of labels may be another
                del shape[axis : axis + 1], before_shape[axis : axis + 1]
            if shape != before_shape:
                if before != now and name.startswith(_WRITER):  # of a writer of one's own
                    new.append(name)
                else:
                    wrong.append(
                        f"{name} is {tuple(given[name].shape)} there and {tuple(value.shape)} here"
                    )
            elif axis is not None:
                value.index_copy_(axis, target, given[name].index_select(axis, source).to(value))
            else:
                value.copy_(given[name])
    if wrong:
        raise UserError(
            f"--init {init.folder}: the model has another form: {'; '.join(wrong[:5])}. Leave out "
            f"the --model options "
            "and those of the size of inputs, which are then those of that run"
        )
    unused = sorted(given.keys() - own.keys())
    note = f"parameters of {init.folder}: {len(own) - len(new)} of {len(own)} tensors copied"
    note += f"; new: {', '.join(new)}" if new else ""
    if known and (added := [label for label in now if label not in before]):
        note += f"; new labels: {', '.join(added[:5])}" + (
            f" and {len(added) - 5} more" if len(added) > 5 else ""
        )
    return note + (f"; not used: {', '.join(unused)}" if unused else "")


def _read_labels(folder: Path) -> list[str]:
    path = folder / ARTIFACTS / _LABELS
    return read_json(path)["names"] if path.exists() else []


def _label_axes(model: nn.Module) -> dict[str, int]:
    return model.writer.label_axes() if isinstance(model, Model) else {}
