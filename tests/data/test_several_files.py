"""Data of several files, and text files in other encodings."""

import json

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.config import (
    EventsConfig,
    ImagesConfig,
    LabeledConfig,
    PairsConfig,
    TaggedConfig,
    TextConfig,
)
from regard.data.images.dataset import read_images
from regard.data.sound.events import read_event_files
from regard.data.text.corpus import read_corpus
from regard.data.text.labels import read_labeled
from regard.data.text.pairs import read_split
from regard.data.text.tagged import read_tagged
from regard.errors import UserError
from regard.recipes.base.run import Run, data_paths
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import find_source
from tests.recipes.commands import command, failure, report


def write(folder, **files):
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content.encode("cp1252"))
    return tuple(str(folder / name.replace("_", ".")) for name in files)


def test_pairs_of_several_files_keep_their_lines(tmp_path):
    paths = write(tmp_path, a_tsv="1\t2\n", b_tsv="\n3\t4\n5\t6\n")
    pairs = read_split(PairsConfig(train=paths), "train")
    assert list(pairs) == [("1", "2"), ("3", "4"), ("5", "6")]
    assert pairs.origin == ", ".join(paths)
    assert pairs.where(0) == f"{paths[0]}, line 1"
    assert pairs.take([2]).where(0) == f"{paths[1]}, line 3"
    sides = write(tmp_path, c_en="7\n", c_de="8\n", d_en="9\n", d_de="0\n")
    config = PairsConfig(train=sides[::2], train_target=sides[1::2])
    assert list(read_split(config, "train")) == [("7", "8"), ("9", "0")]
    with pytest.raises(UserError, match=r"`train_target` needs `train`.*got 2 and 1 files"):
        PairsConfig(train=sides[::2], train_target=sides[1:2])


def test_columns_by_position_are_named_and_must_be_the_same(tmp_path):
    paths = write(tmp_path, a_csv="en,de\n1,2\n", b_csv="de,en\n2,1\n", c_tsv="3\t4\n")
    pairs = read_split(PairsConfig(train=paths[::2]), "train")
    assert list(pairs) == [("1", "2"), ("3", "4")]
    note = f"{paths[0]}: columns by position: 'en' is the source and 'de' the target"
    assert pairs.notices == (note,)
    with pytest.raises(UserError, match=r"other names in \S+a.csv: en, de and \S+b.csv: de, en"):
        read_split(PairsConfig(train=paths[:2]), "train")
    config = PairsConfig(train=paths[:2], source_column="en", target_column="de")
    assert read_split(config, "train").notices == ()


def test_images_of_several_folders_and_tables_have_one_shape(tmp_path):
    for number, name in enumerate(("one/cat", "two/dog")):
        (tmp_path / name).mkdir(parents=True)
        Image.new("L", (2 + number, 2), number).save(tmp_path / name / "a.png")
    (tmp_path / "list.csv").write_text("file,label\none/cat/a.png,fox\n")
    paths = [str(tmp_path / name) for name in ("one", "list.csv", "two")]
    data = read_images(paths[:2], ImagesConfig())
    assert (data.labels, data.pixels.shape) == (("cat", "fox"), (2, 1, 2, 2))
    assert data.where(1) == f"{paths[1]}, line 2"
    with pytest.raises(UserError, match=r"two/dog/a.png: has 3 x 2 pixels, expected 2 x 2"):
        read_images(paths, ImagesConfig())
    data = read_images(paths, ImagesConfig(size=4))
    assert data.labels == ("cat", "fox", "dog")
    assert [int(pixels.max()) for pixels in data.pixels] == [0, 0, 1]


def test_sounds_of_several_files_have_their_own_samples(tmp_path):
    for number, name in enumerate("ab"):
        soundfile.write(tmp_path / f"{name}.wav", np.full(800, number + 1, np.int16), 8000)
    table = "file,onset,duration,label\n{0}.wav,0.01,0.02,{0}\n"
    paths = write(tmp_path, a_csv=table.format("a"), b_csv=table.format("b"))
    data = read_event_files(paths, EventsConfig())
    for number in range(2):
        samples, (event,) = data.load(number)
        assert set(samples.tolist()) == {number + 1}
        assert event.label == "ab"[number]
    assert data.labels == ("a", "b")


def test_texts_of_several_files_follow_each_other(tmp_path):
    paths = write(tmp_path, a_txt="one\ntwo", b_txt="\u00fcber\n")
    corpus = read_corpus(*paths, config=TextConfig(encoding="cp1252"))
    assert "".join(corpus) == "one\ntwo\n\u00fcber\n"
    assert list(corpus.part(4, 10).examples()) == ["two", "\u00fcb"]
    with pytest.raises(UserError, match=r"b.txt, line 1: not UTF-8"):
        read_corpus(*paths)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_tables_in_other_encodings(tmp_path, encoding):
    text, name = "Stra\u00dfe \u20ac", str(tmp_path / "a")
    contents = {
        "csv": f'text,label\r\n"{text}",x\r\n',
        "tsv": f"{text}\tx\n",
        "jsonl": json.dumps({"text": text, "label": "x"}, ensure_ascii=False),
        "json": json.dumps([{"text": text, "label": "x"}], ensure_ascii=False),
    }
    for suffix, content in contents.items():
        (tmp_path / f"a.{suffix}").write_bytes(content.encode(encoding))
        config = LabeledConfig(encoding=encoding)
        assert list(read_labeled(config, f"{name}.{suffix}", "train")) == [(text, "x")]
        with pytest.raises(UserError, match="UTF-8"):
            read_labeled(LabeledConfig(), f"{name}.{suffix}", "train")
    (tmp_path / "a.conll").write_bytes(f"{text}\nx O\n".encode(encoding))
    assert read_tagged(f"{name}.conll", TaggedConfig(encoding=encoding)).tokens[0][0] == text[:6]


def test_text_in_utf_8_that_is_read_in_another_encoding_is_noticed_once(tmp_path, capsys):
    for name, encoding in {"a.csv": "utf-8", "b.csv": "cp1252"}.items():
        (tmp_path / name).write_bytes("text,label\n\u00fc,x\n".encode(encoding))
        for _ in range(2):
            read_labeled(LabeledConfig(encoding="cp1252"), tmp_path / name, "train")
    read_labeled(LabeledConfig(encoding="utf-8-sig"), tmp_path / "a.csv", "train")
    assert capsys.readouterr().err == (
        f"{tmp_path / 'a.csv'}: is read as cp1252, but seems to be UTF-8 (--data.encoding utf-8)\n"
    )


def test_bytes_that_are_not_of_an_encoding_are_named(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tx\n\x81\ty\n")
    with pytest.raises(UserError, match=r"a.tsv, line 2: not cp1252: "):
        read_labeled(LabeledConfig(encoding="cp1252"), tmp_path / "a.tsv", "train")
    for config in (LabeledConfig, TextConfig):
        for name in ("latin-0", "rot13"):
            with pytest.raises(UserError, match=r"`encoding` must be one of Python, .*cp1252"):
                config(encoding=name)


def test_one_file_has_the_name_of_its_setting(tmp_path):
    paths = write(tmp_path, a_tsv="1\t2\n", b_tsv="3\t4\n")
    names = {1: ["data.train"], 2: ["data.train.0", "data.train.1"]}
    for count, expected in names.items():
        config = get_entry("tags").config(data=TaggedConfig(train=paths[:count]))
        assert list(data_paths(Run(recipe="tags", seed=0, config=config))) == expected
    assert find_source(paths[0], None) != find_source(paths[1], None)


def test_run_is_trained_on_several_files(tmp_path, capsys):
    sentence = "Ann B-PER\nsees O\nBob B-PER\n\nf\u00fcr O\n\n"
    files = write(tmp_path, a_txt=sentence * 5, b_conll=sentence.replace("Bob", "Eve") * 5)
    small = "--model.core.width 8 --model.core.layers 1 --model.core.heads 2 --train.steps 1"
    options = f"--data.encoding cp1252 --train.tensorboard false --train.average 0 {small}"
    tests = f"--data.val {files[0]} --data.test={','.join(files)}"
    command(f"train tags --run {tmp_path}/run --data.train {' '.join(files)} {tests} {options}")
    assert report(tmp_path / "run")["examples"] == 20
    (tmp_path / "c.txt").write_bytes("f\u00fcr Ann\n".encode("cp1252"))
    command("predict", tmp_path / "run", tmp_path / "c.txt", "--data.encoding", "cp1252")
    command("evaluate", tmp_path / "run")
    command("evaluate", tmp_path / "run", "--data.test", files[1], "--data.encoding", "cp1252")
    assert "not UTF-8" not in capsys.readouterr().err
    message = failure(capsys, f"evaluate {tmp_path}/run --data.test {files[1]}")
    assert "b.conll, line 5: not UTF-8" in message
