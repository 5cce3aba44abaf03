"""Windows of a text: every token is predicted once, windows change with the epoch, and bad files are refused."""

import gzip
from itertools import pairwise

import numpy as np
import pytest

from regard.data.config import TokenizerConfig
from regard.data.text import windows
from regard.data.text.windows import WindowBatches, read_text, split_blocks, split_lines
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

IDS = np.arange(100, 200, dtype=np.int32)


def test_fixed_windows_predict_every_token_but_the_first_once():
    batches = WindowBatches(IDS, context=7, rows=4, seed=0, is_fixed=True)
    predicted = []
    for rows in batches.plan(0):
        target = batches.collate(0, rows).target
        for tokens, length in zip(target.items, target.lengths.tolist(), strict=True):
            assert (tokens[1:length] - tokens[: length - 1] == 1).all()
            assert not tokens[length:].any()
            predicted += tokens[1:length].tolist()
    assert sorted(predicted) == IDS[1:].tolist()


def test_training_windows_do_not_overlap_are_complete_and_differ_between_epochs():
    batches = WindowBatches(IDS, context=7, rows=4, seed=3)
    plans = [batches.plan(epoch) for epoch in range(6)]
    assert plans == [WindowBatches(IDS, context=7, rows=4, seed=3).plan(epoch) for epoch in range(6)]
    assert len({rows for plan in plans for rows in plan}) == sum(map(len, plans))
    assert len({min(start for rows in plan for start in rows) for plan in plans}) > 1
    for plan in plans:
        starts = sorted(start for rows in plan for start in rows)
        assert all(later - start == 7 for start, later in pairwise(starts))
        assert starts[-1] + 7 < len(IDS)
        assert all(batches.collate(0, rows).target.items.shape == (len(rows), 8) for rows in plan)


def test_text_shorter_than_the_context_is_one_window():
    batches = WindowBatches(IDS[:5], context=64, rows=2, seed=1)
    assert [rows for epoch in range(3) for rows in batches.plan(epoch)] == [(0,)] * 3
    assert batches.collate(0, (0,)).target.items.tolist() == [IDS[:5].tolist()]
    with pytest.raises(UserError, match="at least two tokens, got 1"):
        WindowBatches(IDS[:1], context=4, rows=1, seed=1)


def test_text_is_read_plain_or_gzip_and_its_bad_line_is_reported(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("één\n".encode()))
    assert read_text(tmp_path / "a.txt") == "one\n\ntwo\n"
    assert read_text(tmp_path / "a.txt.gz") == "één\n"
    (tmp_path / "b.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"b.txt, line 2: not UTF-8"):
        read_text(tmp_path / "b.txt")


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("normalize", ["nfc", "nfkc"])
def test_text_in_blocks_has_the_tokens_of_the_whole(monkeypatch, kind, normalize):
    monkeypatch.setattr(windows, "_BLOCK", 7)
    draw = np.random.default_rng(1)
    symbols = ["a", "e", "\u0301", "\n", "\n", " ", "  \n", "1", ".", "\ufdfa", "\r\n", "&quot;", "\u2028", "\u00a0"]
    text = "".join(draw.choice(symbols, 3000))
    assert "".join(split_blocks(text)) == text
    assert max(map(len, split_blocks(text))) < 200
    config = TokenizerConfig(kind=kind, vocab_size=60, normalize=normalize)
    tokenizer = Tokenizer.train([text] if kind == "char" else text.split("\n"), config)
    assert [token for part in split_blocks(text) for token in tokenizer.encode(part)] == tokenizer.encode(text)
    if kind == "char":
        assert Tokenizer.train(split_blocks(text), config).tokens(range(4, 9)) == tokenizer.tokens(range(4, 9))


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_a_line_without_end_is_split_at_spaces(monkeypatch, kind):
    monkeypatch.setattr(windows, "_BLOCK", 40)
    text = "short one\n" + "".join(f"word{i % 7}, " + " " * (i % 3) for i in range(90)) + "\nend\n" + "x" * 300
    blocks = list(split_blocks(text))
    assert "".join(blocks) == text
    assert max(map(len, blocks[:-1])) <= 80
    config = TokenizerConfig(kind=kind, vocab_size=60)
    tokenizer = Tokenizer.train(text if kind == "char" else text.split("\n"), config)
    assert [token for part in blocks for token in tokenizer.encode(part)] == tokenizer.encode(text)
    if kind != "char":
        again, ids = Tokenizer.train(list(split_lines(text)), config), range(4, len(tokenizer))
        assert again.tokens(ids) == tokenizer.tokens(ids)


def test_texts_without_words_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\t\n")
    with pytest.raises(UserError, match=r"a.txt: contains only white space"):
        read_text(tmp_path / "a.txt")


def test_text_ends_with_a_line_feed_and_has_no_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    for content, text in (
        (b"\xef\xbb\xbfa\r\nb", "a\r\nb\n"),
        (b"a\n\n", "a\n\n"),
        ("\n\u00e9".encode(), "\n\u00e9\n"),
    ):
        path.write_bytes(content)
        assert read_text(path) == text
    path.write_bytes("\u00e9 fine\n\u00e9 ".encode() + b"caf\xe9\nmore")
    with pytest.raises(UserError, match=r"a.txt, line 2: not UTF-8: byte 0xe9 at position 7 of the line"):
        read_text(path)
