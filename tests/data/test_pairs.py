"""Pairs are read from every format, and every bad line is an error with its message, or is
counted."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.bad_rows import Skipped
from regard.data.config import PairsConfig
from regard.data.text.pairs import Pairs, limit_length, read_pairs, read_split
from regard.errors import UserError

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\t"), min_size=1
).filter(lambda text: text == text.strip())
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
    objects = "\n".join(
        json.dumps({"target": target, "source": source}) for source, target in pairs
    )
    sides = ["\n".join(side).encode() for side in zip(*pairs, strict=True)]
    results = [
        read_pairs(write_file(folder, "a.tsv", lines)),
        read_pairs(write_file(folder, "a.jsonl.gz", gzip.compress(objects.encode()))),
        read_pairs(
            write_file(
                folder, "a.json", json.dumps([json.loads(line) for line in objects.split("\n")])
            )
        ),
        read_pairs(
            write_file(
                folder,
                "b.json",
                json.dumps([json.loads(line) for line in objects.split("\n")], indent=1),
            )
        ),
        read_pairs(write_file(folder, "c.json.xz", lzma.compress(objects.encode()))),
        read_pairs(
            write_file(folder, "a.en", sides[0]),
            target=write_file(folder, "a.de.gz", gzip.compress(sides[1])),
        ),
    ]
    for result in results:
        assert list(result) == pairs
        assert result.lines == list(range(1, len(pairs) + 1))
        assert not result.skipped


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"source": "a", "target": "b"}, {"source": "c"}]', "record 2: no field 'target'"),
        ('[{"source": "a", "target": "b"}, 3]', "record 2: expected a JSON object"),
        (
            '[{"source": "a", "target": "b"}, {"source": ]',
            "record 2: not valid JSON: Expecting value",
        ),
        ('[{"source": "a", "target": "b"} {"source"', "record 2: not valid JSON: expected a comma"),
        ('[{"source": "a", "target": "b"},]', "record 2: not valid JSON: Expecting value"),
        ('[{"source": "a", "target": "b"}] x', "record 2: expected the end of the file"),
        ('[{"source": "a", "target": "b"}', "record 2: not valid JSON: expected a comma"),
        (b'[\n{"source": "\xe9"}]', "line 2: not UTF-8: byte 0xe9 at position 13"),
        ("[" * 100_000, "record 1: not valid JSON"),
        ('{"data":\n[{"source": "a", "target": "b"}]}', "record 1: not valid JSON"),
        ('{"data": []}', "record 1: no field 'source' .* the fields are 'data'"),
    ],
)
def test_bad_record_of_a_json_array_is_named(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"a.json, {message}"):
        read_pairs(write_file(tmp_path, "a.json", content))


def test_locations_of_records_and_an_empty_array(tmp_path):
    path = write_file(
        tmp_path,
        "a.json",
        '[\n{"source": "a",\n"target": "b"}, {}, {"source": "c", "target": "d"}\n]\n',
    )
    pairs = read_pairs(path, on_bad="skip")
    assert [pairs.where(i) for i in range(2)] == [f"{path}, record 1", f"{path}, record 3"]
    with pytest.raises(UserError, match=r"b.json: contains no pair"):
        read_pairs(write_file(tmp_path, "b.json", "[ ]"))


def test_outer_white_space_and_carriage_returns_are_dropped(tmp_path):
    assert list(read_pairs(write_file(tmp_path, "a.tsv", " a  b \t\u00a0c\r\nd\te\r\n"))) == [
        ("a  b", "c"),
        ("d", "e"),
    ]


def test_tsv_takes_columns_by_number(tmp_path):
    path = write_file(tmp_path, "a.tsv", "1\ten\tde\n2\tone\teins\n")
    pairs = read_pairs(path, source_column=3, target_column="2", header="no")
    assert list(pairs) == [("de", "en"), ("eins", "one")]


def test_tsv_takes_columns_by_the_names_in_its_header(tmp_path):
    path = write_file(tmp_path, "a.tsv", "id\ten\tde\n2\tone\teins\n")
    pairs = read_pairs(path, source_column="en", target_column="de")
    assert (list(pairs), pairs.lines) == ([("one", "eins")], [2])


def test_jsonl_takes_fields_by_name_and_inside_others(tmp_path):
    rows = [{"translation": {"en": "one", "de": "eins"}, "en.old": "un"}]
    path = write_file(tmp_path, "a.jsonl", json.dumps(rows[0]))
    assert list(read_pairs(path, source_column="translation.de", target_column="en.old")) == [
        ("eins", "un")
    ]


GOOD = "a\tb\n"
HINT = "use --data.source-column 1 --data.target-column 2, or add a header with source and target"
BAD_TSV = {
    f"expected 2 columns separated by a tab, got 3 ('x\\ty\\tz'); {HINT}": (
        "x\ty\tz",
        "wrong number of columns",
    ),
    "expected 2 columns separated by a tab, got 1 ('x')": ("x", "wrong number of columns"),
    "the target (column 2) is empty; the source is 'x'": ("x\t ", "empty target"),
    "the source (column 1) is empty; the target is 'y'": ("\ty", "empty source"),
    "not UTF-8: byte 0xe9 at position 3 of the line (invalid continuation byte)"
    "; in Windows-1252 it is '\u00e9': save the file as UTF-8": (b"x\t\xe9y", "not UTF-8"),
}


@pytest.mark.parametrize("message", BAD_TSV)
@pytest.mark.parametrize("line", [1, 3])
def test_bad_tsv_line_is_named_or_counted(tmp_path, message, line):
    bad, reason = BAD_TSV[message]
    message = (
        message if line == 1 else message.removesuffix(f"; {HINT}")
    )  # other lines have two columns
    lines = [GOOD.strip().encode()] * 4
    lines[line - 1] = bad if isinstance(bad, bytes) else bad.encode()
    path = write_file(tmp_path, "a.tsv", b"\n".join(lines) + b"\n")
    with pytest.raises(UserError) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(f"{path}, line {line}: {message}")
    pairs = read_pairs(path, on_bad="skip")
    assert pairs.lines == [number for number in (1, 2, 3, 4) if number != line]
    assert pairs.skipped == Skipped((f"{path}, line {line}: {message}",), (reason,))


BAD_JSON = {
    "not valid JSON: ": ("{'source': 1}", "invalid JSON"),
    "expected a JSON object {...}, got list ('[1, 2]')": ("[1, 2]", "no JSON object"),
    "no field 'target' (--data.target-column chooses another); the fields are 'source', "
    "'targets'.": (
        '{"source": "a", "targets": "b"}',
        "missing field",
    ),
    "no field 'source' (--data.source-column chooses another); there are no fields": (
        "{}",
        "missing field",
    ),
    "field 'target' must be a string, got int ('3')": (
        '{"source": "a", "target": 3}',
        "field is not a string",
    ),
    "the target (field 'target') is empty; the source is 'a'": (
        '{"source": "a", "target": ""}',
        "empty target",
    ),
    "not UTF-8: byte 0xff at position 1 of the line": (b"\xff", "not UTF-8"),
}


@pytest.mark.parametrize("message", BAD_JSON)
def test_bad_jsonl_line_is_named_or_counted(tmp_path, message):
    bad, reason = BAD_JSON[message]
    good = b'{"source": "a", "target": "b"}\n'
    path = write_file(
        tmp_path, "a.jsonl", good + (bad if isinstance(bad, bytes) else bad.encode()) + b"\n" + good
    )
    with pytest.raises(UserError) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(f"{path}, line 2: {message}")
    pairs = read_pairs(path, on_bad="skip")
    assert (pairs.lines, pairs.skipped.counts) == ([1, 3], {reason: 1})


@pytest.mark.parametrize(
    ("source", "target", "message", "reason"),
    [
        (b"x", b"\xfcb", "not UTF-8: byte 0xfc at position 1 of the line in a.de", "not UTF-8"),
        (b"x\xe9", b"y", "not UTF-8: byte 0xe9 at position 2 of the line in a.en", "not UTF-8"),
        (b"x", b"", "the target is empty; the source is 'x'", "empty target"),
    ],
)
def test_bad_line_of_parallel_files_is_named_or_counted(tmp_path, source, target, message, reason):
    paths = [
        write_file(tmp_path, f"a.{name}", b"1\n" + side + b"\n3\n")
        for name, side in (("en", source), ("de", target))
    ]
    with pytest.raises(UserError) as caught:
        read_pairs(paths[0], target=paths[1])
    assert str(caught.value).startswith(f"{paths[0]} + {paths[1]}, line 2: {message}")
    pairs = read_pairs(paths[0], target=paths[1], on_bad="skip")
    assert (pairs.lines, pairs.skipped.counts) == ([1, 3], {reason: 1})


@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_unequal_files_are_an_error_with_both_counts(tmp_path, on_bad):
    paths = write_file(tmp_path, "a.en", "1\n2\n3\n"), write_file(tmp_path, "a.de", "1\n\n")
    with pytest.raises(UserError, match=r"got 3 in .*a\.en and 2 in .*a\.de\."):
        read_pairs(paths[0], target=paths[1], on_bad=on_bad)


def test_file_without_a_good_pair_is_an_error_that_reports_the_bad_ones(tmp_path):
    path = write_file(tmp_path, "a.tsv", "x\ny\n")
    with pytest.raises(
        UserError, match=r"contains no pair\.\nskipped 2 bad lines:\n  2 x wrong number of columns"
    ):
        read_pairs(path, on_bad="skip")
    header = write_file(tmp_path, "b.tsv", "source\ttarget\n")
    with pytest.raises(UserError, match=r"b\.tsv: contains no pair\.$"):
        read_pairs(header, source_column="source", target_column="target")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((1, 4), "line 1, --data.target-column: no column 4; there are 3 columns, numbered from 1"),
        (
            ("en", "dee"),
            "--data.target-column: no column 'dee'; the header is 'en', 'de', 'deep'. Did you mean "
            "'deep' or 'de'?",
        ),
        ((0, 2), "line 1, --data.source-column: no column 0; there are 3"),
    ],
)
def test_missing_column_is_named(tmp_path, columns, message):
    path = write_file(tmp_path, "a.tsv", "en\tde\tdeep\n1\t2\t3\n")
    with pytest.raises(UserError) as caught:
        read_pairs(path, source_column=columns[0], target_column=columns[1])
    assert message in str(caught.value)


def test_header_that_is_not_utf8_is_an_error(tmp_path):
    path = write_file(tmp_path, "a.tsv", b"\xff\tb\nx\ty\n")
    with pytest.raises(UserError, match="line 1: not UTF-8: byte 0xff"):
        read_pairs(path, source_column="a", target_column="b", on_bad="skip")
    assert read_pairs(path, on_bad="skip").lines == [2]


def test_skipped_has_all_messages_and_describes_them(tmp_path):
    path = write_file(tmp_path, "a.tsv", "x\n" * 5 + GOOD + "y\t\n")
    skipped = read_pairs(path, on_bad="skip").skipped
    assert (len(skipped), skipped.counts) == (6, {"wrong number of columns": 5, "empty target": 1})
    assert skipped[:2] == skipped.messages[:2]
    assert skipped.describe().splitlines() == [
        "skipped 6 bad lines:",
        f"  5 x wrong number of columns; first: {path}, line 1: expected 2 columns separated by a "
        f"tab, got 1 ('x')",
        f"  1 x empty target; first: {path}, line 7: the target (column 2) is empty; the source is "
        f"'y'",
    ]
    assert Skipped().describe() == ""


def test_long_bad_line_is_shown_by_its_start(tmp_path):
    with pytest.raises(UserError) as caught:
        read_pairs(write_file(tmp_path, "a.tsv", "x" * 100_000))
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def test_unknown_extension_asks_for_the_format(tmp_path):
    path = write_file(tmp_path, "a.dat.gz", gzip.compress(GOOD.encode()))
    with pytest.raises(
        UserError, match=r"cannot determine the format from the file name .*tsv.* set --data.format"
    ):
        read_pairs(path)
    assert list(read_pairs(path, format="tsv")) == [("a", "b")]


def test_text_needs_a_target_file_and_nothing_else_takes_one(tmp_path):
    path = write_file(tmp_path, "a.tsv", GOOD)
    with pytest.raises(UserError, match="format 'text' needs two parallel files"):
        read_pairs(path, format="text")
    with pytest.raises(UserError, match="`format` must be 'text' for a target file, got 'tsv'"):
        read_pairs(path, target=path, format="tsv")


def test_limit_length_counts_or_names_long_pairs(tmp_path):
    pairs = read_pairs(write_file(tmp_path, "a.tsv", "bad\n" + GOOD * 3), on_bad="skip")
    lengths = [(3, 5), (3, 6), (7, 2)]
    keep, skipped = limit_length(pairs, lengths, max_length=5, on_bad="skip")
    assert (keep, skipped.counts) == ([0], {"wrong number of columns": 1, "too long": 2})
    assert len(pairs.skipped) == 1
    with pytest.raises(
        UserError, match=r"line 3: 3 source and 6 target tokens, more than --data.max-length 5"
    ):
        limit_length(pairs, lengths, max_length=5, on_bad="error")
    with pytest.raises(UserError, match=r"no pair has at most --data.max-length 2 tokens"):
        limit_length(pairs, lengths, max_length=2, on_bad="skip")
    with pytest.raises(ValueError, match=r"one entry per pair \(3\), got 2"):
        limit_length(pairs, lengths[1:], max_length=5, on_bad="skip")


def test_read_split_reads_what_the_config_names(tmp_path):
    train = write_file(tmp_path, "train.tsv", "de\ten\nx\ty\n\tz\n")
    sides = write_file(tmp_path, "val.en", "1\n"), write_file(tmp_path, "val.de", "2\n")
    config = PairsConfig(
        train=str(train),
        val=str(sides[0]),
        val_target=str(sides[1]),
        source_column="en",
        target_column="de",
        on_bad="skip",
    )
    pairs = read_split(config, "train")
    assert (list(pairs), pairs.where(0), len(pairs.skipped)) == (
        [("y", "x")],
        f"{train}, line 2",
        1,
    )
    assert list(read_split(config, "val")) == [("1", "2")]
    with pytest.raises(UserError, match=r"no test pairs: --data\.test must be"):
        read_split(config, "test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_target": "a.de"}, "`val_target` needs `val`"),
        (
            {"train": "a.en", "train_target": "a.de", "format": "tsv"},
            "`train_target` needs `format` to be 'text'",
        ),
        ({"train": ""}, "`train` must be a file, .* got an empty text"),
        ({"max_length": 0}, "max_length must be from 1 to 1,000,000, got 0"),
        ({"source_column": 0}, "source_column must be from 1 to .*, got 0"),
    ],
)
def test_pairs_config_rejects_settings_that_do_not_fit(settings, message):
    with pytest.raises(UserError, match=message):
        PairsConfig(**settings)


def test_pairs_have_a_length_and_locations():
    pairs = Pairs(["a", "b"], ["c", "d"], [1, 7], "a.tsv")
    assert (len(pairs), pairs.where(1)) == (2, "a.tsv, line 7")


def test_length_of_texts_is_limited(tmp_path):
    path = write_file(tmp_path, "a.tsv", "a\tb\n" + "x" * 1_000_001 + "\tb\n")
    with pytest.raises(
        UserError, match=r"a.tsv, line 2: a text has 1,000,001 characters, more than 1,000,000"
    ):
        read_pairs(path)
    assert read_pairs(path, on_bad="skip").skipped.counts == {"too long": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "\\ud800", "target": "a"}', "line 1: field 'source' has a lone surrogate"),
        (
            '{"source": "a", "source": "b", "target": "c"}',
            "line 1: field 'source' must be a string.*a key given twice",
        ),
        ('{"source": ' + "[" * 100_000, "line 1: not valid JSON: maximum recursion depth"),
        ('{"source": ' + "9" * 5000 + ', "target": "a"}', "line 1: not valid JSON"),
    ],
)
def test_ambiguous_json_is_refused_with_its_line(tmp_path, line, message):
    with pytest.raises(UserError, match=rf"a.jsonl, {message}"):
        read_pairs(write_file(tmp_path, "a.jsonl", line + "\n"))


def test_json_may_have_duplicate_keys_that_are_not_read(tmp_path):
    lines = '{"id": 1, "id": 2, "source": "a", "source": "a", "target": "b"}\n'
    assert list(read_pairs(write_file(tmp_path, "a.jsonl", lines))) == [("a", "b")]
    nested = '{"source": "a", "target": [{"b": 1, "b": 2}]}\n'
    pairs = read_pairs(write_file(tmp_path, "b.jsonl", nested), also=(list,))
    assert pairs.targets == ['[{"b": "a key given twice, as 1 and 2"}]']


def test_tsv_header_that_names_a_wanted_column_twice_is_refused(tmp_path):
    path = write_file(tmp_path, "a.tsv", "en\tde\tde\n1\t2\t3\n")
    with pytest.raises(
        UserError,
        match=r"a.tsv, line 1, --data.target-column: the header has the column 'de' 2 times",
    ):
        read_pairs(path, source_column="en", target_column="de")


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbf", gzip.compress(b"\xef\xbb\xbf")], ids=["plain", "gzip"]
)
def test_byte_order_mark_alone_is_an_empty_file(tmp_path, content):
    with pytest.raises(UserError, match=r"a.tsv: the file is empty"):
        read_pairs(write_file(tmp_path, "a.tsv", content))


def test_blank_lines_are_left_out_and_numbers_stay_those_of_the_file(tmp_path):
    tsv = read_pairs(write_file(tmp_path, "a.tsv", "\na\tb\n \t\r\n\nc\td\n\n"))
    jsonl = read_pairs(
        write_file(
            tmp_path,
            "a.jsonl",
            '\n{"source": "a", "target": "b"}\n\n\n{"source": "c", "target": "d"}\n',
        )
    )
    source, target = (
        write_file(tmp_path, "a.en", "\na\n\n \nc\n"),
        write_file(tmp_path, "a.de", "\nb\n\n\t\nd\n"),
    )
    for pairs in (tsv, jsonl, read_pairs(source, target=target)):
        assert (list(pairs), pairs.lines) == ([("a", "b"), ("c", "d")], [2, 5])
    with pytest.raises(UserError, match=r"line 2: the target is empty; the source is 'b'"):
        read_pairs(
            write_file(tmp_path, "b.en", "a\nb\n"), target=write_file(tmp_path, "b.de", "a\n\n")
        )
    with pytest.raises(UserError, match=r"c.tsv: contains no pair"):
        read_pairs(write_file(tmp_path, "c.tsv", "\n \n"))


def test_empty_columns_at_the_end_are_left_out_and_others_named_with_the_options(tmp_path):
    assert list(read_pairs(write_file(tmp_path, "a.txt", "a\tb\t\t\r\nc\td\n"))) == [
        ("a", "b"),
        ("c", "d"),
    ]
    path = write_file(tmp_path, "b.tsv", "a\tb\tCC-BY\n")
    with pytest.raises(
        UserError,
        match=r"line 1: .* got 3 .*use --data.source-column 1 --data.target-column 2, or add",
    ):
        read_pairs(path)
    with pytest.raises(
        UserError, match=r"contains no pair(.|\n)*--data.source-column 1 --data.target-column 2"
    ):
        read_pairs(path, on_bad="skip")
    numbered = write_file(tmp_path, "c.tsv", "1\ta\tb\n2\tc\td\n")
    with pytest.raises(
        UserError, match=r"use --data.source-column 2 --data.target-column 3, or add"
    ):
        read_pairs(numbered)
    named = write_file(tmp_path, "d.tsv", "id\treview\tsentiment\n1\tgood\tpos\n")
    with pytest.raises(
        UserError, match=r"use --data.text-column review --data.label-column sentiment if"
    ):
        read_pairs(named, names=("text", "label"))
    with pytest.raises(UserError, match="; add a header with image and text"):
        read_pairs(path, names=("image", "text"))


def test_first_line_with_the_default_names_is_a_header(tmp_path):
    path = write_file(tmp_path, "a.tsv", "id\tTarget\tsource\n1\tb\ta\n")
    assert list(read_pairs(path)) == [("a", "b")]
    assert next(iter(read_pairs(path, source_column=1, target_column=3))) == ("id", "source")


def test_first_line_that_looks_like_another_header_is_refused(tmp_path):
    path = write_file(tmp_path, "a.tsv", "English\tGerman\none\teins\n")
    message = r"line 1: 'English' and 'German' look like a header.* --data.source-column English --data.target-"
    for columns in ({}, {"source_column": 1, "target_column": 2}):
        with pytest.raises(UserError, match=message):
            read_pairs(path, **columns)
        assert list(read_pairs(path, header="yes", **columns)) == [("one", "eins")]
        assert len(read_pairs(path, header="no", **columns)) == 2
    assert list(read_pairs(path, source_column="English", target_column="German")) == [
        ("one", "eins")
    ]


@pytest.mark.parametrize(
    "content",
    [
        'one,"eins, zwei"\n\n"two\nlines",b\n,\n',
        'one;eins, zwei\n\n"two\nlines";b\n;\n',
        'id,target,source\n1,"eins, zwei",one\n2,b,"two\nlines"\n',
    ],
)
def test_csv_gives_pairs(tmp_path, content):
    pairs = read_pairs(write_file(tmp_path, "a.csv", content))
    assert list(pairs) == [("one", "eins, zwei"), ("two\nlines", "b")]
    with pytest.raises(
        UserError, match=r"line \d: expected [23] columns separated by '[,;]', got 1"
    ):
        read_pairs(write_file(tmp_path, "b.csv", content + "x\n"))


def test_null_is_named(tmp_path):
    with pytest.raises(UserError, match=r"field 'target' must be a string, got null"):
        read_pairs(write_file(tmp_path, "a.jsonl", '{"source": "a", "target": null}'))
