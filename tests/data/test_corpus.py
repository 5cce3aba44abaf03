"""Texts in blocks have the characters, tokens and vocabulary of the whole; errors name lines."""

import bz2
import gzip
import json

import numpy as np
import pytest

from regard.data.config import TextConfig, TokenizerConfig
from regard.data.text import corpus as module
from regard.data.text.corpus import Corpus, make_corpus, read_corpus
from regard.data.tokenizer import TrainedTokenizer
from regard.errors import UserError

SYMBOLS = [*"ae1.\n\n \u0301\ufdfa\u2028\u00a0", "  \n", "\ra", "&quot;"]


def random_text(count: int) -> str:
    return "".join(np.random.default_rng(1).choice(SYMBOLS, count)) + "\n"


def test_text_is_read_plain_or_compressed(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"ei") + gzip.compress("n\u00e9".encode()))
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress(b"z\n" * 500_000))
    assert "".join(read_corpus(tmp_path / "a.txt")) == "one\n\ntwo\n"
    assert "".join(read_corpus(tmp_path / "a.txt.gz")) == "ein\u00e9\n"
    assert "".join(read_corpus(tmp_path / "a.txt.bz2")) == "z\n" * 500_000


def test_text_ends_with_a_line_feed_and_has_no_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    for content, text in (
        (b"\xef\xbb\xbfa\r\nb\rc", "a\nb\rc\n"),
        (b"a\n\n", "a\n\n"),
        ("\n\u00e9".encode(), "\n\u00e9\n"),
    ):
        path.write_bytes(content)
        assert "".join(read_corpus(path)) == text
        assert len(read_corpus(path)) == len(text)


def test_parts_and_lines_are_those_of_the_text(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 16)
    text = random_text(500)
    corpus = make_corpus(text, "here")
    assert len(list(corpus)) > 20
    assert len(corpus) == len(text)
    for begin, end in ((0, 100), (37, 38), (120, 120), (200, 10_000), (len(text) - 3, len(text))):
        part = corpus.part(begin, end)
        assert "".join(part) == text[begin:end]
        assert len(part) == len(text[begin:end])
        assert "".join(part.part(5, 11)) == text[begin:end][5:11]
        lines = [line for line in text[begin:end].split("\n") if line.strip()]
        assert part.example_count == len(lines)
        for i in (*range(len(lines)), *range(0, len(lines), 3), *reversed(range(len(lines)))):
            assert part.example(i) == lines[i]


def check_blocks(corpus: Corpus, text: str, whole: list[str], **settings) -> None:
    """Compare tokens and vocabulary of a corpus in blocks with those of the whole text."""
    config = TokenizerConfig(vocab_size=60, **settings)
    tokenizer, again = TrainedTokenizer.train(whole, config), TrainedTokenizer.train(corpus, config)
    ids = [token for block in corpus for token in tokenizer.encode(block)]
    assert ids == tokenizer.encode(text)
    assert len(again) == len(tokenizer)
    assert again.tokens(range(4, len(again))) == tokenizer.tokens(range(4, len(again)))
    assert again.merges == tokenizer.merges


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("normalize", ["nfc", "nfkc"])
def test_text_in_blocks_has_the_tokens_and_the_vocabulary_of_the_whole(
    monkeypatch, kind, normalize
):
    monkeypatch.setattr(module, "_BLOCK", 16)
    text = random_text(3000)
    corpus = make_corpus(text, "here")
    assert "".join(corpus) == text
    assert max(map(len, corpus)) < 200
    whole = [text] if kind == "char" else text.split("\n")
    check_blocks(corpus, text, whole, kind=kind, normalize=normalize)


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_a_line_without_end_is_split_at_spaces(monkeypatch, kind):
    monkeypatch.setattr(module, "_BLOCK", 40)
    words = "".join(f"word{i % 7}, " + " " * (i % 3) for i in range(90))
    text = f"short one\n{words}\nend\n{'x' * 300}\n"
    corpus = make_corpus(text, "here")
    assert "".join(corpus) == text
    *blocks, last = corpus
    assert max(map(len, blocks)) <= 4 * 40
    assert last.endswith("x\n")
    check_blocks(corpus, text, [text], kind=kind)


def test_a_vocabulary_of_subwords_needs_texts_that_can_be_read_twice():
    with pytest.raises(TypeError, match="`texts` must be iterable more than once for BPE"):
        TrainedTokenizer.train(iter(["a b"]), TokenizerConfig(kind="bpe", vocab_size=60))


@pytest.mark.parametrize("block", [7, 1 << 18])
def test_line_that_is_not_utf8_is_reported_with_its_position(tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    path = tmp_path / "b.txt"
    path.write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"b.txt, line 2: not UTF-8: .* byte 0xff"):
        read_corpus(path)
    path.write_bytes("\u00e9 fine\n\n\u00e9 ".encode() + b"a long caf\xe9\nmore\n")
    with pytest.raises(UserError, match=r"b.txt, line 3: not UTF-8: .* byte 0xe9"):
        read_corpus(path)


def test_texts_without_words_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    for content, problem in (
        (b" \n\t\n", "contains only white space"),
        (b"", "contains only white space"),
        (b"\xef\xbb\xbf", "contains only white space"),
        ("text".encode("utf-16"), "is UTF-16, expected UTF-8"),
        ("text".encode("utf-16-le"), "is UTF-16, expected UTF-8"),
        (b"\xff", ".*line 1: not UTF-8: .* byte 0xff"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a.txt.*{problem}"):
            read_corpus(path)


def test_each_row_of_a_table_is_a_text(tmp_path):
    texts = ["one\ntwo", "three", "four five six"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"one\r\ntwo"\n2,three\n3,four five six\n')
    (tmp_path / "a.tsv").write_text("7\tone\n8\ttwo\n")
    for name in ("a.jsonl", "a.csv"):
        corpus = read_corpus(tmp_path / name)
        assert [*corpus] == [*corpus.examples()] == texts
        assert corpus.has_documents
        assert corpus.part(0, 9).has_documents
    assert [corpus.find_cut(at) for at in (1, 7, 8, 12, 13, 20)] == [7, 7, 12, 12, 13, 20]
    assert make_corpus("one\ntwo\n", "here").find_cut(2) == 2
    assert [*read_corpus(tmp_path / "a.tsv", config=TextConfig(text_column=2))] == ["one", "two"]
    (note,) = read_corpus(tmp_path / "a.tsv").notes
    assert note.endswith("a.tsv: the text is the first column; --data.text-column chooses another")


def test_tables_without_a_text_and_files_of_two_kinds_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,body\n1,one\n2,\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "a.txt").write_text("one\n")
    for names, config, problem in (
        (["a.csv"], {}, "a.csv: no column 'text' among 'id', 'body': --data.text-column chooses"),
        (
            ["a.jsonl"],
            {},
            "line 1: no field 'text'; the fields are 'id'. --data.text-column chooses",
        ),
        (["a.csv"], {"text_column": "body"}, "a.csv, line 3: the text is empty"),
        ([""], {}, r": is a folder, expected its files, such as .*/\*\.txt"),
        (["a.txt", "a.csv"], {}, "a.csv is a table and .*a.txt a text: expected files of one kind"),
    ):
        with pytest.raises(UserError, match=problem):
            read_corpus(*(tmp_path / name for name in names), config=TextConfig(**config))
    corpus = read_corpus(tmp_path / "a.csv", config=TextConfig(text_column="body", on_bad="skip"))
    assert [*corpus] == ["one"]
    assert "skipped 1 of the texts" in corpus.notes[0]


def test_lines_that_are_not_utf8_can_be_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ncaf\xe9\n\ntwo\n")
    corpus = read_corpus(tmp_path / "a.txt", config=TextConfig(on_bad="skip"))
    assert "".join(corpus) == "one\n\ntwo\n"
    assert len(corpus) == 9
    assert "skipped 1 of the lines; first: " in corpus.notes[0]
