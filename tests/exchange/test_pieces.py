"""Tokenizers that are read and written give the ids and the texts of Transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from regard.data.config import TokenizerConfig
from regard.data.tokenizer import (
    Ends,
    Specials,
    TrainedTokenizer,
    load_tokenizer,
)
from regard.errors import UserError
from regard.exchange.pieces import read_tokenizers, tokenizer_json
from tests.exchange.odd_texts import odd_texts

transformers = pytest.importorskip("transformers")
LEARNED = odd_texts(400, seed=7)
"""Texts from which tokenizers are trained: others hold characters that they do not know."""


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest) -> list[str]:
    return odd_texts(10_000 if request.config.getoption("--slow") else 400)


def fast(folder: Path) -> Any:
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def check_equal(own: Any, theirs: Any, texts: list[str], **options: Any) -> None:
    """Compare ids, those around a text included, and decoded texts."""
    for text in texts:
        ids = own.encode(text)
        expected = theirs(text, **options).input_ids
        assert [*own.text_ends.before, *ids, *own.text_ends.after] == expected, repr(text)
        assert own.decode(expected) == theirs.decode(expected, skip_special_tokens=True), repr(text)


@pytest.mark.parametrize("keeps_space", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("normalize", ["nfc", "nfkc", "none"])
def test_tokenizers_trained_here_are_written(
    kind: Any, keeps_space: bool, normalize: Any, texts: list[str], tmp_path: Path
) -> None:
    config = TokenizerConfig(
        kind=kind, vocab_size=500, normalize=normalize, lowercase=normalize == "nfkc"
    )
    own = TrainedTokenizer.train(LEARNED, config, keeps_space=keeps_space)
    content = tokenizer_json(own)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    names = tokenizers.Tokenizer.from_str(json.dumps(content)).id_to_token
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": names(own.specials.pad),
        "bos_token": names(own.specials.bos),
        "eos_token": names(own.specials.eos),
        "split_special_tokens": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    theirs = fast(tmp_path)
    assert len(theirs) == len(own)
    check_equal(own, theirs, texts)


def test_names_of_special_tokens_are_words_of_a_text() -> None:
    own = TrainedTokenizer.train(["a man"], TokenizerConfig(kind="word"))
    engine = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(own)))
    engine.encode_special_tokens = True
    assert engine.encode("a </s> <unk>").ids == own.encode("a </s> <unk>") == [4, 1, 1]


def trained_fast(kind: str) -> Any:
    """Return a tokenizer of Transformers of the form of BERT, GPT-2, T5 or Llama."""
    specials = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    before, after = "", " </s>:1"
    engine: Any
    trainer: Any = trainers.BpeTrainer
    options: dict[str, Any] = {}
    if kind == "wordpiece":
        engine = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        engine.normalizer = normalizers.BertNormalizer(lowercase=True)
        engine.pre_tokenizer, engine.decoder = (
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
        )
        trainer = trainers.WordPieceTrainer
        specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
        specials |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
        before, after = "[CLS]:1 ", " [SEP]:1"
    elif kind == "bytes":
        engine = tokenizers.Tokenizer(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = decoders.ByteLevel()
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
        specials = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
        after = ""
    elif kind == "unigram":
        engine = tokenizers.Tokenizer(models.Unigram())
        engine.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer, options["unk_token"] = trainers.UnigramTrainer, "<unk>"
    else:
        engine = tokenizers.Tokenizer(
            models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
        engine.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        engine.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
        options["special_tokens"] = ["<pad>", "<unk>", "<s>", "</s>"]
        options["special_tokens"] += [f"<0x{byte:02X}>" for byte in range(256)]
        before, after = "<s>:1 ", ""
    options.setdefault("special_tokens", list(dict.fromkeys(specials.values())))
    options |= {"vocab_size": 700, "show_progress": False}
    engine.train_from_iterator(LEARNED, trainer(**options))
    if before or after:
        ends = [token.split(":")[0] for token in (before.strip(), after.strip()) if token]
        engine.post_processor = processors.TemplateProcessing(
            single=f"{before}$A:0{after}", special_tokens=[(n, engine.token_to_id(n)) for n in ends]
        )
    if kind == "llama":  # bytes are pieces, but no special tokens
        content = json.loads(engine.to_str())
        content["added_tokens"] = [t for t in content["added_tokens"] if "0x" not in t["content"]]
        engine = tokenizers.Tokenizer.from_str(json.dumps(content))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **specials)


KINDS = ["wordpiece", "bytes", "unigram", "llama"]


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_json_is_kept_whole(
    kind: str, splits: bool, texts: list[str], tmp_path: Path
) -> None:
    given = trained_fast(kind)
    given.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = tokenizers.Tokenizer.from_file(str(path))
    content.enable_truncation(3)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    content.enable_padding(length=20, pad_token=settings["unk_token"])
    content.save(str(path))
    settings["split_special_tokens"] = splits
    settings["mask_token"] = settings.get("mask_token", "man")  # not in the other files
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (read,) = read_tokenizers(tmp_path, {"vocab_size": 900, "model_type": "any"}).values()
    read.save(tmp_path / "saved.json")
    own = load_tokenizer(tmp_path / "saved.json")
    assert (len(own), own.config.kind) == (900, "pretrained")
    check_equal(own, fast(tmp_path), [*texts, "the man Quick"])
    kept, whole = tokenizer_json(own), json.loads(path.read_text("utf-8"))
    assert kept.pop("added_tokens")[: len(whole["added_tokens"])] == whole.pop("added_tokens")
    assert kept == whole
    assert own.labels[899] == "<extra 899>"
    for text in texts[:200]:
        assert own.tokens(own.encode(text)) == [own.labels[number] for number in own.encode(text)]
        assert len(own.tokens(text, own.text_ends)) == len(own.encode(text)) + len(own.text_ends)


def test_special_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    config = {"vocab_size": 700, "model_type": "t5", "decoder_start_token_id": 1}
    given = trained_fast("unigram")
    given.save_pretrained(tmp_path)
    numbers = given.get_vocab()
    (own,) = read_tokenizers(tmp_path, config).values()
    specials = Specials(
        pad=numbers["<pad>"], unk=numbers["<unk>"], bos=numbers["<s>"], eos=numbers["</s>"], start=1
    )
    assert own.specials == specials
    assert own.source_ends == Ends(after=(specials.eos or 0,))
    assert own.target_ends == Ends((1,), (specials.eos or 0,))
    generation = {"eos_token_id": [9, 8], "pad_token_id": 5, "decoder_start_token_id": 6}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    (own,) = read_tokenizers(tmp_path, config).values()
    assert (own.specials.eos, own.specials.pad, own.specials.start) == (9, 5, 6)
    bert = tmp_path / "bert"
    trained_fast("wordpiece").save_pretrained(bert)
    (own,) = read_tokenizers(bert, {"vocab_size": 700, "model_type": "bert"}).values()
    assert (own.specials.bos, own.specials.eos, own.specials.start) == (None, None, None)
    assert own.tokens("the", own.text_ends)[:: len(own.text_ends)] == ["[CLS]", "[SEP]"]
    with pytest.raises(UserError, match="an encoder-decoder needs decoder_start_token_id"):
        read_tokenizers(bert, {"vocab_size": 700, "model_type": "t5", "is_encoder_decoder": True})


def test_parts_of_a_character_have_labels(tmp_path: Path) -> None:
    trained_fast("bytes").save_pretrained(tmp_path)
    (own,) = read_tokenizers(tmp_path, {"vocab_size": 700, "model_type": "gpt2"}).values()
    assert own.tokens(" the \U00012345") == ["\u2581the", "\u2581", "<F0>", "<92>", "<8D>", "<85>"]
    assert own.unknown("\U00012345") == ()


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_vocabulary_and_merges_are_read(kind: str, texts: list[str], tmp_path: Path) -> None:
    engine = trained_fast("bytes").backend_tokenizer
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "roberta" else ["<|endoftext|>"]
    model = json.loads(engine.to_str())["model"]
    pieces = [*names, *[piece for piece in model["vocab"] if piece != "<|endoftext|>"]]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in model["merges"]]
    models.BPE(vocab=vocabulary, merges=merges).save(str(tmp_path))
    classes = {"gpt2": transformers.GPT2Tokenizer, "roberta": transformers.RobertaTokenizer}
    config = {"vocab_size": 800, "model_type": kind}
    (own,) = read_tokenizers(tmp_path, config).values()
    theirs = classes[kind](vocab=vocabulary, merges=merges)
    check_equal(own, theirs, [text for text in texts if "<" not in text])


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_word_piece_vocabulary_is_read(lowercase: bool, texts: list[str], tmp_path: Path) -> None:
    given = trained_fast("wordpiece").get_vocab()
    (tmp_path / "vocab.txt").write_text(
        "".join(piece + "\n" for piece in sorted(given, key=given.__getitem__)), encoding="utf-8"
    )
    settings = {"do_lower_case": lowercase}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (own,) = read_tokenizers(tmp_path, {"vocab_size": 700, "model_type": "bert"}).values()
    theirs = transformers.BertTokenizer(vocab=given, do_lower_case=lowercase)
    check_equal(own, theirs, texts)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models of sentencepiece, of Marian's vocabulary and of T5's ids."""
    library = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentences")
    lines = [line for line in odd_texts(3000, seed=7) if "\n" not in line and "\x00" not in line]
    for name, kind in (("source.spm", "unigram"), ("target.spm", "bpe")):
        with (folder / name).open("wb") as file:
            library.SentencePieceTrainer.train(
                sentence_iterator=iter(lines if kind == "bpe" else lines[:2000]),
                model_writer=file,
                model_type=kind,
                vocab_size=400,
                character_coverage=0.98,
                minloglevel=2,
                hard_vocab_limit=False,
            )
    pieces = {"</s>": 0, "<unk>": 1}
    for name in ("source.spm", "target.spm"):
        model = library.SentencePieceProcessor(model_file=str(folder / name))
        for number in range(3, len(model) - 20):  # some pieces are not in the vocabulary
            pieces.setdefault(model.id_to_piece(number), len(pieces))
    pieces |= {">>nl<<": len(pieces), "<pad>": len(pieces) + 1}
    (folder / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")
    return folder


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_is_read(sentences: Path, texts: list[str], tmp_path: Path) -> None:
    numbers = json.loads((sentences / "vocab.json").read_text("utf-8"))
    config = {
        "vocab_size": len(numbers),
        "model_type": "marian",
        "is_encoder_decoder": True,
        "decoder_start_token_id": numbers["<pad>"],
        "eos_token_id": 0,
        "pad_token_id": numbers["<pad>"],
    }
    files = [str(sentences / name) for name in ("source.spm", "target.spm", "vocab.json")]
    theirs = transformers.MarianTokenizer(*files)
    read = read_tokenizers(sentences, config)
    plain = odd_texts(len(texts), without=("<s>", "</s>", "<pad>", "<unk>"))
    for side, name in (("text", "source"), ("text_target", "target")):
        read[f"{name}_tokenizer.json"].save(tmp_path / "saved.json")
        own = load_tokenizer(tmp_path / "saved.json")
        assert own.specials.start == own.specials.pad == numbers["<pad>"]
        for text in plain:
            ids, expected = own.encode(text), theirs(**{side: text}).input_ids
            assert [*ids, *own.source_ends.after] == expected, repr(text)
            assert own.decode(ids) == theirs.decode(ids, skip_special_tokens=True), repr(text)
    damaged = tmp_path / "damaged"
    shutil.copytree(sentences, damaged)
    (damaged / "vocab.json").write_text('{"</s>": 0, "<unk>": 2}', encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab\.json: the ids must be 0 to 1, each once"):
        read_tokenizers(damaged, config)
    source = read["source_tokenizer.json"]
    for text in (">>nl<< the", ">>nl<<the", "the >>nl<<", ">>odd<< the", ">><", ">><<"):
        assert source.encode(text) == theirs(text).input_ids[:-1]


@pytest.mark.peers
def test_a_model_of_sentencepiece_is_read(
    sentences: Path, texts: list[str], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentencepiece")
    (tmp_path / "spiece.model").write_bytes((sentences / "source.spm").read_bytes())
    config = {"vocab_size": 900, "model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 2}
    (own,) = read_tokenizers(tmp_path, config | {"pad_token_id": 0}).values()
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert (own.specials.unk, own.source_ends) == (theirs.unk_id(), Ends(after=(2,)))
    for text in texts:
        ids = theirs.encode(text, out_type=int)
        assert own.encode(text) == ids
        assert len(own.tokens(text)) == len(ids)
        known = [number for number in ids if number != theirs.unk_id()]
        assert own.decode(known) == theirs.decode(known).strip()
    with pytest.raises(UserError, match=r"tokenizer of sentencepiece has no tokenizer\.json"):
        tokenizer_json(own)
    (tmp_path / "spiece.model").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"spiece\.model: damaged"):
        read_tokenizers(tmp_path, config)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("wordpiece", {"do_lower_case": False}, "lowercase must be False by do_lower_case, or"),
        ("wordpiece", {"strip_accents": False}, "strip_accents must be False by strip_accents"),
        ("wordpiece", {"tokenize_chinese_chars": False}, "handle_chinese_chars must be False"),
        ("bytes", {"add_prefix_space": True}, "add_prefix_space must be True by add_prefix_space"),
    ],
)
def test_tokenizer_json_and_its_settings_must_agree(
    kind: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"vocab_size": 700, "model_type": {"wordpiece": "bert", "bytes": "gpt2"}[kind]}
    trained_fast(kind).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    for name in (None, "BertTokenizer", "GPT2TokenizerFast"):
        path.write_text(json.dumps(settings | {"tokenizer_class": name}), encoding="utf-8")
        with pytest.raises(UserError, match=f"tokenizer.json: {message}"):
            read_tokenizers(tmp_path, config)
    path.write_text("{}", encoding="utf-8")
    read_tokenizers(tmp_path, config)
    path.write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    read_tokenizers(tmp_path, config)


def test_default_of_a_setting_must_agree(tmp_path: Path) -> None:
    config = {"vocab_size": 700, "model_type": "bert"}
    given = trained_fast("wordpiece")
    given.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    given.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"lowercase must be True by .* or its default"):
        read_tokenizers(tmp_path, config)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    read_tokenizers(tmp_path, config)


def test_added_tokens_must_be_in_the_tokenizer(tmp_path: Path) -> None:
    given = trained_fast("wordpiece")
    pieces, config = given.get_vocab(), {"vocab_size": 700, "model_type": "bert"}
    lines = "".join(piece + "\n" for piece in sorted(pieces, key=pieces.__getitem__))
    (tmp_path / "vocab.txt").write_text(lines, encoding="utf-8")
    added, settings = tmp_path / "added_tokens.json", tmp_path / "tokenizer_config.json"
    added.write_text(json.dumps({"[MASK]": pieces["[MASK]"]}), encoding="utf-8")
    read_tokenizers(tmp_path, config)
    added.write_text('{"<new>": 690}', encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab.txt: has no token '<new>' of id 690"):
        read_tokenizers(tmp_path, config)
    added.unlink()
    settings.write_text('{"added_tokens_decoder": {"690": {"content": "<new>"}}}')
    with pytest.raises(UserError, match=r"vocab.txt: has no token '<new>' of id 690"):
        read_tokenizers(tmp_path, config)


@pytest.mark.parametrize("number", [700, -2, "x", 1.5])
def test_special_tokens_must_be_ids(number: Any, tmp_path: Path) -> None:
    trained_fast("bytes").save_pretrained(tmp_path)
    config = {"vocab_size": 700, "model_type": "llama", "pad_token_id": -1}
    (own,) = read_tokenizers(tmp_path, config).values()
    assert own.specials.pad is None
    with pytest.raises(UserError, match="eos_token_id must be an id below vocab_size, got"):
        read_tokenizers(tmp_path, config | {"eos_token_id": number})


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    config = {"vocab_size": 700, "model_type": "qwen2"}
    with pytest.raises(UserError, match=r"has no tokenizer \(one of tokenizer.json"):
        read_tokenizers(tmp_path, config)
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"has no tokenizer\.json, which a model of type qwen2"):
        read_tokenizers(tmp_path, config)
    path = tmp_path / "tokenizer.json"
    trained_fast("unigram").save_pretrained(tmp_path)
    whole = path.read_text("utf-8")
    for content in (whole[:-50], "{}", whole.replace('"Unigram"', '"Bigram"'), "\x00"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=r"tokenizer\.json: damaged: "):
            read_tokenizers(tmp_path, config)
    path.write_text(whole, encoding="utf-8")
    size = len(fast(tmp_path))
    message = rf"has ids up to {size - 1}, beyond .*vocab_size {size - 1}\)"
    with pytest.raises(UserError, match=message):
        read_tokenizers(tmp_path, {**config, "vocab_size": size - 1})
    (own,) = read_tokenizers(tmp_path, {**config, "vocab_size": size}).values()
    assert len(own) == size
    with pytest.raises(UserError, match="needs an imported run, given as --init"):
        TrainedTokenizer.train(["a"], TokenizerConfig(kind="pretrained"))
