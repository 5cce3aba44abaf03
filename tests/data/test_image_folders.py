"""Folders of images: which files are images, which are skipped, and the notices about them."""

import os
from pathlib import Path

import pytest
from PIL import Image, features

from regard.data.config import ImagesConfig
from regard.data.images.dataset import read_images, read_training_images
from regard.data.images.files import read_image
from regard.data.images.folders import list_image_folders
from regard.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "all" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (3, 2), number).save(tmp_path / "all" / name / f"{number}.png")
    return tmp_path / "all"


def names(folder: Path, on_bad="error") -> list[str]:
    return [str(file.relative_to(folder)) for file, _ in list_image_folders(folder, on_bad).files]


PLAIN = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(3)]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "cat/._0.png",
            "cat/.hidden/0.png",
            "cat/@eaDir/0.png/SYNOPHOTO.jpg",
            "cat/__MACOSX/0.png",
            "cat/Thumbs.db",
        ),
        *(
            "__MACOSX/cat/0.png",
            "@eaDir/0.png",
            "#recycle/0.png",
            "cat/DESKTOP.INI",
            "cat/.DS_Store",
        ),
    ],
)
def test_files_of_operating_systems_are_ignored(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"no image")
    images = list_image_folders(folder, "error")
    assert [str(file.relative_to(folder)) for file, _ in images.files] == PLAIN
    assert images.notices == ()


def test_every_extension_of_an_image_is_read(folder):
    os.rename(folder / "cat" / "0.png", folder / "cat" / "0.JFIF")
    assert names(folder)[0] == "cat/0.JFIF"
    assert len(read_images(folder, ImagesConfig())) == 6


def test_other_files_are_skipped_and_reported(folder):
    for name in ("a.heic", "b.HEIC", "c.svg", "notes", "more/d.heic"):
        (folder / "cat" / name).parent.mkdir(exist_ok=True)
        (folder / "cat" / name).write_bytes(b"x")
    Image.new("L", (3, 2)).save(folder / "loose.png")
    (folder / "README.md").write_text("x")
    images = read_training_images(ImagesConfig(train=str(folder), val_share=0.4), seed=1)[0]
    counted, loose = images.left_out()
    assert counted == (
        f"{folder}: skipped 5 files: 3 .heic (convert them to JPEG), 1 .svg, 1 without extension; "
        f"first: {folder}/cat/a.heic."
    )
    assert (
        loose == f"{folder}: skipped 1 image outside the class folders; first: {folder}/loose.png."
    )


def test_class_without_a_supported_image_is_an_error_or_reported(folder):
    (folder / "eel").mkdir()  # an empty folder is no error
    assert names(folder) == PLAIN
    (folder / "eel" / "1.heic").write_bytes(b"x")
    with pytest.raises(
        UserError,
        match=r"eel: none of its files is a supported image: 1 .heic .*JPEG.*--data.on-bad",
    ):
        names(folder)
    images = list_image_folders(folder, "skip")
    assert len(images.files) == 6
    assert images.notices[-1].startswith(f"{folder}/eel: none of its files is a supported image")
    assert images.notices[-1].endswith("; the class is left out.")
    for file in folder.glob("*/*.png"):
        file.unlink()
    with pytest.raises(
        UserError, match=r"contains no image .*eel: none of its files is a supported image"
    ):
        names(folder, "skip")


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(folder, tmp_path):
    (tmp_path / "more" / "deep").mkdir(parents=True)
    Image.new("L", (3, 2)).save(tmp_path / "more" / "deep" / "9.png")
    (folder / "cat" / "link").symlink_to(tmp_path / "more")
    (folder / "cat" / "again").symlink_to(tmp_path / "more" / "deep")
    (folder / "dog" / "link").symlink_to(tmp_path / "more")
    (tmp_path / "more" / "loop").symlink_to(tmp_path / "more")
    (folder / "cat" / "broken").symlink_to(tmp_path / "nowhere")
    cat = [name for name in names(folder) if name.startswith("cat")]
    assert cat == ["cat/0.png", "cat/1.png", "cat/2.png", "cat/again/9.png"]
    assert "dog/link/deep/9.png" in names(folder)
    (folder / "cat" / "again").unlink()
    assert "cat/link/deep/9.png" in names(folder)


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "valid", "models")])
def test_folders_of_splits_are_no_classes(tmp_path, names):
    for split in names:
        folder = tmp_path / split / ("cat" if split != "models" else "")
        folder.mkdir(parents=True)
        Image.new("L", (2, 2)).save(folder / "1.png")
    option = rf"--data.train {tmp_path}/{names[0]} --data.{'test' if 'test' in names else 'val'} {tmp_path}/{names[1]}\.$"
    with pytest.raises(UserError, match=f"are splits of a data set: use {option}"):
        list_image_folders(tmp_path, "error")


def test_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "1.png")
    assert [name for _, name in list_image_folders(tmp_path, "error").files] == ["bus", "train"]


def test_link_to_another_class_or_to_a_folder_above_is_refused(folder, tmp_path):
    one, two, *_ = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    for target in (two, folder, tmp_path):
        (one / "more").symlink_to(target, target_is_directory=True)
        with pytest.raises(
            UserError,
            match=rf"{one.name}/more: is a link to .*, whose images would have two classes",
        ):
            list_image_folders(folder, "error")
        (one / "more").unlink()
    (folder / "same").symlink_to(one, target_is_directory=True)
    with pytest.raises(UserError, match=r"is a link to .*, whose images would have two classes"):
        list_image_folders(folder, "error")


def test_options_that_no_data_uses_are_refused(folder, tmp_path):
    for name, value in (
        ("file_column", 1),
        ("label_column", ("kind",)),
        ("header", "yes"),
        ("names", ("a", "b")),
    ):
        config = ImagesConfig(train=str(folder), **{name: value})
        with pytest.raises(
            UserError, match=f"--data.{name.replace('_', '-')} is an option of .*leave it out"
        ):
            read_training_images(config, seed=0)
    assert read_training_images(
        ImagesConfig(train=str(folder), test="a.csv", header="yes", val_share=0.5), seed=0
    )


def test_empty_class_is_reported(folder):
    (folder / "eel").mkdir()
    assert list_image_folders(folder, "error").notices == (
        f"{folder / 'eel'}: is empty; the class is left out.",
    )


@pytest.mark.skipif(not features.check("jpg_2000"), reason="Pillow without JPEG 2000")
def test_jpeg_2000_is_read(folder):
    Image.new("RGB", (8, 8), "red").save(folder / "cat" / "0.jp2")
    assert "cat/0.jp2" in names(folder)
    assert read_image(folder / "cat" / "0.jp2").image.size == (8, 8)
