"""Files that lists name: those of another computer are found by their last parts, missing ones
looked for nearby."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.config import BoxesConfig, CaptionsConfig, ImagesConfig, PointsConfig
from regard.data.images.boxes import read_boxes
from regard.data.images.captions import read_captions
from regard.data.images.dataset import read_images
from regard.data.named_files import NamedFiles
from regard.data.points.clouds import read_clouds
from regard.errors import UserError

COCO = {
    "images": [{"id": 1, "file_name": "NAME"}],
    "categories": [{"id": 1, "name": "a"}],
    "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
}
READERS = {
    "images.csv": ("file,label\nNAME,a\n", lambda path: read_images(path, ImagesConfig())),
    "boxes.csv": (
        "file,x,y,width,height,label\nNAME,0,0,2,2,a\n",
        lambda path: read_boxes(path, None, BoxesConfig()),
    ),
    "boxes.json": (json.dumps(COCO), lambda path: read_boxes(path, None, BoxesConfig())),
    "captions.tsv": ("NAME\ta cat\n", lambda path: read_captions(path, None, CaptionsConfig())),
    "clouds.csv": (
        "file,x,y,z,dx,dy,dz,label\nNAME,0,0,0,1,1,1,a\n",
        lambda path: read_clouds(path, PointsConfig()),
    ),
}
NAMES = {"clouds.csv": "1.npz"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with data/img/1.*, whose lists are in lists/."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "data" / "img").mkdir(parents=True)
    (folder / "lists").mkdir()
    Image.new("RGB", (4, 4)).save(folder / "data" / "img" / "1.png")
    np.savez(folder / "data" / "img" / "1.npz", points=np.eye(3))
    return folder


def write(folder: Path, kind: str, prefix: str) -> Path:
    content = READERS[kind][0].replace(
        "NAME", (prefix + NAMES.get(kind, "1.png")).replace("\\", "\\\\")
    )
    path = folder / kind
    path.write_text(content if kind.endswith(".json") else content.replace("\\\\", "\\"))
    return path


@pytest.mark.parametrize(
    "prefix", ["C:\\data\\img\\", "/home/other/data/img/", "..\\old\\img\\", "E:/img/"]
)
@pytest.mark.parametrize("kind", READERS)
def test_files_of_another_computer_are_found_by_their_last_parts(folder, kind, prefix):
    path = write(folder / "data", kind, prefix)
    with pytest.warns(
        UserWarning, match=r"s are found by the last parts of their names, here img/1\."
    ):
        assert len(READERS[kind][1](path)) == 1


@pytest.mark.parametrize("kind", READERS)
def test_a_missing_file_is_looked_for_near_the_list(folder, kind):
    path = write(folder / "lists", kind, "")
    has_option = kind.startswith(("boxes", "captions"))
    option = rf"It is in {folder}/data/img: give --data.images {folder}/data/img\."
    found = option if has_option else rf"It is in {folder}/data/img, but names of .* list\."
    with pytest.raises(UserError, match=found):
        READERS[kind][1](path)
    path = write(folder / "lists", kind, "gone")
    with pytest.raises(
        UserError, match="with --data.images FOLDER." if has_option else r"\. Names of .* list\."
    ):
        READERS[kind][1](path)


def test_a_tar_near_the_list_is_suggested_and_searched_by_last_parts(tmp_path):
    (tmp_path / "1.txt").write_text("x")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for name in ("a/1.txt", "b/1.txt"):
            archive.add(tmp_path / "1.txt", arcname=name)
    (tmp_path / "1.txt").unlink()
    files = NamedFiles.from_path(tmp_path, option="--files")
    tar = tmp_path / "all.tar"
    assert str(files.missing("C:\\b\\1.txt", "here")).endswith(
        f"It is in {tar}: give --files {tar}."
    )
    archive = NamedFiles.from_path(tar)
    with pytest.warns(UserWarning, match=r"here b/1\.txt"):
        assert archive.find("C:\\b\\1.txt", "here") == "b/1.txt"
    assert not archive.has("/c/1.txt", by_last_parts=True)


def test_similar_names_are_suggested_for_the_first_missing_file(tmp_path):
    (tmp_path / "photo_17.jpg").write_text("x")
    for files in (NamedFiles.from_path(tmp_path, option="--files"), NamedFiles.from_path(tmp_path)):
        for name, has_suggestion in (("photo_17.png", True), ("photo_17.gif", False)):
            with pytest.raises(UserError) as error:
                files.resolve(name, "here")
            assert ("Did you mean 'photo_17.jpg'?" in str(error.value)) == has_suggestion


def test_more_of_the_last_parts_decide(tmp_path):
    for name in ("b/1.txt", "a/b/1.txt", "1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    files = NamedFiles.from_path(tmp_path)
    with pytest.warns(UserWarning, match="here a/b/1.txt"):
        found = [files.find(f"/x/{name}/1.txt", "here") for name in ("a/b", "c/b", "c/d")]
    assert found == ["a/b/1.txt", "b/1.txt", "1.txt"]
