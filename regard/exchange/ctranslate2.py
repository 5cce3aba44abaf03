"""Export of a text model for CTranslate2, a decoder in C++, with its tokenizers.

    model.bin, config.json, *vocabulary.json    the folder that Translator or Generator opens
    source_tokenizer.json                       encodes inputs
    tokenizer.json                              decodes outputs; encodes inputs, too, if it is alone
    source.spm, target.spm, spiece.model        models of sentencepiece of an imported run

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
from regard.exchange.tokens import (
    is_sentencepiece,
    surround,
    text_layout,
    token_names,
    write_sentencepiece,
)

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
    files = dict[str, Any]()
    if is_sentencepiece(layout.source):
        tokens: Any = layout.source.labels, layout.target.labels
    else:
        source = surround(tokenizer_json(layout.source), layout.ends)
        target = tokenizer_json(layout.target)
        tokens = _names(source, len(layout.source)), _names(target, len(layout.target))
        files["tokenizer.json"] = target
        if layout.source is layout.target:
            files["tokenizer.json"] = source
        else:
            files["source_tokenizer.json"] = source
    vocabularies = Vocabularies(
        source=tokens[0],
        target=tokens[1],
        specials=_specials(layout.target.specials, tokens[1]),
        banned=layout.banned,
    )
    try:
        convert(
            model,
            folder,
            num_positions=layout.num_positions,
            vocabularies=vocabularies,
            compute_type=options.compute_type or "float32",
        )
    except UnsupportedModelError as error:
        reason = f"CTranslate2 cannot express this run: {error}"
        raise UserError(f"{reason}; choose --to onnx") from error
    for name, content in files.items():
        write_json(folder / name, content)
    if not files:
        write_sentencepiece(folder, layout.source, layout.target)
    write_card(trained, folder, "CTranslate2", license_name=options.license)


def _names(content: Mapping[str, Any], size: int) -> list[str]:
    """Return the token of each id; rows of a model beyond the tokenizer have a name, too."""
    names = token_names(content)
    return [names.get(number, f"<extra {number}>") for number in range(size)]


def _specials(specials: Specials, names: list[str]) -> dict[str, str]:
    """Return the special tokens by the names of CTranslate2, those that the tokenizer has."""
    numbers = {name: getattr(specials, special) for name, special in _SPECIALS.items()}
    return {name: names[number] for name, number in numbers.items() if number is not None}
