"""Export of a run as a folder of Transformers, which is not needed to write it.

    config.json, generation_config.json    architecture, sizes, generation
    model.safetensors                      the parameters
    tokenizer.json, tokenizer_config.json  the tokenizer
    README.md                              model card

Sinusoidal positions are written as a table, which limits the length of inputs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.text.labels import Labels
from regard.exchange.card import write_card
from regard.exchange.families.family import Config, Family, Tensors, find_family, new_head
from regard.exchange.files import CONFIG, ORIGINALS, WEIGHTS, write_json
from regard.exchange.rules import make_rules
from regard.exchange.tokens import text_layout, write_tokenizer
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.language.recipe import LanguageRecipe
from regard.training.tensors import read_tensors, tensors_of, write_tensors


def export(trained: Any, folder: Path, options: Any, notify: Callable[[str], None]) -> None:
    """Write a trained run to a new folder. Raises: UserError if Transformers cannot express it."""
    recipe, layout, generation = trained.recipe, text_layout(trained), dict[str, Any]()
    if isinstance(recipe, LanguageRecipe):
        generation = _sampling(recipe)
    elif isinstance(recipe, TextToTextRecipe):
        generation = _search(recipe)
    tensors = tensors_of(trained.model)
    num_positions = len(tensors.get("core.positions.weight", ()))
    family, config, tensors = find_family(
        trained.run, tensors, num_positions if layout is None else layout.num_positions
    )
    config |= {name: generation[name] for name in generation if name.endswith("token_id")}
    config["dtype"] = "float32"
    for name in ("writer.inputs.table.weight", "reader.table.weight"):
        if name in tensors:
            config["vocab_size"] = len(tensors[name])
    if not config.get("share_encoder_decoder_embeddings", True):
        config["decoder_vocab_size"] = len(tensors["writer.inputs.table.weight"])
    labels = getattr(getattr(recipe, "target", recipe), "labels", None)
    if isinstance(labels, Labels):
        config["id2label"] = {str(number): name for number, name in enumerate(labels.names)}
        config["label2id"] = {name: number for number, name in enumerate(labels.names)}
    if layout is not None:
        for name in family.special_ids:
            config[f"{name}_token_id"] = getattr(layout.target.specials, name)
        write_tokenizer(folder, layout)
        if generation:
            generation["suppress_tokens"] = [*layout.banned] or None
            write_json(folder / "generation_config.json", generation)
    for name, content in family.files(config, trained.config).items():
        write_json(folder / name, content)
    exported = export_tensors(family, config, tensors, trained.folder / ARTIFACTS / ORIGINALS)
    # The library refuses a tensor with two names.
    write_tensors(folder / WEIGHTS, {name: value.clone() for name, value in exported.items()})
    del config["recipe"]
    write_json(folder / CONFIG, config)
    write_card(trained, folder, config["architectures"][0], license_name=options.license)


def export_tensors(
    family: Family, config: Config, tensors: Tensors, originals: Path
) -> dict[str, Tensor]:
    """Return the tensors of a folder, without those that Transformers computes.

    originals: file of the tensors that the import folded, if there is one: they are used if the
               folded ones are still as they were.
    """
    rules = make_rules(family.table(config), tensors)
    exported = {rule.theirs: rule.export(tensors) for rule in rules}
    head = new_head(rules, tensors) if family.task(config) in family.bases else {}
    for name, value in {**family.computed(config), **head}.items():
        if torch.equal(exported[name], value):
            del exported[name]
    if originals.exists():
        given = read_tensors(originals)
        folded = dict(given)
        family.fold(folded, config)
        made = {name: value for name, value in folded.items() if name in exported}
        if all(torch.equal(exported[name], value) for name, value in made.items()):
            return {name: x for name, x in exported.items() if name not in made} | given
    family.unfold(exported, config)
    return exported


def _sampling(recipe: LanguageRecipe) -> dict[str, Any]:
    """Return the generation_config of a language model, which generates no special token."""
    sample, specials = recipe.config.sample, recipe.tokenizer.specials
    settings: dict[str, Any] = {
        "bos_token_id": specials.bos,
        "eos_token_id": specials.eos,
        "pad_token_id": specials.pad,
        "max_length": recipe.config.context,
        "do_sample": sample.temperature > 0,
    }
    if sample.temperature > 0:
        settings["temperature"] = sample.temperature
        settings["top_k"] = sample.top_k or 0
        settings["top_p"] = sample.top_p
    return settings


def _search(recipe: TextToTextRecipe[Any]) -> dict[str, Any]:
    """Return the generation_config of a text-to-text model, for its longest input."""
    decode = recipe.search_config()
    start, eos, pad = recipe.search_ids().values()
    return {
        "bos_token_id": recipe.tokenizer.specials.bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,
        "max_new_tokens": decode.limit(recipe.settings.input_limit + 1),
        "num_beams": decode.beam,
        "length_penalty": decode.length_penalty,
    }
