"""Images of folders and IDX files, and messages about invalid files."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.config import ImagesConfig
from regard.data.images.dataset import load_digits, read_images, split_validation
from regard.errors import UserError
from regard.recipes.images.config import ImagesRunConfig


def write_idx(path: Path, array: np.ndarray) -> Path:
    magic = 2051 if array.ndim == 3 else 2049
    header = np.array([magic, *array.shape], ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    pixels = np.arange(3 * 2 * 4).reshape(3, 2, 4)
    write_idx(tmp_path / "t-labels-idx1-ubyte.gz", np.array([7, 0, 7]))
    return write_idx(tmp_path / "t-images-idx3-ubyte.gz", pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in (("cat", 10), ("dog", 200)):
        (tmp_path / "all" / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((6, 5), value + number, np.uint8)).save(
                tmp_path / "all" / name / f"{number}.png"
            )
    return tmp_path / "all"


def test_idx_files_are_read_with_the_labels_beside_them(pair):
    images = read_images(pair, ImagesConfig())
    assert images.pixels.shape == (3, 1, 2, 4)
    assert images.pixels[1, 0].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert images.labels == ("7", "0", "7")


def test_folder_names_are_classes_and_images_have_one_size(folder):
    images = read_images(folder, ImagesConfig())
    assert images.pixels.shape == (6, 1, 6, 5)
    assert images.labels == ("cat",) * 3 + ("dog",) * 3
    assert images.pixels[4].max() == images.pixels[4].min() == 201
    assert read_images(folder, ImagesConfig(size=8, color="rgb")).pixels.shape == (6, 3, 8, 8)


def test_bad_images_are_an_error_or_skipped(folder):
    (folder / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"9.png: not a readable image .*--data.on-bad"):
        read_images(folder, ImagesConfig())
    images = read_images(folder, ImagesConfig(on_bad="skip"))
    assert len(images) == 6
    assert len(images.skipped) == 1
    (folder / "cat" / "9.png").unlink()
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(folder / "dog" / "small.png")
    with pytest.raises(
        UserError, match=r"small.png: has 3 x 3 pixels, but the images before it have 5 x 6"
    ):
        read_images(folder, ImagesConfig())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"xx"), "not a gzip file"),
        (
            lambda path: path.write_bytes(gzip.compress(b"\0" * 40)),
            "not an IDX file of images: expected magic number 2051, got 0",
        ),
        (
            lambda path: write_idx(path, np.zeros((3, 2, 4))) and _truncate(path),
            "its header states 3 x 2 x 4 bytes, but the file holds 23",
        ),
        (
            lambda path: write_idx(path, np.zeros((2, 2, 4))),
            "has 2 images, but t-labels-idx1-ubyte.gz has 3 labels",
        ),
        (
            lambda path: path.with_name("t-labels-idx1-ubyte.gz").unlink(),
            "its labels must be in t-labels-idx1",
        ),
    ],
)
def test_damaged_idx_files_are_refused(pair, damage, message):
    damage(pair)
    with pytest.raises(UserError, match=message):
        read_images(pair, ImagesConfig())


@pytest.mark.parametrize(
    "sizes", [(30, 0, 0), (-30, -8, 8), (4194304, 2097152, 2097152), (3, 2, 5), (2**31 - 1,) * 3]
)
def test_sizes_of_idx_files_are_checked(pair, sizes):
    pair.write_bytes(gzip.compress(np.array([2051, *sizes], ">i4").tobytes() + bytes(24)))
    with pytest.raises(
        UserError,
        match=r"t-images-idx3-ubyte.gz: (its header states .* bytes, but|sizes in the header must "
        r"be at least 1)",
    ):
        read_images(pair, ImagesConfig())


@pytest.mark.parametrize("length", range(40))
def test_truncated_idx_file_is_refused(pair, length):
    content = gzip.decompress(pair.read_bytes())
    path = pair.with_suffix("")
    path.write_bytes(content[:length])
    with pytest.raises(UserError, match=r"t-images-idx3-ubyte: "):
        read_images(path, ImagesConfig())


def test_damaged_gzip_is_refused(pair):
    packed = bytearray(pair.read_bytes())
    packed[10:14] = b"\xff\xff\xff\xff"
    pair.write_bytes(bytes(packed))
    with pytest.raises(
        UserError, match=r"t-images-idx3-ubyte.gz: the gzip file is (damaged|cut off)"
    ):
        read_images(pair, ImagesConfig())


def test_list_names_line_and_image(folder):
    (folder / "list.csv").write_text("file,label\ncat/0.png,a\ndog/9.png,b\n")
    with pytest.raises(UserError, match=r"list.csv, line 3 .dog/9.png.: .*dog/9.png: no such file"):
        read_images(folder / "list.csv", ImagesConfig())
    for content in (
        "cat/0.png,a\rcat/1.png,b\r",
        'cat/0.png,a\ncat/1.png,"b\n',
        "cat/0.png," + "x" * 200_000,
    ):
        (folder / "list.csv").write_text(content)
        with pytest.raises(
            UserError, match=r"list.csv, line [12]: (not a valid row of CSV|contains a carr)"
        ):
            read_images(folder / "list.csv", ImagesConfig())


def test_list_of_another_computer_finds_images_by_the_last_part_of_their_names(folder, tmp_path):
    expected = read_images(folder, ImagesConfig()).pixels[:2]
    for names in (
        ("/home/x/cat/0.png", "/home/x/cat/1.png"),
        ("C:\\x\\0.PNG", "C:\\x\\1.png"),
        ("0.PNG", "./1.PNG"),
    ):
        (folder / "cat" / "list.csv").write_text(f"file,label\n{names[0]},a\n{names[1]},b\n")
        with pytest.warns(
            UserWarning, match=r"images are found by the last parts of their names, here 0.png"
        ):
            found = read_images(folder / "cat" / "list.csv", ImagesConfig())
        assert (found.pixels == expected).all()
    (folder / "cat" / "list.csv").write_text("file,label\n/x/0.png,a\n/y/0.png,b\n")
    with (
        pytest.warns(UserWarning, match="by the last part"),
        pytest.raises(UserError, match=r"/x/0.png and /y/0.png would both be the file 0.png"),
    ):
        read_images(folder / "cat" / "list.csv", ImagesConfig())
    with pytest.warns(UserWarning, match="by the last part"):
        assert (
            len(read_images(folder / "cat" / "list.csv", ImagesConfig(on_bad="skip")).skipped) == 1
        )
    outside, twice = folder / "dog" / "0.png", "./0.png,a\n0.png,a\n"
    (folder / "cat" / "list.csv").write_text(f"file,label\n{outside},a\n../dog/1.png,b\n{twice}")
    assert read_images(folder / "cat" / "list.csv", ImagesConfig()).pixels[:, 0, 0, 0].tolist() == [
        200,
        201,
        10,
        10,
    ]


def test_memory_of_a_data_set_is_limited(folder, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    for size, is_refused in ((512, False), (1024, True)):
        config = ImagesConfig(size=size)
        if is_refused:
            with pytest.raises(
                UserError, match=r"1.png: the images up to here take more than 4,194,304 bytes"
            ):
                read_images(folder, config)
        else:
            assert len(read_images(folder, config)) == 6


def _truncate(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        read_images(tmp_path / "nowhere", ImagesConfig())
    with pytest.raises(UserError, match="expected a folder for each class"):
        read_images(tmp_path, ImagesConfig())
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match="contains no image"):
        read_images(tmp_path, ImagesConfig())


def test_validation_split_is_random():
    digits = load_digits("train")
    train, val = split_validation(digits, 0.1, seed=5)
    assert sorted(train.locations + val.locations) == sorted(digits.locations)
    assert val.locations != digits.locations[-130:]
    assert (len(val), val.notices) == (130, split_validation(digits, 0.1, seed=6)[1].notices)


def test_embedded_digits_are_complete_and_bright():
    counts = [len(load_digits(split)) for split in ("train", "val", "test")]
    assert counts == [1300, 200, 297]
    digits = load_digits("train")
    assert digits.pixels.shape[1:] == (1, 8, 8)
    assert digits.pixels.max() == 255
    assert set(digits.labels) == set("0123456789")


@pytest.mark.parametrize(
    ("target", "augment"), [("class", "shift"), ("labels", "shift"), ("number", "none")]
)
def test_numbers_have_no_augmentation_by_default(target, augment):
    data = ImagesConfig(target=target, train="list.csv")
    assert ImagesRunConfig(data=data).used_augment == augment
    assert ImagesRunConfig(data=data, augment="shift-flip").used_augment == "shift-flip"
