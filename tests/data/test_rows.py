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
from regard.errors import UserError

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
        "lines.jsonl": "".join(json.dumps({second: label, "more": 0, first: file}) + "\n\n" for file, label in ROWS),
    }
    contents = {name: text.encode() for name, text in texts.items()}
    return contents | {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def read_list(path: Path) -> list[tuple[str, str]]:
    return [(file, label) for _, file, label in read_image_list(path, ImagesConfig(target="labels"))[0]]


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
def test_header_above_columns_that_are_chosen_by_number_is_no_example(tmp_path: Path, suffix: str) -> None:
    path, separator = tmp_path / f"a.{suffix}", "\t" if suffix == "tsv" else ","
    path.write_text("".join(separator.join(row) + "\n" for row in (("id", "Text", "Label"), ("1", "good", "x"))))
    assert list(read_labeled(LabeledConfig(text_column=2, label_column=3), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(label_column=3), path, "train")) == [("good", "x")]
    assert list(read_labeled(LabeledConfig(text_column="id"), path, "train")) == [("1", "x")]
    # Columns of other names: a row like any other.
    assert list(read_labeled(LabeledConfig(text_column=1, label_column=2), path, "train")) == [
        ("id", "Text"),
        ("1", "good"),
    ]
    config = PairsConfig(train=str(path), source_column="Text", target_column=1)
    assert list(read_split(config, "train")) == [("good", "1")]


def test_first_row_of_other_names_is_data(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabels\ngood\tx\n")
    records = read_records(tmp_path / "a.tsv", "tsv", Columns(("text", "label")))
    assert [(number, records.parse(row)) for number, row in records.rows] == [
        (1, ("text", "labels")),
        (2, ("good", "x")),
    ]


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
    lines = ("Label;note;file;x;y;width;height", "cat;;1.png;1,5;2;3;4", "dog;1.png", "cat;;1.png;5;6;7;8;;")
    path = tmp_path / f"boxes.{suffix}"
    path.write_text("\n".join(lines).replace(";", separator).replace("1,5", "1,5" if suffix == "csv" else "1.5"))
    with pytest.raises(UserError, match=r"line 3: expected 7 columns separated by .*, got 2 .*--data.on-bad skip"):
        read_boxes(path, None, BoxesConfig())
    data = read_boxes(path, None, BoxesConfig(on_bad="skip"))
    assert data.items[0].boxes.tolist() == [[1.5, 2, 3, 4], [5, 6, 7, 8]]
    assert data.skipped.counts == {"wrong number of columns": 1}  # pyrefly: ignore[missing-attribute]


def test_events_are_read_from_every_form(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(8000, np.int16), 8000)
    soundfile.write(tmp_path / "b.wav", np.zeros(8000, np.int16), 8000)
    contents = {
        "a.csv": "file,onset,duration,label\na.wav,0.25,0.5,x\nb.wav,,,\n",
        "a.tsv": "label\tmore\tfile\tonset\toffset\nx\t\ta.wav\t0.25\t0.75\n\t\tb.wav\t\t\n",
        "a.jsonl": '{"file": "a.wav", "onset": 0.25, "duration": 0.5, "label": "x"}\n{"file": "b.wav"}\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        sounds = read_events(tmp_path / name, EventsConfig(seconds=1.0))
        assert [[(event.onset, event.duration, event.label) for event in sounds.load(i)[1]] for i in range(2)] == [
            [(0.25, 0.5, "x")],
            [],
        ]


def catch_problems(bad_rows: BadRows) -> None:
    for number, problem in enumerate((None, BadRow("short", "too short"), UserError("b, line 2: odd."), None)):
        with bad_rows.catch(f"a, line {number}"):
            if problem:
                raise problem


def test_first_bad_row_is_an_error() -> None:
    message = r"^a, line 1: too short. With --data.on-bad skip, such images are left out and counted.$"
    with pytest.raises(UserError, match=message):
        catch_problems(BadRows("error", "images"))


def test_bad_rows_are_left_out_and_counted() -> None:
    bad_rows = BadRows("skip", "images")
    catch_problems(bad_rows)
    assert bad_rows.skipped == Skipped(("a, line 1: too short", "b, line 2: odd."), ("short", "unusable"))
    assert bad_rows.skipped[-1] == "b, line 2: odd."
    assert BadRows("skip", before=bad_rows.skipped).skipped.counts == {"short": 1, "unusable": 1}


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), BadRows("skip").catch():
        _ = 1 / 0
