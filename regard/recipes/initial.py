"""Start of a run from parameters and tokenizers of another: `regard train RECIPE --init RUN`.

settings      those of RUN, except for its data and its training, are the defaults of the new run
tokenizers    are those of RUN (`Recipe.fit_tokenizer`)
parameters    of the same name are copied; their shapes must be equal
labels        if they are other ones, the parameters of each label that both runs have are copied
              (Writer.label_axes)
"""

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

_WRITER = "writer."


def check_init(recipe: Recipe[Any]) -> None:
    """Raise UserError for tokenizers of other settings, or a recipe that trains other models first.

    The parameters of such a recipe have a meaning only with those of the other models.
    """
    run = recipe.run
    if run.init is None:
        if run.config.train.lora is not None:
            raise UserError(
                "--train.lora adapts parameters of another run: give it with --init RUN"
            )
        return
    if type(recipe).pretrain is not Recipe.pretrain:
        raise UserError(
            f"--init: a run of {run.recipe} cannot start from another one: its model reads the "
            "codes of models that each run trains first. To continue a run, give --run RUN without "
            "the recipe"
        )
    theirs = to_plain(read_run(run.init.folder, run.own, is_start=True).config)
    for name, (before, now) in find_differences(theirs, to_plain(run.config)).items():
        if "tokenizer" in name.partition(".")[0]:
            raise UserError(
                f"{option_name(name)} must be {before!r}, the setting of the tokenizer of --init "
                f"{run.init.folder}, which is taken over; got {now!r}"
            )


def copy_parameters(model: nn.Module, init: Init, folder: Path) -> str:
    """Copy the parameters of the run `init` to a new model, by labels in `folder`; return a note.

    Raises: UserError if a parameter has another shape, or the run has changed since `read_init`.
    """
    path = Path(init.folder) / "model.safetensors"
    if not path.is_file() or hash_file(path) != init.weights:
        raise UserError(f"{path} has changed or is missing: start a new run with --init")
    given, own = read_tensors(path), tensors_of(model)
    before, now = _read_labels(path.parent), _read_labels(folder)
    axes: dict[str, int] = {}
    if before != now and isinstance(model, Model):
        axes = {f"{_WRITER}{name}": axis for name, axis in model.writer.label_axes().items()}
    known = [label for label in now if label in before]
    source = torch.tensor([before.index(label) for label in known])
    target = torch.tensor([now.index(label) for label in known])
    new = []
    with torch.no_grad():
        for name, value in own.items():
            axis = axes.get(name)
            is_of_labels = before != now and name.startswith(_WRITER)
            # A user's writer may not name the axes of labels: what has a side of that length is
            # initialized.
            may_depend = is_of_labels and not axes and len(now) in value.shape
            if name not in given or may_depend or (axis is not None and not known):
                new.append(name)
                continue
            initial, expected = given[name], list(value.shape)
            if axis is not None:  # the number of labels may be another
                initial = initial.index_select(axis, source)
                expected[axis] = len(known)
            if list(initial.shape) == expected and axis is not None:
                value.index_copy_(axis, target, initial.to(value))
            elif list(initial.shape) == expected:
                value.copy_(initial)
            elif is_of_labels:
                new.append(name)
            else:
                raise UserError(
                    f"shape mismatch with --init {init.folder}: {name} is {tuple(initial.shape)}, "
                    f"expected {tuple(value.shape)}. Leave out the --model options and those of "
                    "the size of inputs"
                )
    note = f"parameters of {init.folder}: {len(own) - len(new)} of {len(own)} tensors copied"
    added = [label for label in now if label not in before] if known else []
    unused = sorted(given.keys() - own.keys())
    for about, names in (("new", new), ("new labels", added), ("not used", unused)):
        if names:
            note += f"; {about}: {', '.join(names)}"
    return note


def _read_labels(folder: Path) -> list[str]:
    path = folder / ARTIFACTS / "labels.json"
    return read_json(path)["names"] if path.exists() else []
