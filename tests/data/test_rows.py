"""One reader of rows: the same data in every form, and a header is never an example."""

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.bad_rows import BadRow, BadRows, Skipped
from regard.data.config import BoxesConfig, EventsConfig, ImagesConfig, LabeledConfig, PairsConfig
from regard.data.images.boxes import read_boxes
from regard.data.images.lists import read_image_list
from regard.data.sound.events import read_events
from regard.data.text.labels import read_labeled
from regard.data.text.pairs import read_pairs, read_split
from regard.data.text.rows import Columns, read_records
from regard.data.text.sources import read_sources
from regard.errors import UserError
from regard.recipes.targets.base import RawTargets
from regard.recipes.targets.labels import LabelsTarget
from regard.recipes.targets.numbers import NumberTarget

ROWS = [("1.png", 'a "b"'), ("2.png", "x, y; z")]


def csv_of(rows: list[tuple[str, ...]], separator: str) -> str:
    def cell(value: str) -> str:
        return '"' + value.replace('"', '""') + '"'

    return "".join(separator.join(map(cell, row)) + "\n" for row in rows)


def forms(names: tuple[str, str]) -> dict[str, bytes]:
    """Return the same rows as files of every form, by file name."""
    first, second = names
    head = [(first.upper(), second.title())]
    swapped = [(f" {second} ", "more", first), *((label, "0", file) for file, label in ROWS)]
    texts = {
        "plain.tsv": "".join("\t".join(row) + "\n" for row in ROWS),
        "header.tsv": "".join("\t".join(row) + "\r\n" for row in [*head, *ROWS]),
        "swapped.tsv": "\ufeff" + "".join("\t".join(row) + "\n" for row in swapped),
        "plain.csv": csv_of(ROWS, ","),
        "header.csv": csv_of([*head, *ROWS], ","),
        "sheet.csv": csv_of(swapped, ";").replace("\n", "\r\n"),
        "tabs.csv": csv_of(swapped, "\t"),
        "lines.jsonl": "".join(
            json.dumps({second: label, "more": 0, first: file}) + "\n\n" for file, label in ROWS
        ),
    }
    contents = {name: text.encode() for name, text in texts.items()}
    return contents | {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def read_list(path: Path) -> list[tuple[str, str]]:
    return [
        (file, label) for _, file, label in read_image_list(path, ImagesConfig(target="labels"))[0]
    ]


READERS: dict[str, tuple[tuple[str, str], Callable[[Path], list[tuple[str, str]]]]] = {
    "pairs": (("source", "target"), lambda path: list(read_pairs(path))),
    "labels": (("text", "label"), lambda path: list(read_labeled(LabeledConfig(), path, "train"))),
    "captions": (("image", "text"), lambda path: list(read_pairs(path, names=("image", "text")))),
    "images": (("file", "label"), read_list),
}


@pytest.mark.parametrize("form", forms(("a", "b")))
@pytest.mark.parametrize("reader", READERS)
def test_same_rows_are_read_from_every_form(tmp_path: Path, reader: str, form: str) -> None:
    names, read = READERS[reader]
    path = tmp_path / form
    path.write_bytes(forms(names)[form])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path) == ROWS


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_header_above_columns_that_are_chosen_by_number_is_no_example(
    tmp_path: Path, suffix: str
) -> None:
    path, separator = tmp_path / f"a.{suffix}", "\t" if suffix == "tsv" else ","
    path.write_text(
        "".join(separator.join(row) + "\n" for row in (("id", "Text", "Label"), ("1", "good", "x")))
    )
    assert list(read_labeled(LabeledConfig(text_column=2, label_column=(3,)), path, "train")) == [
        ("good", "x")
    ]
    assert list(read_labeled(LabeledConfig(label_column=(3,)), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(text_column="id"), path, "train")) == [("1", "x")]
    # Columns of other names: a row like any other, if the setting says so.
    config = LabeledConfig(text_column=1, label_column=(2,), header="no")
    assert list(read_labeled(config, path, "train")) == [("id", "Text"), ("1", "good")]
    config = PairsConfig(train=str(path), source_column="Text", target_column=1)
    assert list(read_split(config, "train")) == [("good", "1")]


@pytest.mark.parametrize(
    "first", ["text\tlabels", "Sentence\tlabel", "tweet\tSentiment", "labels\tlabel"]
)
def test_first_row_that_may_be_a_header_is_decided_by_the_setting(
    tmp_path: Path, first: str
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\ngood\tx\n")
    with pytest.raises(
        UserError, match=r"line 1: .* look like a header.*--data.header yes .*--data.header no if"
    ):
        read_labeled(LabeledConfig(), path, "train")
    assert list(read_labeled(LabeledConfig(header="yes"), path, "train")) == [("good", "x")]
    data = [tuple(first.split("\t")), ("good", "x")]
    assert list(read_labeled(LabeledConfig(header="no"), path, "train")) == data


@pytest.mark.parametrize(
    "first", ["a nice label\tpos", "good\tlabel x", "label\tpos", "1\tlabel", "a label of\tlabel"]
)
def test_first_row_of_text_is_data(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\ngood\tx\n")
    assert list(read_labeled(LabeledConfig(), path, "train")) == [
        tuple(first.split("\t")),
        ("good", "x"),
    ]


HEADERS = [
    "0,1",
    "v2,v1",
    "Review,Liked",
    "comment_text,toxic",
    "headline,is_sarcastic",
    "Review Text,Overall",
    "utterance,intent",
]


@pytest.mark.parametrize("first", [*HEADERS, "text,airline_sentiment"])
def test_first_row_of_names_above_labels_that_repeat_may_be_a_header(
    tmp_path: Path, first: str
) -> None:
    path = tmp_path / "a.csv"
    rows = [f"quite {word},{label}" for word in "abcde" for label in ("no", "yes", "no", "yes")]
    path.write_text("\n".join([first, *rows]))
    with pytest.raises(
        UserError, match=r"line 1: .* look like a header.*--data.header yes .*--data.header no if"
    ):
        read_labeled(LabeledConfig(), path, "train")
    assert len(list(read_labeled(LabeledConfig(header="yes"), path, "train"))) == 20
    assert len(list(read_labeled(LabeledConfig(header="no"), path, "train"))) == 21


@pytest.mark.parametrize(
    ("first", "labels", "warned"),
    [
        ("so good,1", "01" * 10, 0),  # the label of the first row occurs in others
        ("it was good fun,new", "01" * 10, 1),  # not a name
        ("What did you like?,Score (1-5)", "01" * 10, 1),
        ("play music,PlayMusic", "abcdefghijklmnopqrst", 0),  # labels do not repeat
        ("so good,new", "01" * 9, 0),  # few rows
    ],
)
def test_first_row_that_is_no_name_or_whose_label_may_be_rare_is_data(
    tmp_path: Path, first: str, labels: str, warned: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([first, *(f"quite good,{label}" for label in labels)]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(read_labeled(LabeledConfig(), path, "train"))) == len(labels) + 1
    assert len(caught) == warned
    assert all(
        "line 1: the label" in str(one.message) and "--data.header yes" in str(one.message)
        for one in caught
    )


TABLE = "film,review,sentiment\n" + "".join(
    f"film {i},it was {word} good,{i % 2}\n" for i, word in enumerate("abcdef")
)


@pytest.mark.parametrize(
    "config",
    [LabeledConfig(label_column=("sentiment",)), LabeledConfig(text_column="review")],
    ids=["label", "text"],
)
def test_all_columns_of_a_wider_table_are_chosen(tmp_path: Path, config: LabeledConfig) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    likely = "text-column review" if config.label_column else "label-column sentiment"
    with pytest.raises(UserError, match=rf"'film', 'review', 'sentiment'; use --data.{likely}\."):
        read_labeled(config, path, "train")
    several = LabeledConfig(label_column=("film", "sentiment"), target="labels")
    path.write_text("\n".join(f"{i or 'id'},{line}" for i, line in enumerate(TABLE.splitlines())))
    with pytest.raises(
        UserError, match=r"no column 'text' in the header .*; use --data.text-column review\."
    ):
        read_labeled(several, path, "train")
    path.write_text(TABLE)
    both = LabeledConfig(text_column="review", label_column=("sentiment",))
    assert next(iter(read_labeled(both, path, "train"))) == ("it was a good", "0")
    path.write_text(TABLE.partition("\n")[2])
    with pytest.raises(
        UserError, match=r"line 1: has 3 columns: choose the column of the text, too"
    ):
        read_labeled(LabeledConfig(label_column=(3,)), path, "train")


@pytest.mark.parametrize(
    ("header", "likely"),
    [
        ("category,text", "--data.text-column text --data.label-column category"),
        ("sentiment,review", "--data.text-column review --data.label-column sentiment"),
        ("rating,title,text", "--data.text-column text --data.label-column rating"),
        ("Id,Score,Summary", "--data.text-column Summary --data.label-column Score"),
    ],
)
def test_suggested_columns_are_those_of_the_contents(
    tmp_path: Path, header: str, likely: str
) -> None:
    path, width = tmp_path / "a.csv", header.count(",") + 1
    cells = [[f"{i % 2}", f"title {i}", f"a long text about {i}"] for i in range(6)]
    cells = [[row[0], row[2]] if width == 2 else row for row in cells]
    if header.startswith("Id"):
        cells = [[f"{i}", row[0], row[2]] for i, row in enumerate(cells)]
    path.write_text("\n".join([header, *map(",".join, cells)]))
    with pytest.raises(UserError, match=likely):
        read_labeled(LabeledConfig(), path, "train")


def test_header_setting_and_the_expected_names(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("label\ttext\nx\tgood\n")
    assert list(read_labeled(LabeledConfig(), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(header="yes"), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(header="no"), path, "train")) == [
        ("label", "text"),
        ("x", "good"),
    ]
    with pytest.raises(UserError, match=r"chosen by number with --data.header no, got 'text'"):
        read_labeled(LabeledConfig(header="no", text_column="text"), path, "train")
    path.write_text("label\tcomment\nx\tgood\n")  # the column that is left is the text
    assert list(read_labeled(LabeledConfig(header="yes"), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(label_column=(1,), header="yes"), path, "train")) == [
        ("good", "x")
    ]
    path.write_text("id\tcomment\tlabel\n1\tgood\tx\n")
    with pytest.raises(UserError, match=r"no column 'text' in the header .*; use --data.text-col"):
        read_labeled(LabeledConfig(header="yes"), path, "train")
    assert list(read_labeled(LabeledConfig(text_column="comment"), path, "train")) == [
        ("good", "x")
    ]


@pytest.mark.parametrize("format", ["csv", "sheet.csv", "tsv", "jsonl"])
def test_several_columns_of_numbers(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    path.write_text(
        {
            "csv": "text,price,size,more\ngood,1.5,2,x\n",
            "sheet.csv": 'text;price;size;more\ngood;"1,5";2;x\n',
            "tsv": "text\tprice\tsize\tmore\ngood\t1,5\t2\tx\n",
            "jsonl": '{"text": "good", "size": 2, "price": 1.5}\n',
        }[format]
    )
    config = LabeledConfig(label_column=("price", "size"), target="number")
    pairs = read_labeled(config, path, "train")
    raw = RawTargets([*pairs.targets, "[3, 4]"], pairs.where, "a", ("label", "text"), "error")
    target = NumberTarget.fit(raw, config)
    assert (target.names, target.means) == (("price", "size"), (2.25, 3.0))
    target.save(tmp_path)
    assert NumberTarget.load(tmp_path, config).names == ("price", "size")
    assert target.signature.startswith("price, 2.25 +- 0.75 in training, size")
    image = ImagesConfig(file_column="text", label_column=("price", "size"), target="number")
    if format != "sheet.csv":
        (_, file, label), *_ = read_image_list(path, image)[0]
        assert (file, parse_number_list(label)) == ("good", [1.5, 2.0])


def test_first_row_without_a_number_above_numbers_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    config, images = LabeledConfig(target="number"), ImagesConfig(target="number")
    path.write_text("review,price\ngood,3.5\nbad,1\n")
    assert list(read_labeled(config, path, "train")) == [("good", "3.5"), ("bad", "1")]
    assert [row[1:] for row in read_image_list(path, images)[0]] == [("good", "3.5"), ("bad", "1")]
    path.write_text("good,3.5\nbad,1\n")
    assert len(read_labeled(config, path, "train")) == 2
    path.write_text("good,much\nbad,more\n")  # no numbers at all: reported where labels are parsed
    assert len(read_labeled(config, path, "train")) == 2
    path.write_text("file,price,weight\na.png,3.5,0.2\n")
    hint = r"line 1: no column 'label' in the header .*; use --data.label-column price weight for all numbers; or use"
    with pytest.raises(UserError, match=hint):
        read_image_list(path, images)


def test_true_and_false_in_json_lines_are_labels_but_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good", "label": true}\n{"text": "bad", "label": false}\n')
    assert list(read_labeled(LabeledConfig(), path, "train")) == [
        ("good", "true"),
        ("bad", "false"),
    ]
    with pytest.raises(UserError, match=r"must be a string or .*, got bool"):
        read_labeled(LabeledConfig(target="number"), path, "train")


def parse_number_list(text: str) -> list[float]:
    return [float(number) for number in json.loads(text)]


def test_decimal_comma_of_a_spreadsheet_is_one_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text;label\nso, so;3,5\nfine;-,25\nbad;1\n")
    config = LabeledConfig(target="number")
    assert list(read_labeled(config, path, "train")) == [
        ("so, so", "3.5"),
        ("fine", "-.25"),
        ("bad", "1"),
    ]
    assert read_labeled(LabeledConfig(), path, "train").targets == ["3,5", "-,25", "1"]


@pytest.mark.parametrize("config", [LabeledConfig, ImagesConfig])
def test_several_columns_of_labels_are_not_for_classes(config: type) -> None:
    with pytest.raises(
        UserError, match="`label_column` must be one column for `target` class, got 2"
    ):
        config(label_column=("a", "b"))
    with pytest.raises(UserError, match="`label_column` must name different columns, got a, a"):
        config(label_column=("a", "a"), target="number")


LABELS = [["price", "food"], [], ["food"], ["price"]]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        (
            "a.csv",
            "id,text,price,food\n1,a,1,1\n2,b,0,0\n3,c,False,TRUE\n4,d,1.0,\n",
            ("price", "food"),
        ),
        ("a.csv", "price,food,note,text\n1,1,x,a\n0,0,x,b\n0,1,x,c\n1,0,x,d\n", (1, 2)),
        ("a.tsv", "a\t1\t1\nb\t0\t0\nc\t0\t1\nd\t1\t0\n", (2, 3)),
        (
            "a.jsonl",
            '{"text": "a", "price": 1, "food": true}\n{"text": "b", "price": 0, "food": false}\n'
            '{"text": "c", "price": false, "food": 1}\n{"text": "d", "price": "1", "food": ""}\n',
            ("price", "food"),
        ),
    ],
)
def test_columns_of_0_and_1_are_labels(
    tmp_path: Path, name: str, content: str, columns: tuple[int | str, ...]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    pairs = read_labeled(LabeledConfig(target="labels", label_column=columns), path, "train")
    expected = (
        LABELS
        if name != "a.tsv"
        else [[{"price": "2", "food": "3"}[label] for label in row] for row in LABELS]
    )
    assert pairs.sources == ["a", "b", "c", "d"]
    assert [json.loads(labels) for labels in pairs.targets] == expected
    path.write_text(content.replace("text", "file"))
    rows, _ = read_image_list(path, ImagesConfig(target="labels", label_column=columns))
    assert [(file, json.loads(labels)) for _, file, labels in rows] == list(
        zip("abcd", expected, strict=True)
    )


def test_a_cell_of_a_label_that_is_not_0_or_1_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,price,food\na,1,0\nb,1,yes\n")
    config = {"target": "labels", "label_column": ("price", "food")}
    message = r"a.csv, line 3: column 'food' must be 1 or true where .* false or empty elsewhere, got 'yes'"
    with pytest.raises(UserError, match=message):
        read_labeled(LabeledConfig(**config), path, "train")
    pairs = read_labeled(LabeledConfig(**config, on_bad="skip"), path, "train")
    assert pairs.skipped.counts == {"no 0 or 1": 1}
    raw = RawTargets(pairs.targets, pairs.where, pairs.origin, ("label", "text"), "error")
    with pytest.warns(UserWarning, match="a.csv: no text has the label 'food', which is left out"):
        assert LabelsTarget.fit(raw, LabeledConfig(**config)).names == ("price",)


def test_any_number_of_columns_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("c,b,a\n3,2,1\n")
    (tmp_path / "b.csv").write_text("1,2,3\n")
    for name in ("a.csv", "b.csv"):
        records = read_records(tmp_path / name, "csv", Columns(("a", "b", "c")))
        assert [records.parse(row) for _, row in records.rows] == [("1", "2", "3")]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_tables_of_boxes_are_read_from_every_form(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "1.png")
    separator = "\t" if suffix == "tsv" else ";"
    lines = (
        "Label;note;file;x;y;width;height",
        "cat;;1.png;1,5;2;3;4",
        "dog;1.png",
        "cat;;1.png;5;6;7;8;;",
    )
    path = tmp_path / f"boxes.{suffix}"
    path.write_text(
        "\n".join(lines).replace(";", separator).replace("1,5", "1,5" if suffix == "csv" else "1.5")
    )
    with pytest.raises(
        UserError, match=r"line 3: expected 7 columns separated by .*, got 2 .*--data.on-bad skip"
    ):
        read_boxes(path, None, BoxesConfig())
    data = read_boxes(path, None, BoxesConfig(on_bad="skip"))
    assert data.items[0].boxes.tolist() == [[1.5, 2, 3, 4], [5, 6, 7, 8]]
    # pyrefly: ignore[missing-attribute]
    assert data.skipped.counts == {"wrong number of columns": 1}


def test_events_are_read_from_every_form(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(8000, np.int16), 8000)
    soundfile.write(tmp_path / "b.wav", np.zeros(8000, np.int16), 8000)
    contents = {
        "a.csv": "file,onset,duration,label\na.wav,0.25,0.5,x\nb.wav,,,\n",
        "a.tsv": "label\tmore\tfile\tonset\toffset\nx\t\ta.wav\t0.25\t0.75\n\t\tb.wav\t\t\n",
        "a.jsonl": '{"file": "a.wav", "onset": 0.25, "duration": 0.5, "label": "x"}\n{"file": '
        '"b.wav"}\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        sounds = read_events(tmp_path / name, EventsConfig(seconds=1.0))
        assert [
            [(event.onset, event.duration, event.label) for event in sounds.load(i)[1]]
            for i in range(2)
        ] == [
            [(0.25, 0.5, "x")],
            [],
        ]


def catch_problems(bad_rows: BadRows) -> None:
    for number, problem in enumerate(
        (None, BadRow("short", "too short"), UserError("b, line 2: odd."), None)
    ):
        with bad_rows.catch(f"a, line {number}"):
            if problem:
                raise problem


def test_first_bad_row_is_an_error() -> None:
    message = (
        r"^a, line 1: too short. With --data.on-bad skip, such images are left out and counted.$"
    )
    with pytest.raises(UserError, match=message):
        catch_problems(BadRows("error", "images"))


def test_bad_rows_are_left_out_and_counted() -> None:
    bad_rows = BadRows("skip", "images")
    catch_problems(bad_rows)
    assert bad_rows.skipped == Skipped(
        ("a, line 1: too short", "b, line 2: odd."), ("short", "unusable")
    )
    assert bad_rows.skipped[-1] == "b, line 2: odd."
    assert BadRows("skip", before=bad_rows.skipped).skipped.counts == {"short": 1, "unusable": 1}


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), BadRows("skip").catch():
        _ = 1 / 0


@pytest.mark.parametrize(
    ("header", "column"), [("filename,category", "filename"), ("my photo,kind", "'my photo'")]
)
def test_an_index_without_a_name_is_not_a_source(tmp_path: Path, header: str, column: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f",{header}\n0,1.png,cat\n")
    with pytest.raises(
        UserError, match=rf"line 1: .* look like a header without .*--data.file-column {column};"
    ):
        next(read_sources(path, "file"))
    assert [row.text for row in read_sources(path, "file", column=column.strip("'"))] == ["1.png"]
    assert [row.text for row in read_sources(path, "file", header="no")] == ["", "0"]
    path.write_text(",good\nfine,bad\n")  # an empty text
    assert [row.text for row in read_sources(path, "text")] == ["", "fine"]


def test_tables_without_a_header_have_columns_in_order(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "1.png")
    path = tmp_path / "a.csv"
    path.write_text("1.png,1,2,3,4,cat\n1.png,5,6,7,8,dog\n")
    columns = "file,x,y,width,height,label"
    with pytest.raises(
        UserError,
        match=rf"line 1: expected a header with .*; .*--data.header no reads .* as {columns}",
    ):
        read_boxes(path, None, BoxesConfig())
    path.write_text(
        "name,left,top,right,bottom,label\n" + path.read_text()
    )  # other names are no data
    with pytest.raises(
        UserError,
        match=r"line 1: expected a header with .*, got 'name,left,top,right,bottom,label'\.$",
    ):
        read_boxes(path, None, BoxesConfig())
    path.write_text(path.read_text().partition("\n")[2])
    data = read_boxes(path, None, BoxesConfig(header="no"))
    assert data.items[0].boxes.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert data.items[0].labels == ("cat", "dog")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000, np.int16), 8000)
    path.write_text("a.wav;0,25;0,5;x\n")
    sounds = read_events(path, EventsConfig(seconds=1.0, header="no"))
    assert [(event.onset, event.duration, event.label) for event in sounds.load(0)[1]] == [
        (0.25, 0.5, "x")
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('"a"\t"b"\n"c"\t"d"\n', 1),
        ('a\tb\n"say ""x"""\tc\n', 2),
        ('"a"\tb\n', 0),
        ('"a" or "b"\t"c"\n', 0),
    ],
)
def test_quotes_of_a_spreadsheet_in_tsv_are_reported(
    tmp_path: Path, content: str, line: int
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_pairs(path).sources[0] == content.split("\t", maxsplit=1)[0]
    assert [f"line {line}: cells are in quotes" in str(warning.message) for warning in caught] == [
        True
    ] * bool(line)
    if " or " not in content:
        assert read_pairs(path, format="csv").sources[0] == "a"


def test_wide_first_row_with_typical_names_is_answered_with_the_options_that_choose_them(tmp_path):
    path = tmp_path / "imdb.csv"
    path.write_text(",review,sentiment\n0,a fine film,positive\n")
    columns = Columns(("text", "label"), has_options=True)
    records = read_records(path, "csv", columns)
    with pytest.raises(
        BadRow,
        match=r"use --data.text-column review --data.label-column sentiment if the first row",
    ):
        records.parse(next(iter(records.rows))[1])
    chosen = read_records(path, "csv", columns._replace(chosen=("review", "sentiment")))
    assert [chosen.parse(row) for _, row in chosen.rows] == [("a fine film", "positive")]
