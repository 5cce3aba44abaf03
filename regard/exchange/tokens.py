"""Tokenizer files of an export: tokenizer.json and tokenizer_config.json.

Two vocabularies become one: sources are encoded by the one, outputs decoded by the other.

    ids 0 .. T - 1        tokens of targets, whose names begin with a mark that the decoder removes
    ids T .. T + S - 1    tokens of sources
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from regard.data.tokenizer import NO_ENDS, Ends, PretrainedTokenizer, Tokenizer
from regard.exchange.files import to_bytes, write_json
from regard.exchange.pieces import tokenizer_json
from regard.models.cores.config import max_length_of
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.language.recipe import LanguageRecipe

MARK = "\ue000"
"""Begin of the name of each target token of two vocabularies, which no text holds."""
_FILE = "tokenizer.json"
_LEAST_POSITIONS = 512
"""Least length of a table of sinusoidal positions of an encoder-decoder."""
_SPECIALS = ("pad", "bos", "eos")  # Transformers would leave out unk in texts


class TextLayout(NamedTuple):
    """Tokens of a run that generates text."""

    source: Tokenizer
    """Tokenizer of inputs, and of outputs if they share a vocabulary."""
    target: Tokenizer
    ends: Ends
    """Ids around an input."""
    num_positions: int
    """Number of positions that a model needs."""
    banned: tuple[int, ...]
    """Ids that are never generated."""


def text_layout(trained: Any) -> TextLayout | None:
    """Return the tokens of a run; None if it reads no text."""
    recipe = trained.recipe
    if isinstance(recipe, LanguageRecipe):
        tokenizer = recipe.tokenizer
        context, banned = recipe.config.context, recipe.banned
        return TextLayout(tokenizer, tokenizer, Ends(recipe.before), context, banned)
    if not isinstance(recipe, TextToTextRecipe):
        tokenizer = getattr(recipe, "tokenizer", None)
        longest = getattr(recipe.settings.data, "max_length", None)
        if tokenizer is None or longest is None:
            return None
        return TextLayout(tokenizer, tokenizer, tokenizer.text_ends, longest, ())
    source, target = recipe.source_tokenizer, recipe.tokenizer
    start, _, pad = recipe.search_ids().values()
    ends = source.source_ends
    most = recipe.settings.input_limit + len(ends.before) + len(ends.after)
    longest = max(_LEAST_POSITIONS, most, recipe.search_config().limit(most) + 1)
    longest = min(longest, max_length_of(recipe.settings.model.core) or longest)
    return TextLayout(source, target, ends, longest, tuple(sorted({pad, start})))


def write_tokenizer(folder: Path, layout: TextLayout) -> None:
    """Write the tokenizer of a model for Transformers."""
    source, target, ends, longest, _ = layout
    config: dict[str, Any] = {"model_max_length": longest}
    names: Mapping[int, str] = dict(enumerate(getattr(target, "labels", ())))
    if is_sentencepiece(source):
        config |= write_sentencepiece(folder, source, target)
    else:
        content = surround(tokenizer_json(source), ends)
        if source is not target:
            content = join_tokenizers(content, tokenizer_json(target))
        write_json(folder / _FILE, content)
        names = token_names(content)
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["clean_up_tokenization_spaces"] = False
        is_given = isinstance(source, PretrainedTokenizer)
        config["split_special_tokens"] = source.file.splits_specials if is_given else True
        config["model_input_names"] = ["input_ids", "attention_mask"]
    for special in _SPECIALS:
        number = getattr(target.specials, special)
        if number is not None:
            config[f"{special}_token"] = names[number]
    write_json(folder / "tokenizer_config.json", config)


def is_sentencepiece(tokenizer: Tokenizer) -> bool:
    """Return True for a model of sentencepiece, which has no tokenizer.json."""
    return isinstance(tokenizer, PretrainedTokenizer) and isinstance(tokenizer.file.model, bytes)


def write_sentencepiece(folder: Path, source: Any, target: Any) -> dict[str, Any]:
    """Write models of sentencepiece, and return what tokenizer_config.json says of them."""
    if not source.file.vocabulary:
        (folder / "spiece.model").write_bytes(source.file.model)
        return {"tokenizer_class": "T5Tokenizer"}
    (folder / "source.spm").write_bytes(source.file.model)
    (folder / "target.spm").write_bytes(target.file.model)
    files = {"vocab.json": source.file.vocabulary}
    if target.file.vocabulary != source.file.vocabulary:
        files["target_vocab.json"] = target.file.vocabulary
    for name, pieces in files.items():
        write_json(folder / name, {piece: number for number, piece in enumerate(pieces)})
    return {"tokenizer_class": "MarianTokenizer", "separate_vocabs": len(files) == 2}


def token_names(content: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens of a tokenizer.json by id."""
    vocabulary = tokenizers.Tokenizer.from_buffer(to_bytes(content)).get_vocab(True)
    return {number: name for name, number in vocabulary.items()}


def surround(content: dict[str, Any], ends: Ends) -> dict[str, Any]:
    """Return a tokenizer.json that puts ids around a text."""
    if ends == NO_ENDS or content["post_processor"] is not None:
        return content
    names = token_names(content)
    parts = [("SpecialToken", names[number]) for number in ends.before]
    parts += [("Sequence", "A"), *[("SpecialToken", names[number]) for number in ends.after]]
    tokens = {}
    for number in (*ends.before, *ends.after):
        name = names[number]
        tokens[name] = {"id": name, "ids": [number], "tokens": [name]}
    template = [{kind: {"id": name, "type_id": 0}} for kind, name in parts]
    pair = [*template, {"Sequence": {"id": "B", "type_id": 1}}]
    processor = {"type": "TemplateProcessing", "single": template, "pair": pair}
    return {**content, "post_processor": {**processor, "special_tokens": tokens}}


def join_tokenizers(source: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json that encodes as `source` and decodes as `target`."""
    joined, first = copy.deepcopy(source), 1 + max(token_names(target))
    names = {name: number + first for name, number in source["model"]["vocab"].items()}
    marked = {MARK + name: number for name, number in target["model"]["vocab"].items()}
    joined["model"]["vocab"] = marked | names
    added = [{**token, "content": MARK + token["content"]} for token in target["added_tokens"]]
    added += [{**token, "id": token["id"] + first} for token in source["added_tokens"]]
    joined["added_tokens"] = added
    for special in (joined["post_processor"] or {}).get("special_tokens", {}).values():
        special["ids"] = [number + first for number in special["ids"]]
    unmark = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
    steps = [unmark] if target["decoder"] is None else [unmark, target["decoder"]]
    joined["decoder"] = {"type": "Sequence", "decoders": steps}
    return joined
