"""Tokenizers in folders of Transformers: theirs are kept whole, ours are written in their form.

    tokenizer.json               any tokenizer of the `tokenizers` library
    source.spm, target.spm       Marian: pieces of `sentencepiece`, with their ids in vocab.json
    spiece.model                 T5: pieces and ids of `sentencepiece`
    vocab.json, merges.txt       byte-level BPE of GPT-2 and RoBERTa
    vocab.txt                    WordPiece of BERT

tokenizer_config.json and special_tokens_map.json name the special tokens of texts,
generation_config.json and config.json the ids that start, end and pad outputs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    Ends,
    PretrainedFile,
    PretrainedTokenizer,
    Specials,
    Tokenizer,
    TrainedTokenizer,
)
from regard.errors import UserError
from regard.system.files import read_bytes, read_json

_FILES = ("tokenizer.json", "source.spm", "spiece.model", "vocab.json", "vocab.txt")
_CHOICES = {
    "do_lower_case": ("BertNormalizer", "lowercase", True),
    "strip_accents": ("BertNormalizer", "strip_accents", None),
    "tokenize_chinese_chars": ("BertNormalizer", "handle_chinese_chars", True),
    "add_prefix_space": ("ByteLevel", "add_prefix_space", False),
}
"""Settings of tokenizer_config.json: the part of tokenizer.json, its field, and the default."""
_BERT, _ROBERTA = ("[SEP]", "[CLS]", "[PAD]", "[MASK]"), ("</s>", "<s>", "<pad>", "<mask>")


def read_tokenizers(folder: Path, config: Mapping[str, Any]) -> dict[str, PretrainedTokenizer]:
    """Return the tokenizers of a model, by their file names among the artifacts of a run.

    config: content of its config.json.
    Raises: UserError if there is none, it is damaged, or it has ids beyond the model's embeddings.
    """
    settings, generation = dict[str, Any](), dict(config)
    for name in ("special_tokens_map.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            (generation if name[0] == "g" else settings).update(read_json(folder / name, dict))
    if (folder / "added_tokens.json").exists():
        settings["added_tokens"] = read_json(folder / "added_tokens.json", dict[str, int])
    path = next((folder / name for name in _FILES if (folder / name).exists()), None)
    if path is None:
        raise UserError(f"{folder}: has no tokenizer (one of {', '.join(_FILES)})")
    if path.suffix != ".spm":
        return {"tokenizer.json": _read(path, settings, generation)}
    target = folder / "target_vocab.json"
    target = target if target.exists() else folder / "vocab.json"
    sizes = generation | {"vocab_size": config.get("decoder_vocab_size") or config["vocab_size"]}
    return {
        "source_tokenizer.json": _read(path, settings, generation, folder / "vocab.json"),
        "target_tokenizer.json": _read(folder / "target.spm", settings, sizes, target),
    }


def _read(
    path: Path,
    settings: Mapping[str, Any],
    generation: Mapping[str, Any],
    vocabulary: Path | None = None,
) -> PretrainedTokenizer:
    names, pieces = dict[str, str](), ()
    for key, value in settings.items():
        name = value["content"] if isinstance(value, dict) and "content" in value else value
        if key.endswith("_token") and isinstance(name, str):
            names[key.removesuffix("_token")] = name
    if vocabulary is not None:
        numbers = read_json(vocabulary, dict[str, int])
        pieces = tuple(sorted(numbers, key=numbers.__getitem__))
        if [numbers[piece] for piece in pieces] != [*range(len(pieces))]:
            raise UserError(f"{vocabulary}: the ids must be 0 to {len(pieces) - 1}, each once")
    try:
        if path.suffix in (".spm", ".model"):
            model: Any = read_bytes(path)
            names.setdefault("unk", "<unk>")
        else:
            engine = _open(path, settings, generation["model_type"])
            _check(path, engine, settings, generation["model_type"])
            added = {token.content for token in engine.get_added_tokens_decoder().values()}
            engine.add_special_tokens([name for name in names.values() if name not in added])
            names.setdefault("unk", getattr(engine.model, "unk_token", None) or "<unk>")
            model = json.loads(engine.to_str())
        file = PretrainedFile(1, model, generation["vocab_size"], vocabulary=pieces)
        file.splits_specials = settings.get("split_special_tokens", False)
        opened = PretrainedTokenizer(file)
        numbers = opened.numbers
        file.specials = _specials(names, numbers, generation)
        file.ends = _ends(opened)
        tokenizer = PretrainedTokenizer(file)
    except UserError:
        raise
    except Exception as error:  # the libraries raise no other class
        raise UserError(f"{path}: damaged: {error}") from error
    if max(numbers.values()) >= file.size:
        most = f"{path}: has ids up to {max(numbers.values())}, beyond the embeddings"
        raise UserError(f"{most} of the model (vocab_size {file.size})")
    return tokenizer


def _check(path: Path, engine: Any, settings: Mapping[str, Any], model_type: str) -> None:
    """Raise UserError if other files say something else, which many classes follow."""
    added = settings.get("added_tokens_decoder", {}).items()
    tokens = settings.get("added_tokens", {}) | {token["content"]: int(n) for n, token in added}
    for content, number in tokens.items():
        if engine.token_to_id(content) != number:
            raise UserError(f"{path}: has no token {content!r} of id {number} as other files here")
    default = model_type in ("bert", "distilbert", "gpt2", "roberta")
    kind = settings.get("tokenizer_class") or (model_type if default else "PreTrained")
    model = json.loads(engine.to_str())
    parts = {part["type"]: part for part in (model["normalizer"], model["pre_tokenizer"]) if part}
    for name, (part, field, default) in _CHOICES.items():
        said = settings.get(name, default)
        is_whole = kind.startswith(("PreTrained", "TokenizersBackend"))
        if not is_whole and part in parts and parts[part][field] != said:
            raise UserError(f"{path}: {field} must be {said!r} by {name}, or its default")


def _open(path: Path, settings: Mapping[str, Any], model_type: str) -> tokenizers.Tokenizer:
    if path.name == "tokenizer.json":
        return tokenizers.Tokenizer.from_file(str(path))
    if path.name == "vocab.txt":
        engine = tokenizers.Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
        engine.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            strip_accents=settings.get("strip_accents"),
            lowercase=settings.get("do_lower_case", True),
        )
        engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        engine.decoder, names = decoders.WordPiece(), _BERT
    elif model_type in ("gpt2", "roberta"):
        model = models.BPE.from_file(str(path), str(path.with_name("merges.txt")))
        engine, space = tokenizers.Tokenizer(model), settings.get("add_prefix_space", False)
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        engine.decoder, names = decoders.ByteLevel(), _ROBERTA if model_type == "roberta" else ()
    else:
        raise UserError(
            f"{path.parent}: has no tokenizer.json, which a model of type {model_type} needs"
        )
    if names:
        engine.add_special_tokens([*names, "[UNK]" if names is _BERT else "<unk>"])
        numbers = engine.get_vocab()
        sep, cls = ((name, numbers[name]) for name in names[:2])
        engine.post_processor = processors.BertProcessing(sep, cls)
    else:
        engine.add_special_tokens(["<|endoftext|>"])
    return engine


def _specials(
    names: Mapping[str, str], numbers: Mapping[str, int], generation: Mapping[str, Any]
) -> Specials:
    ids = {name: numbers.get(names.get(name, "")) for name in ("pad", "unk", "bos", "eos")}
    for name in ("pad", "bos", "eos", "decoder_start"):
        given = generation.get(f"{name}_token_id")
        if isinstance(given, list):  # an output ends at the first of them
            given = ids[name] if ids[name] in given else given[0]
        ids[name] = ids.get(name) if given in (None, -1) else given
        if ids[name] is not None and ids[name] not in range(generation["vocab_size"]):
            raise UserError(f"{name}_token_id must be an id below vocab_size, got {ids[name]!r}")
    start = ids.pop("decoder_start")
    if generation.get("is_encoder_decoder") and None in (start, ids["eos"], ids["pad"]):
        needed = "decoder_start_token_id, eos_token_id and pad_token_id"
        raise UserError(f"config.json: an encoder-decoder needs {needed}")
    return Specials(**ids, start=ids["bos"] if start is None else start)


def _ends(tokenizer: PretrainedTokenizer) -> Ends:
    """Return the ids around a text."""
    eos = tokenizer.file.specials.eos
    if isinstance(tokenizer.file.model, bytes):
        return Ends(after=() if eos is None else (eos,))
    encoding = tokenizer.model.encode("a")
    ids, mask = tuple(encoding.ids), encoding.special_tokens_mask
    return Ends(ids[: mask.index(0)], ids[len(mask) - mask[::-1].index(0) :])


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer as content of tokenizer.json. One that is trained here puts nothing around
    a text; texts need split_special_tokens, and unk is no special token, as decoding shows it."""
    if isinstance(tokenizer, PretrainedTokenizer):
        if isinstance(tokenizer.file.model, bytes):
            raise UserError("a tokenizer of sentencepiece has no tokenizer.json")
        return tokenizer.file.model
    assert isinstance(tokenizer, TrainedTokenizer)
    engine = tokenizers.Tokenizer.from_str(tokenizer.engine.to_str())
    engine.normalizer = tokenizer.normalizer
    engine.add_special_tokens([tokenizer.pieces[number] for number in (PAD, BOS, EOS)])
    return json.loads(engine.to_str())
