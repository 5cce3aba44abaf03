"""Import of a folder of Transformers as a run, with the bits of its parameters."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.compat.torch import ShapesOnly
from regard.errors import UserError
from regard.exchange.families.family import Config, Family, family_of, new_head
from regard.exchange.files import CONFIG, ORIGINALS, TensorFiles, read_config
from regard.exchange.formats import new_folder
from regard.exchange.pieces import read_tokenizers
from regard.exchange.rules import check_shapes, load_parameters, make_rules
from regard.recipes.base.run import ARTIFACTS, Origin, Run
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import write_run
from regard.settings.options import nest
from regard.settings.tree import apply_changes
from regard.system.files import hash_file, read_json
from regard.training.tensors import find_nonfinite, tensors_of, ties_of, write_tensors

_GENERATION = {
    **dict.fromkeys(("num_beams", "repetition_penalty", "encoder_repetition_penalty"), 1),
    **dict.fromkeys(("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("forced_bos_token_id", "min_new_tokens", "sequence_bias")),
}
"""Settings of generation that are not read, with the values that change nothing."""


def import_folder(
    folder: Path, out: Path, *, recipe: str | None = None, notify: Callable[[str], None]
) -> Run:
    """Write the model of a folder of Transformers as a run folder, and return the run.

    Nothing that a file names is imported or run.
    recipe: of a model without a classifier, if there are several.

    Raises: UserError naming the file and the field or tensor that has no place here, or if `out` is
            not empty; then nothing is written.
    """
    given = read_config(folder)
    with _name_file(folder / CONFIG):
        family = family_of(given.get("model_type"))
        recipes = family.recipes(given)
        if recipe is not None and recipe not in recipes:
            raise UserError(f"--recipe must be {' or '.join(recipes)} for this model, got {recipe}")
        entry = get_entry(recipe or recipes[0])
    files = TensorFiles(folder, given["architectures"][0] if "architectures" in given else None)
    with _name_file(folder / CONFIG):
        given = family.translate({**given, "recipe": entry.name}, files.shapes)
        config = family.complete(given)
        changes = family.run_settings(config) | {"model": nest(family.read(config))}
        if entry.input == "text":
            changes["tokenizer"] = {"kind": "pretrained"}
        settings = apply_changes(entry.config(), changes, called=str)
        found = family.artifacts(config)
    halves = sum(kind in ("F16", "BF16") for kind in files.kinds.values())
    if halves:
        notify(f"{folder}: {halves} of {len(files)} tensors have half precision: now float32")
    hashes = [hash_file(path) for path in files.paths]
    base = config["architectures"][0] if family.task(config) in family.bases else None
    for text in _differences(folder, config):
        notify(f"{folder}: {text}")
    if base is not None:
        notify(
            f"{folder}: {base} has no classifier. That of the run is new, and predicts "
            f"nothing: regard train {entry.name} --init {out} trains it"
        )
    origin = Origin(
        base=base,
        folder=str(folder.absolute()),
        model_type=family.name.lower(),
        size=sum(path.stat().st_size for path in files.paths),
        weights=hashes[0] if len(hashes) == 1 else hashlib.sha256(str(hashes).encode()).hexdigest(),
    )
    run = Run(recipe=entry.name, seed=1, config=settings, origin=origin)
    with new_folder(out) as unfinished:
        artifacts = unfinished / ARTIFACTS
        artifacts.mkdir()
        if "tokenizer" in changes:
            found |= read_tokenizers(folder, config)
        for name, artifact in found.items():
            artifact.save(artifacts / name)
        created = create_recipe(run, notify)
        created.open(artifacts)
        with _name_file(folder / CONFIG), torch.device("meta"), ShapesOnly():
            model = created.model()
        own = {name: torch.empty(()).expand(x.shape) for name, x in tensors_of(model).items()}
        with _name_file(folder):
            parameters, originals = _load(family, config, files, own)
            if bad := find_nonfinite(model, parameters):
                raise UserError(bad)
        write_run(unfinished, run)
        write_tensors(unfinished / "model.safetensors", parameters, ties=ties_of(model))
        if originals:
            write_tensors(artifacts / ORIGINALS, originals)
    return run


def _differences(folder: Path, config: Config) -> Iterator[str]:
    """Yield what a run does otherwise than the folder says."""
    images = config.get("preprocessor", {})
    shown = images.get("crop_size") or images.get("size")
    height = shown.get("height") if isinstance(shown, dict) else shown
    if None not in (height, config.get("image_size")) and height != config["image_size"]:
        yield f"images are read at {config['image_size']} pixels a side, not {height}"
    path = folder / "generation_config.json"
    given = {**config, **(read_json(path, dict[str, Any]) if path.exists() else {})}
    found = []
    for name, neutral in _GENERATION.items():
        if given.get(name) not in (None, neutral):
            found.append(f"{name} {given[name]}")
    # No run generates padding, or the token that an output starts with.
    banned = [[given.get(f"{name}_token_id")] for name in ("pad", "bos", "decoder_start")]
    for name in ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"):
        words = [word if isinstance(word, list) else [word] for word in given.get(name) or ()]
        if any(word not in banned for word in words):
            found.append(f"{name} {given[name]}")
    if found and config["recipe"] in ("language", "translate"):
        yield f"the run generates without {', '.join(found)}"


@contextmanager
def _name_file(path: Path) -> Iterator[None]:
    """Put a file in front of the message of an error."""
    try:
        yield
    except (UserError, ValueError) as error:  # models raise ValueError for sizes that do not fit
        raise UserError(f"{path}: {error}") from error


def _load(
    family: Family, config: Config, files: TensorFiles, own: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return our parameters, and their tensors that are folded; `own`: tensors of our shapes."""
    rules, names = make_rules(family.table(config), own), family.rename(files, config)
    expected = {rule.theirs for rule in rules}
    for copy in (family.copies.keys() & names.keys()) - expected:
        original = family.copies[copy]
        if original not in names or not torch.equal(files[names.pop(copy)], files[names[original]]):
            raise UserError(f"{copy} must equal {original}")
    unused = [name for name in names.keys() - expected if re.fullmatch(family.unused, name)]
    kept = {name: files[names.pop(name)] for name in sorted(unused)}
    taken = {name: files[names.pop(name)] for name in [*names] if re.fullmatch(family.folded, name)}
    head = new_head(rules, own) if family.task(config) in family.bases else {}
    made = {**family.computed(config), **head, **taken}
    family.fold(made, config)
    originals = {name: value for name, value in taken.items() if made.get(name) is not value}
    shapes = {name: tuple(value.shape) for name, value in made.items()}
    shapes |= {name: files.shapes[names[name]] for name in names}
    check_shapes(rules, shapes, own)
    parameters = load_parameters(
        rules, lambda name: files[names[name]] if name in names else made[name]
    )
    return parameters, originals | kept
