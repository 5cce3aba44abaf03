"""Decoding inverts encoding, unknown parts are recognized, and damaged files refused."""

import itertools
import json
import os
import unicodedata
from typing import Any, Literal

import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from regard.data.config import PairTokenizerConfig, TextTokenizerConfig, TokenizerConfig
from regard.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    PretrainedFile,
    PretrainedTokenizer,
    Tokenizer,
    TrainedTokenizer,
    load_tokenizer,
    train_tokenizers,
)
from regard.errors import UserError

RAW = [
    "A man, 25, in a 'green' hat.",
    "Two men stand on a mountain!",
    "The man in the hat: a mountain-man.",
]
TOKENIZED = [
    "a man , 25 , in a &apos; green &apos; hat .",
    "two men stand on a mountain !",
    "the man &apos;s hat",
]
KINDS = ["bpe", "word", "char"]
LETTERS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
TEXTS = st.lists(st.lists(LETTERS, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=5)


def train(kind: Literal["bpe", "word", "char"], texts: list[str], **options) -> Tokenizer:
    return TrainedTokenizer.train(texts, TokenizerConfig(kind=kind, **options))


@pytest.mark.parametrize("kind", KINDS)
@given(texts=TEXTS)
def test_decode_inverts_encode(kind, texts):
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    assume(all(text == " ".join(text.split()) for text in texts))
    tokenizer = train(kind, texts)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts
    assert not any(tokenizer.unknown(text) for text in texts)


def test_words_are_split_at_punctuation_if_asked(tmp_path):
    config = TextTokenizerConfig(kind="word", lowercase=True, split_punctuation=True)
    tokenizer = TrainedTokenizer.train(["Paris, (in) France."], config)
    tokenizer.save(tmp_path / "a.json")
    for one in (tokenizer, load_tokenizer(tmp_path / "a.json")):
        assert one.segment('in "Paris".') == ["in", '"', "paris", '"', "."]
        assert one.unknown("Paris? in:") == ("?", ":")
    assert tokenizer.engine.encode("in (paris)").ids == tokenizer.encode("in (paris)")
    plain = TrainedTokenizer.train(["Paris, (in) France."], TokenizerConfig(kind="word"))
    plain.save(tmp_path / "b.json")  # as files of earlier runs
    assert load_tokenizer(tmp_path / "b.json").segment("Paris, in") == ["Paris,", "in"]


def make_bytes_tokenizer(kind: str) -> Tokenizer:
    """Return a tokenizer whose unknown characters are bytes, each a token: as of GPT-2 or Llama."""
    pieces = [chr(letter) for letter in range(ord("a"), ord("z") + 1)] + ["\u2581"]
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    decoder: Any = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    if kind == "bytes":
        pieces, decoder = sorted(pre_tokenizers.ByteLevel.alphabet()), decoders.ByteLevel()
    else:
        pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    engine = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=kind != "bytes"))
    engine.decoder = decoder
    if kind == "bytes":
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PretrainedTokenizer(PretrainedFile(1, json.loads(engine.to_str()), len(pieces)))


PREFIXES = {
    f"{kind}, keeps_space={keeps}": TrainedTokenizer.train(
        [*RAW, "a  b \n c"], TokenizerConfig(kind=kind), keeps_space=keeps
    )
    for kind in KINDS
    for keeps in (False, True)
} | {kind: make_bytes_tokenizer(kind) for kind in ("bytes", "byte fallback")}


@pytest.mark.parametrize("tokenizer", PREFIXES.values(), ids=PREFIXES)
@given(data=st.data())
def test_the_text_of_a_prefix_is_a_prefix_of_the_text(tokenizer, data):
    """Of any ids, and of those of a text with characters of several bytes."""
    any_ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=9)
    texts = st.text("ab \u00e9\u20ac\U0001f600\n", max_size=5)
    ids = data.draw(any_ids) + tokenizer.encode(data.draw(texts)) + data.draw(any_ids)
    parts = [tokenizer.decode_prefix(ids[:count]) for count in range(len(ids) + 1)]
    parts.append(tokenizer.decode(ids))
    assert all(later.startswith(part) for part, later in itertools.pairwise(parts))


@pytest.mark.parametrize("name", PREFIXES)
def test_only_parts_of_characters_are_missing_in_the_text_of_a_prefix(name):
    tokenizer = PREFIXES[name]
    ids = tokenizer.encode("a man")
    assert tokenizer.decode_prefix(ids) == tokenizer.decode(ids)
    if name in ("bytes", "byte fallback"):
        ids = tokenizer.encode("a\u20aca")
        assert len(ids) == 5
        parts = [tokenizer.decode_prefix(ids[:count]) for count in range(1, 6)]
        held = "a" if name == "byte fallback" else "a\u20ac"
        assert parts == ["a", "a", "a", held, "a\u20aca"]


@pytest.mark.parametrize("texts", [RAW, TOKENIZED], ids=["raw", "tokenized"])
@pytest.mark.parametrize("vocab_size", [50, 60, 300])
def test_bpe_decodes_new_text_of_known_characters(texts, vocab_size):
    tokenizer = train("bpe", texts, vocab_size=vocab_size)
    for text in ("man, in a mountain hat, on 552 hats ! .", "an &apos; t ,a , n"):
        if {*text} <= {*"".join(texts)}:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bpe_distinguishes_spaced_and_attached_punctuation():
    tokenizer = train("bpe", ["a man , a man, a man , a man,"], vocab_size=300)
    assert tokenizer.tokens("man , man,") == ["\u2581man", "\u2581,", "\u2581man", ","]


def test_bpe_keeps_words_digits_signs_and_escapes_apart():
    texts = ["it&apos;s 1999!! &quot; fun-time"] * 5
    tokens = train("bpe", texts, vocab_size=300).tokens(texts[0])
    pieces = ["it", "&apos;", "s", " 1", "9", "9", "9", "!!", " &quot;", " fun", "-", "time"]
    assert tokens == ["\u2581it", *(piece.replace(" ", "\u2581") for piece in pieces[1:])]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_white_space_counts_as_one_space(kind):
    tokenizer = train(kind, ["a man in a hat"])
    assert tokenizer.encode(" a \t man\u00a0in\n a  hat ") == tokenizer.encode("a man in a hat")


def test_char_keeps_every_space():
    tokenizer = train("char", [" a  b\n"])
    assert tokenizer.decode(tokenizer.encode("  b\na ")) == "  b\na "
    assert tokenizer.tokens("a b") == ["a", "\u2581", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_train_twice_gives_the_same_vocabulary(kind, tmp_path):
    texts = [*RAW, *TOKENIZED, *map("".join, itertools.product("abcdefgh", "ij ", "klmn"))]
    for name in ("first", "second"):
        train(kind, texts, vocab_size=90).save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [5, 11, 37, 5000])
def test_vocabulary_is_never_larger_than_requested(kind, vocab_size):
    tokenizer = train(kind, RAW, vocab_size=vocab_size)
    assert len(tokenizer) <= vocab_size
    assert len(tokenizer) == vocab_size or vocab_size > 20
    assert all(max(ids) < len(tokenizer) for ids in tokenizer.encode_batch(RAW))


def test_min_count_makes_rare_words_and_characters_unknown():
    tokenizer = train("word", ["a man a dog", "a man"], min_count=2)
    assert tokenizer.unknown("a dog a man a dog") == ("dog",)
    assert tokenizer.decode(tokenizer.encode("a dog man")) == "a <unk> man"
    assert train("bpe", ["aab abq"], min_count=2).unknown("qabzq") == ("q", "z")
    assert train("char", ["aab abq"], min_count=2).unknown("qabzq") == ("q", "z")


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("word", ("\u4e2d\u6587,",)), ("char", ("\u4e2d", "\u6587")), ("bpe", ("\u4e2d", "\u6587"))],
)
def test_unknown_returns_each_unknown_part_once(kind, unknown):
    tokenizer = train(kind, [*RAW, "a a , ,"])
    assert tokenizer.unknown("a \u4e2d\u6587, a \u4e2d\u6587,") == unknown
    assert tokenizer.encode("a \u4e2d\u6587, a").count(UNK) == len(unknown)
    assert tokenizer.unknown("a man") == ()


def test_tokens_show_unknown_parts_only_for_a_text():
    tokenizer = train("bpe", RAW, vocab_size=200)
    labels = tokenizer.tokens("a man \u4e2d")
    assert labels[-1] == "<unk:\u4e2d>"
    ids = [BOS, *tokenizer.encode("a man \u4e2d"), EOS]
    assert tokenizer.tokens(ids) == ["<s>", *labels[:-1], "<unk>", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_never_made_from_text(kind):
    texts: list[str] = [" ".join([*SPECIALS, "<pad>", "</s> "])] * 5
    tokenizer = train(kind, texts)
    assert not {PAD, UNK, BOS, EOS} & {*tokenizer.encode(texts[0])}
    assert train(kind, RAW).decode([BOS, PAD, EOS, PAD]) == ""


def test_every_text_is_lowercased_and_normalized():
    tokenizer = train("bpe", RAW, lowercase=True, normalize="nfkc")
    assert tokenizer.encode("A \uff4d\uff41\uff4e") == tokenizer.encode("a man")
    composed = train("char", ["caf\u00e9"])
    assert composed.encode("cafe\u0301") == composed.encode("caf\u00e9")
    assert train("char", ["caf\u00e9"], normalize="none").unknown("cafe\u0301") == ("e", "\u0301")


def test_joint_is_one_tokenizer_otherwise_there_are_two():
    joint = train_tokenizers(["ab"], ["cd"], PairTokenizerConfig(kind="char", joint=True))
    apart = train_tokenizers(["ab"], ["cd"], PairTokenizerConfig(kind="char", joint=False))
    assert joint[0] is joint[1]
    assert joint[0].unknown("abcd") == ()
    assert (apart[0].unknown("abcd"), apart[1].unknown("abcd")) == (("c", "d"), ("a", "b"))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_without_tokens(kind):
    tokenizer = train(kind, RAW)
    assert (tokenizer.encode(""), tokenizer.decode([]), tokenizer.tokens("")) == ([], "", [])
    for texts in ([], ["", ""]):
        with pytest.raises(UserError, match="no token occurs at least 1 times"):
            train(kind, texts)


def test_bpe_learns_and_decodes_a_very_long_word():
    texts: list[str] = ["ab" * 5000 + "!" * 999]
    tokenizer = train("bpe", texts, vocab_size=300)
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]


def test_lone_surrogates_and_ids_outside_the_vocabulary_are_refused():
    tokenizer = train("char", ["abcde"])
    with pytest.raises(UserError, match="not valid Unicode"):
        tokenizer.encode("a \ud83d")
    for number in (-1, 9):
        with pytest.raises(ValueError, match=f"from 0 to 8, got {number}"):
            tokenizer.decode([4, number])


def test_train_does_not_change_the_environment(monkeypatch):
    for value in (None, "true"):
        if value:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", value)
        else:
            monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        train("bpe", RAW)
        assert os.environ.get("TOKENIZERS_PARALLELISM") == value


@pytest.mark.parametrize("kind", KINDS)
def test_load_restores_what_was_saved(kind, tmp_path):
    tokenizer = train(kind, [*RAW, *TOKENIZED], vocab_size=70, lowercase=True)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert (loaded.config, len(loaded)) == (tokenizer.config, len(tokenizer))
    assert loaded.encode_batch(RAW) == tokenizer.encode_batch(RAW)


@pytest.mark.parametrize(
    ("kind", "pieces", "merges", "ids"),
    [
        ("word", ["a", "</s>", "b"], [], [4, 6, 5, 4, 1]),
        ("char", [" ", "/", "<", "a", "b", "s"], [], [7, 4, 8, 4, 6, 5, 9, 1, 4, 7, 4, 1]),
        ("bpe", [" ", "a", "b", " a", "s"], [(" ", "a")], [7, 4, 6, 4, 1, 1, 8, 1, 7, 4, 1]),
    ],
)
def test_files_of_old_runs_keep_their_ids_and_bytes(kind, pieces, merges, ids, tmp_path):
    config = {"kind": kind, "vocab_size": 9, "lowercase": False, "normalize": "nfc", "min_count": 1}
    content = {"format": "regard-tokenizer", "version": 1, "config": config, "pieces": pieces}
    content |= {"merges": merges, "keeps_space": False}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("a b </s> a z") == ids
    shown = {"bpe": "a b <unk><unk>s<unk> a <unk>", "char": "a b </s<unk> a <unk>"}
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == shown.get(kind, "a b </s> a <unk>")
    tokenizer.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "change", [{"format": "x"}, {"version": 2}, {"config": {"vocab_size": 4}}, {"pieces": [1]}]
)
def test_load_rejects_a_damaged_file(change, tmp_path):
    path = tmp_path / "tokenizer.json"
    train("bpe", RAW, vocab_size=70).save(path)
    content = json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change})
    for damaged in (content, content[:-9]):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match=r"tokenizer\.json: damaged"):
            load_tokenizer(path)


@pytest.mark.parametrize(
    ("encoding", "message"), [("utf-8", r"not allowed\)\.$"), ("ascii", "set PYTHONUTF8=1")]
)
def test_bytes_that_are_not_text_are_refused(monkeypatch, encoding, message):
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: encoding)
    with pytest.raises(UserError, match=rf"not valid Unicode: 'caf\\udcc3.*{message}"):
        TrainedTokenizer.train(["caf\udcc3\udca9"], TokenizerConfig(kind="char"))
