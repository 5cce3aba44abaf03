"""White space in texts, tokens and cells: only the separator of a format divides them, in training
as in `predict`, and language models keep all of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.config import TaggedConfig, TokenizerConfig
from regard.data.tables import read_column
from regard.data.text.pairs import read_pairs
from regard.data.text.tagged import read_tagged, read_words
from regard.data.tokenizer import TrainedTokenizer
from regard.data.track_files import read_frames

WHITE = [char for char in map(chr, range(0x3001)) if char.isspace() and char not in " \t\r\n"]
TOKENS = [f"a{char}b" for char in WHITE] + WHITE


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("a.conll", "{} O\n"),
        ("a.tsv", "{}\tO\n"),
        ("a.conllu", "1\t{}\t_\tO\n"),
        ("a.csv", "{},O\n"),
    ],
)
def test_tokens_are_divided_by_the_separator_alone(tmp_path, name, row):
    header = "token,tag\n" if name == "a.csv" else ""
    content = header + "".join(row.format(token) for token in TOKENS)
    (tmp_path / name).write_bytes(content.encode())
    assert read_tagged(tmp_path / name, TaggedConfig()).tokens == (tuple(TOKENS),)
    (cell,) = read_words(tmp_path / name, TaggedConfig())
    assert cell.value == TOKENS


@pytest.mark.parametrize(
    ("name", "row"), [("a.tsv", "{}\tx\n"), ("a.csv", "{},x\n"), ("a.jsonl", "{}\n")]
)
def test_texts_are_divided_by_the_separator_alone(tmp_path, name, row):
    texts = [f"a{char}b" for char in WHITE]
    header = "source,target\n" if name == "a.csv" else ""
    cells = [json.dumps({"source": text, "target": "x"}) for text in texts]
    lines = [row.format(cell) for cell in (cells if name == "a.jsonl" else texts)]
    (tmp_path / name).write_bytes((header + "".join(lines)).encode())
    assert read_pairs(tmp_path / name).sources == texts
    column = read_column(tmp_path / name, "source", None)
    assert [cell.value for cell in column] == texts


@pytest.mark.parametrize("separator", [",", " ", "\t"])
def test_names_of_agents_are_divided_by_the_separator_alone(tmp_path, separator):
    names = [f"a{char}b" for char in WHITE]
    content = "".join(separator.join(["1", name, "2", "3"]) + "\n" for name in names)
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert list(read_frames(tmp_path / "a.txt")[0][1.0]) == names
    assert list(read_frames("a", content=content.encode())[0][1.0]) == names


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@given(text=st.text(st.sampled_from(["a", "1", ".", " ", "\n", "\t", *WHITE])))
def test_tokenizers_that_keep_white_space_lose_none(kind, text):
    config = TokenizerConfig(kind=kind, normalize="none")
    tokenizer = TrainedTokenizer.train(["a 1.\n", text], config, keeps_space=True)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(tokenizer.segment(text)).replace(" ", "") == text.replace(" ", "")
    # Blocks of a text, which end at line ends, are tokenized one by one.
    blocks = text.splitlines(keepends=True)
    ids = [number for block in blocks for number in tokenizer.encode(block)]
    assert tokenizer.decode(ids) == text


def test_indentation_is_short_subwords_before_the_space_of_a_word():
    text = "\n  b" * 50 + " " * 500
    tokenizer = TrainedTokenizer.train([text], TokenizerConfig(), keeps_space=True)
    assert tokenizer.tokens("\n  b")[-1] == "\u2581b"
    assert max(map(len, tokenizer.tokens(range(len(tokenizer))))) <= 64
