"""Pairs of every format, and bad rows: an error that names file and row, or left out."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.config import PairsConfig
from regard.data.text.pairs import Pairs, add_references, limit_length, read_pairs, read_split
from regard.errors import UserError

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\t"), min_size=1
).filter(lambda text: text == text.strip())
SKIP = PairsConfig(on_bad="skip")
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=9)


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@given(PAIRS)
def test_pairs_are_read_from_every_format(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [("a" + source, target + "z") for source, target in pairs]
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    objects = [{"target": target, "source": source} for source, target in pairs]
    json_lines = "\n".join(map(json.dumps, objects)).encode()
    sides = ["\n".join(side).encode() for side in zip(*pairs, strict=True)]
    target = write_file(folder, "a.de.gz", gzip.compress(sides[1]))
    results = [
        read_pairs(write_file(folder, "a.tsv", lines)),
        read_pairs(write_file(folder, "a.jsonl.gz", gzip.compress(json_lines))),
        read_pairs(write_file(folder, "a.json", json.dumps(objects, indent=1))),
        read_pairs(write_file(folder, "a.en", sides[0]), target=target),
    ]
    for result in results:
        assert list(result) == pairs
        assert result.lines == list(range(1, len(pairs) + 1))
        assert not result.notices


def test_outer_white_space_and_blank_lines_are_dropped(tmp_path):
    tsv = write_file(tmp_path, "a.tsv", "\n a  b \t\u00a0c\r\n \t\r\n\nd\te\r\n")
    source = write_file(tmp_path, "a.en", "\na  b\n\n \nd")
    target = write_file(tmp_path, "a.de", "\nc\n\n\ne")
    for pairs in (read_pairs(tsv), read_pairs(source, target=target)):
        assert (list(pairs), pairs.lines) == ([("a  b", "c"), ("d", "e")], [2, 5])


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.tsv", "1\teins\tone\n", (3, "2")),
        ("a.tsv", "id\tde\ten\n2\teins\tone\n", ("en", "de")),
        ("a.csv", "id,de,en\n2,eins,one\n", ("en", 2)),
        ("a.jsonl", '{"t": {"en": "one"}, "en.old": "eins"}', ("t.en", "en.old")),
    ],
)
def test_columns_are_chosen_by_number_or_name(tmp_path, name, content, columns):
    path = write_file(tmp_path, name, content)
    pairs = read_pairs(path, PairsConfig(source_column=columns[0], target_column=columns[1]))
    assert list(pairs) == [("one", "eins")]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("a.tsv", b"x\t ", "line 3: the target is empty"),
        ("a.tsv", b"x\t\xe9y", "line 3: not UTF-8: "),
        ("a.csv", b",y", "line 3: the source is empty"),
        ("a.jsonl", b'{"source": "a", "target": null}', "line 3: the target is empty"),
        ("a.jsonl", b'{"source": "a", "target": {"b": 1}}', "line 3: expected a text, got an obj"),
    ],
)
def test_bad_row_is_named_or_left_out(tmp_path, name, row, message):
    good = {
        "a.tsv": b"a\tb\n",
        "a.csv": b"source,target\n",
        "a.jsonl": b'{"source": "a", "target": "b"}\n',
    }[name]
    path = write_file(tmp_path, name, good * 2 + row + b"\n" + good)
    with pytest.raises(UserError, match=rf"{name}, {message}.* With --data.on-bad skip"):
        read_pairs(path)
    pairs = read_pairs(path, SKIP)
    assert pairs.lines == ([2, 4] if name == "a.csv" else [1, 2, 4])
    assert len(pairs.notices) == 1
    assert message in pairs.notices[0]


def test_parallel_files_have_equally_many_lines(tmp_path):
    paths = write_file(tmp_path, "a.en", "1\n2\n3\n"), write_file(tmp_path, "a.de", "1\n\xfc\n")
    with pytest.raises(UserError, match=r"a\.de: has 2 lines, and the other"):
        read_pairs(paths[0], SKIP, target=paths[1])
    write_file(tmp_path, "a.de", b"1\n\xfc\n3\n")
    with pytest.raises(UserError, match=r"a\.de, line 2: not UTF-8"):
        read_pairs(paths[0], target=paths[1])
    assert read_pairs(paths[0], SKIP, target=paths[1]).lines == [1, 3]
    with pytest.raises(UserError, match=r"--data\.train-target with the parallel text file"):
        read_split(PairsConfig(train=(str(paths[0]),), format="text"), "train")
    with pytest.raises(UserError, match=r"a\.en: expected a table .* --data\.val-target with"):
        read_split(PairsConfig(train=("a.tsv",), val=(str(paths[0]),)), "val")


def test_file_without_a_pair(tmp_path):
    with pytest.raises(UserError, match=r"contains no pair; skipped 2 bad rows; first: .*line 1"):
        read_pairs(write_file(tmp_path, "a.tsv", "x\ny\n"), SKIP)
    with pytest.raises(UserError, match=r"b\.tsv: contains no pair$"):
        read_pairs(write_file(tmp_path, "b.tsv", ""))


def test_format_of_another_suffix(tmp_path):
    path = write_file(tmp_path, "a.dat", "a\tb\n")
    assert list(read_pairs(path, PairsConfig(format="tsv"))) == [("a", "b")]
    with pytest.raises(UserError, match=r"columns need numbers without a header"):
        read_pairs(path, PairsConfig(format="tsv", source_column="en", header="no"))


def test_limit_length_counts_or_names_long_pairs(tmp_path):
    pairs = read_pairs(write_file(tmp_path, "a.tsv", "bad\n" + "a\tb\n" * 3), SKIP)
    lengths = [(3, 5), (3, 6), (7, 2)]
    keep, skipped = limit_length(pairs, lengths, max_length=5, on_bad="skip")
    assert (keep, len(pairs.notices)) == ([0], 1)
    assert "skipped 2 of the pairs" in skipped[0]
    message = r"line 3: 3 source and 6 target tokens, more than --data.max-length 5"
    with pytest.raises(UserError, match=message):
        limit_length(pairs, lengths, max_length=5, on_bad="error")
    with pytest.raises(UserError, match=r"no pair has at most --data.max-length 2"):
        limit_length(pairs, lengths, max_length=2, on_bad="skip")


def test_references(tmp_path):
    pairs = Pairs(["a", "b"], ["c", "d"], [1, 2], "a.tsv")
    file = write_file(tmp_path, "more.txt", "e\nf\n")
    assert add_references(pairs, [file], "utf-8").references == [["c", "e"], ["d", "f"]]
    file.write_bytes(b"\xfc\nf\n")
    assert add_references(pairs, [file], "cp1252").references[0] == ["c", "\u00fc"]
    with pytest.raises(UserError, match=r"1 lines for 2 pairs of a.tsv"):
        add_references(pairs, [write_file(tmp_path, "more.txt", "e")], "utf-8")
    with pytest.raises(UserError, match=r"more.txt, line 2: is blank"):
        add_references(pairs, [write_file(tmp_path, "more.txt", "e\n \n")], "utf-8")


def test_read_split_reads_what_the_config_names(tmp_path):
    train = write_file(tmp_path, "train.csv", "de,en\nx,y\n,z\n")
    sides = write_file(tmp_path, "val.en", "1\n"), write_file(tmp_path, "val.de", "2\n")
    files = {"train": (str(train),), "val": (str(sides[0]),), "val_target": (str(sides[1]),)}
    config = PairsConfig(source_column="en", target_column="de", on_bad="skip", **files)
    pairs = read_split(config, "train")
    assert (list(pairs), pairs.where(0)) == ([("y", "x")], f"{train}, line 2")
    assert len(pairs.notices) == 1
    assert list(read_split(config, "val")) == [("1", "2")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_target": ("a.de",)}, "`val_target` needs `val`"),
        (
            {"train": ("a",), "train_target": ("b",), "format": "tsv"},
            "needs `format` text, got 'tsv'",
        ),
    ],
)
def test_pairs_config_rejects_settings_that_do_not_fit(settings, message):
    with pytest.raises(UserError, match=message):
        PairsConfig(**settings)
