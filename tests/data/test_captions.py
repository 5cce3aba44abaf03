"""Images with captions: formats agree, one image has several references, bad data is named."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from regard.data.config import CaptionsConfig
from regard.data.images.captions import CaptionBatches, read_captions
from regard.data.tokenizer import BOS, EOS
from regard.errors import UserError

CONFIG = CaptionsConfig(train=("x.tsv",), width=12, height=8)
CAPTIONS = {"a.png": ["a cat", "one cat"], "b.png": ["two dogs"]}
SIZES = {"a.png": (24, 16), "b.png": (8, 8)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number, (name, size) in enumerate(SIZES.items()):
        Image.new("RGB", size, (10, 20, 30 * number)).save(tmp_path / "images" / name)
    return tmp_path


def rows(separator="\t"):
    return [f"{name}{separator}{text}\n" for name, texts in CAPTIONS.items() for text in texts]


def coco(**changes):
    pairs = [(i, text) for i, texts in enumerate(CAPTIONS.values()) for text in texts]
    content = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(CAPTIONS)],
        "annotations": [{"id": 7, "image_id": i, "caption": f" {text}\n"} for i, text in pairs],
    }
    return json.dumps(content | changes)


BLANK = coco(annotations=[{"id": 1, "image_id": 0, "caption": " "}])
FORMATS = {
    "a.tsv": "".join(rows()),
    "a.csv": "image,caption\n" + "".join(rows(",")),
    "a.jsonl": """\
{"caption": "a cat", "image": "a.png"}
{"caption": "one cat", "image": "a.png"}
{"caption": "two dogs", "image": "b.png"}
""",
    "a.json": coco(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_agree(folder, name):
    (folder / name).write_text(FORMATS[name])
    data = read_captions(folder / name, folder / "images", CONFIG)
    assert {data.name(i): data.captions(i) for i in data.epoch(5)} == CAPTIONS
    assert data.pixels(0).shape == (8, 12, 3)
    assert (data.pixels(0) == (10, 20, 0)).all()
    assert (data.pixels(1)[:, :8] == (10, 20, 30)).all()  # scaled to fit, and padded with gray
    assert (data.pixels(1)[:, 8:] == 128).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a.png\ta cat\ngone.png\ta dog\n", r"line 2: .*gone\.png: no such file"),
        ("a.tsv", "a.png\ta cat\nb.png\t \n", r"line 2: the caption .*is empty"),
        ("a.tsv", "../a.tsv\tx\n", r"line 1: .*a\.tsv: not an image of"),
        ("a.json", "{}", "contains no usable image"),
        ("a.json", coco(annotations=[]), r"image 'a\.png' has no caption"),
        ("a.json", BLANK, r"annotation 1: image 'a\.png' has no caption, or an empty one"),
        ("a.json", coco()[:-5], "expected COCO's images and annotations"),
        ("a.xml", "x", "expected a file of the type|format"),
    ],
)
def test_bad_files_are_named(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name}.*{message}"):
        read_captions(folder / name, folder / "images", CONFIG)


def test_bad_lines_and_images_are_skipped_and_counted(folder):
    (folder / "a.tsv").write_text("a.png\ta cat\nb.png\ngone.png\tx\na.png\tone cat\n")
    data = read_captions(folder / "a.tsv", folder / "images", replace(CONFIG, on_bad="skip"))
    assert [data.captions(i) for i in data.epoch(0)] == [["a cat", "one cat"]]
    assert len(data.notices) == 2
    (folder / "a.json").write_text(coco(annotations=[{"id": 1, "image_id": 1, "caption": "x"}]))
    data = read_captions(folder / "a.json", folder / "images", replace(CONFIG, on_bad="skip"))
    assert len(data) == 1


def test_long_captions_are_bad_lines(folder):
    (folder / "a.tsv").write_text(FORMATS["a.tsv"] + "b.png\tfour words are long\n")
    data = read_captions(folder / "a.tsv", folder / "images", CONFIG)

    def count_words(text: str) -> int:
        return len(text.split())

    message = r"a\.tsv, line 4: caption of 4 tokens, more than --data.max-length 3"
    with pytest.raises(UserError, match=message):
        data.limit_length(count_words, 3, "error")
    kept = data.limit_length(count_words, 2, "skip")
    assert [kept.captions(i) for i in range(2)] == list(CAPTIONS.values())
    assert len(kept.notices) == 1
    with pytest.raises(UserError, match=r"no caption has at most --data.max-length 1"):
        data.limit_length(count_words, 1, "skip")


def test_batches_have_a_caption_of_each_image_and_every_caption_in_time(folder):
    (folder / "a.tsv").write_text(FORMATS["a.tsv"])
    data = read_captions(folder / "a.tsv", folder / "images", CONFIG)
    ids = {"a cat": [4, 5], "one cat": [6, 5, 9], "two dogs": [7]}
    batches = CaptionBatches(data, ids.__getitem__, rows=2, seed=1)
    seen = set()
    for epoch in range(12):
        (rows,) = batches.plan(epoch)
        assert sorted(rows) == [0, 1]
        batch, again = batches.collate(epoch, rows), batches.collate(epoch, rows)
        assert torch.equal(batch.target.items, again.target.items)
        for row, index in enumerate(rows):
            target = batch.target.items[row, : int(batch.target.lengths[row])].tolist()
            assert target[:1] + target[-1:] == [BOS, EOS]
            seen.add((index, *target[1:-1]))
            pixels = torch.tensor(data.pixels(index)).permute(2, 0, 1)
            assert torch.equal(batch.source[row], pixels / 255)
    assert seen == {(0, 4, 5), (0, 6, 5, 9), (1, 7)}
    assert batches.pairs() == [(0, 0), (0, 1), (1, 0)]
