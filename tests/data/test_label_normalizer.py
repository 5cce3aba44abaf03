"""Labels of two Unicode spellings are one class in all readers; texts are not changed."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from regard.data.config import BoxesConfig, ImagesConfig, LabeledConfig, TaggedConfig
from regard.data.images.boxes import read_boxes
from regard.data.images.dataset import read_images
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.labels import read_labeled
from regard.data.text.tagged import read_tagged

ONE, TWO = "caf\u00e9", "cafe\u0301"
BOTH = (ONE, TWO)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def labels_of_folders(folder: Path) -> Sequence[str]:
    for name in BOTH:
        (folder / "all" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / "all" / name / "1.png")
    return read_images(folder / "all", ImagesConfig()).labels


def labels_of_image_list(folder: Path) -> Sequence[str]:
    Image.new("L", (4, 4)).save(folder / "1.png")
    path = write(folder / "list.tsv", "".join(f"1.png\t{label}\n" for label in BOTH))
    return read_images(path, ImagesConfig()).labels


def labels_of_texts(folder: Path) -> Sequence[str]:
    path = write(folder / "a.tsv", "".join(f"{TWO}\t{label}\n" for label in BOTH))
    pairs = read_labeled(LabeledConfig(), path, "train")
    assert pairs.sources == [TWO, TWO]
    return pairs.targets


def labels_of_columns(folder: Path) -> Sequence[str]:
    sentences = read_tagged(
        write(folder / "a.conll", f"{TWO} {ONE}\n\n{TWO} {TWO}\n"), TaggedConfig()
    )
    assert sentences.tokens == ((TWO,), (TWO,))
    return [tag for tags in sentences.tags for tag in tags]


def labels_of_tag_lists(folder: Path) -> Sequence[str]:
    line = json.dumps({"tokens": [TWO, TWO], "tags": BOTH})
    return read_tagged(write(folder / "a.jsonl", line), TaggedConfig()).tags[0]


def labels_of_boxes(folder: Path, name: str, content: str) -> Sequence[str]:
    Image.new("L", (16, 16)).save(folder / "1.png")
    return read_boxes(write(folder / name, content), folder, BoxesConfig()).items[0].labels


def labels_of_box_table(folder: Path) -> Sequence[str]:
    rows = "".join(f"1.png,1,1,4,4,{label}\n" for label in BOTH)
    return labels_of_boxes(folder, "boxes.csv", f"file,x,y,width,height,label\n{rows}")


def labels_of_box_lines(folder: Path) -> Sequence[str]:
    boxes = [{"x": 1, "y": 1, "width": 4, "height": 4, "label": label} for label in BOTH]
    return labels_of_boxes(folder, "boxes.jsonl", json.dumps({"file": "1.png", "boxes": boxes}))


def labels_of_coco(folder: Path) -> Sequence[str]:
    content = {
        "images": [{"id": 0, "file_name": "1.png"}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(BOTH)],
        "annotations": [{"image_id": 0, "category_id": i, "bbox": [1, 1, 4, 4]} for i in range(2)],
    }
    return labels_of_boxes(folder, "boxes.json", json.dumps(content))


READERS = (
    *(labels_of_folders, labels_of_image_list, labels_of_texts, labels_of_columns),
    *(labels_of_tag_lists, labels_of_box_table, labels_of_box_lines, labels_of_coco),
)


@pytest.mark.parametrize("reader", READERS)
def test_two_spellings_of_a_label_are_one_class_with_one_warning(tmp_path, reader):
    with pytest.warns(
        UserWarning, match=r"two Unicode spellings of a label, .*: 'caf\u00e9'\.$"
    ) as warned:
        assert list(reader(tmp_path)) == [ONE, ONE]
    assert len(warned) == 1


def test_one_spelling_gives_no_warning():
    normalizer = LabelNormalizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [normalizer[label] for label in (TWO, TWO, "cafe")] == [ONE, ONE, "cafe"]
        normalizer.warn("a.tsv")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["RBC", "WBC", "rbc"], r"a\.csv: the labels 'RBC' and 'rbc' differ only in case"),
        (["0", "1", "1.0"], r"a\.csv: the labels '1' and '1\.0' are one number"),
        (
            ["positive"] * 99 + ["postive", "positive"],
            r"'postive' occurs once, and 'positive' 100 times",
        ),
        (["good"] * 100 + ["godo", "bad", "godo"], r"'godo' occurs twice, and 'good' 100 times"),
        (["B-LOC"] * 100 + ["B-LOK"], r"'B-LOK' occurs once"),
        (["good", "NaN"], r"a\.csv: 'NaN' is a class; if it stands for a missing label"),
    ],
)
def test_labels_that_are_probably_others_are_reported(labels: list[str], message: str) -> None:
    normalizer = LabelNormalizer()
    assert [normalizer[label] for label in labels] == labels
    with pytest.warns(UserWarning, match=message):
        normalizer.warn("a.csv")


def test_usual_labels_are_not_reported() -> None:
    normalizer = LabelNormalizer()
    common = ["B-LOC", "class 1", "cat", "shirt"] * 100
    for label in ["0", "1", "-1", "1_0", "10", "inf", "nan-like", "Good", "bad", "", *common]:
        normalizer[label]
    for label in ["I-LOC", "class 2", "class 12", "car", "shorts", *["shirts"] * 3]:
        normalizer[label]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalizer.warn("a.csv")


def test_boxes_with_a_label_in_another_case_are_reported(tmp_path: Path) -> None:
    Image.new("L", (9, 9)).save(tmp_path / "1.png")
    rows = "".join(f"1.png,1,1,3,3,{label}\n" for label in ("RBC", "rbc"))
    with pytest.warns(UserWarning, match="'RBC' and 'rbc' differ only in case"):
        read_boxes(
            write(tmp_path / "b.csv", "file,x,y,width,height,label\n" + rows), None, BoxesConfig()
        )
