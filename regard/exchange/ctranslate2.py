"""Export of a text model for CTranslate2, a decoder in C++, with its tokenizers.

    model.bin, config.json, *vocabulary.json    the folder that Translator or Generator opens
    source_tokenizer.json                       encodes inputs
    tokenizer.json                              decodes outputs; encodes inputs, too, if it is alone

A bias of the logits excludes the tokens that `predict` never generates.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regard.data.tokenizer import Specials
from regard.engines.ctranslate2 import Vocabularies, convert
from regard.engines.lowering import UnsupportedModelError
from regard.errors import UserError
from regard.exchange.card import write_card
from regard.exchange.files import write_json
from regard.exchange.pieces import tokenizer_json
from regard.exchange.tokens import surround, text_layout, token_names

_SPECIALS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unk",
    "decoder_start_token": "start",
}


def export(trained: Any, folder: Path, options: Any, notify: Callable[[str], None]) -> None:
    """Write a trained run to a new folder. Raises: UserError if CTranslate2 cannot express it."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise UserError("--to ctranslate2 needs its package: pip install ctranslate2")
    layout, model = text_layout(trained), trained.model
    if layout is None or getattr(model.writer, "part", "") != "decoder":
        kind = trained.run.recipe
        raise UserError(f"CTranslate2 has no model for runs of {kind}; choose --to onnx")
    source = surround(tokenizer_json(layout.source), layout.ends)
    target, is_joint = tokenizer_json(layout.target), layout.source is layout.target
    size = len(layout.target)
    names = _names(target, size)
    vocabularies = Vocabularies(
        source=_names(source, len(layout.source)),
        target=names,
        specials=_specials(layout.target.specials, names),
        banned=layout.banned,
    )
    try:
        convert(
            model,
            folder,
            num_positions=layout.num_positions,
            vocabularies=vocabularies,
            compute_type=options.compute_type,
        )
    except UnsupportedModelError as error:
        reason = f"CTranslate2 cannot express this run: {error}"
        raise UserError(f"{reason}; choose --to onnx") from error
    if is_joint:
        write_json(folder / "tokenizer.json", source)
    else:
        write_json(folder / "source_tokenizer.json", source)
        write_json(folder / "tokenizer.json", target)
    write_card(trained, folder, "CTranslate2", license_name=options.license)


def _names(content: Mapping[str, Any], size: int) -> list[str]:
    """Return the token of each id; rows of a model beyond the tokenizer have a name, too."""
    names = token_names(content)
    return [names.get(number, f"<extra {number}>") for number in range(size)]


def _specials(specials: Specials, names: list[str]) -> dict[str, str]:
    """Return the special tokens by the names of CTranslate2, those that the tokenizer has."""
    numbers = {name: getattr(specials, special) for name, special in _SPECIALS.items()}
    return {name: names[number] for name, number in numbers.items() if number is not None}
