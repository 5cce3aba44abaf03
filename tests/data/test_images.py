"""Images of folders, lists and IDX files, and messages about invalid files."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.config import ImagesConfig
from regard.data.held_out import split_data
from regard.data.images.dataset import load_digits, read_images
from regard.data.images.image_batches import ImageBatches
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
            image = Image.fromarray(np.full((6, 5), value + number, np.uint8))
            image.save(tmp_path / "all" / name / f"{number}.png")
    return tmp_path / "all"


def test_idx_files_are_read_with_the_labels_beside_them(pair):
    images = read_images(pair, ImagesConfig())
    assert images.pixels.shape == (3, 1, 2, 4)
    assert images.pixels[1, 0].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert images.labels == ("7", "0", "7")
    pair.with_name("t-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"t-labels-idx1-ubyte.gz: no such file"):
        read_images(pair, ImagesConfig())


def test_folder_names_are_classes_and_images_have_one_size(folder):
    images = read_images(folder, ImagesConfig())
    assert images.pixels.shape == (6, 1, 6, 5)
    assert images.labels == ("cat",) * 3 + ("dog",) * 3
    assert images.pixels[4].max() == images.pixels[4].min() == 201
    assert read_images(folder, ImagesConfig(size=8, color="rgb")).pixels.shape == (6, 3, 8, 8)


def test_test_images_are_resized_to_those_of_training(folder, pair):
    for path, size in ((folder, 6), (pair, 3)):
        images = read_images(path, ImagesConfig(), (3, 8, 4), resizes=True)
        assert images.pixels.shape == (size, 3, 8, 4)


def test_augmented_images_are_shifted_by_up_to_an_eighth_and_flipped():
    image = np.random.default_rng(1).integers(1, 256, (1, 16, 22), np.uint8)
    for names in (("shift",), ("shift", "flip")):
        batches = ImageBatches(image[None], np.array([0]), rows=1, seed=1, augment=names)
        flipped = 0
        for epoch in range(30):
            found = (batches.collate(epoch, (0,)).source[0, 0] * 255).byte().numpy()
            places = []
            for step in (1, -1):
                padded = np.pad(image[0, :, ::step], 2)
                for down in range(5):
                    for right in range(5):
                        if (padded[down : down + 16, right : right + 22] == found).all():
                            places.append(step)
            assert len(places) == 1
            flipped += places[0] == -1
        assert (0 < flipped < 30) == ("flip" in names)


def test_bad_images_are_an_error_or_skipped(folder):
    (folder / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"9.png: not an image of .*--data.on-bad"):
        read_images(folder, ImagesConfig())
    images = read_images(folder, ImagesConfig(on_bad="skip"))
    assert len(images) == 6
    assert len(images.notices) == 1
    (folder / "cat" / "9.png").unlink()
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(folder / "dog" / "small.png")
    with pytest.raises(UserError, match=r"small.png: has 3 x 3 pixels, expected 5 x 6"):
        read_images(folder, ImagesConfig())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0" * 40, "expected magic number 2051, got 0"),
        (np.array([2051, 3, 2, 4], ">i4").tobytes() + bytes(23), "or truncated: cannot reshape"),
        (np.array([2051, 2, 2, 4], ">i4").tobytes() + bytes(16), "has 2 images, but t-labels-idx1"),
    ],
)
def test_damaged_idx_files_are_refused(pair, content, message):
    pair.write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=message):
        read_images(pair, ImagesConfig())


def test_hidden_files_are_ignored_and_others_counted(folder):
    for name in (".DS_Store", "._0.png", ".hidden/0.png", "a.heic", "more/b.heic"):
        (folder / "cat" / name).parent.mkdir(exist_ok=True)
        (folder / "cat" / name).write_bytes(b"x")
    (folder / "cat" / "0.png").rename(folder / "cat" / "more" / "0.PNG")
    images = read_images(folder, ImagesConfig())
    assert images.labels == ("cat",) * 3 + ("dog",) * 3
    assert images.notices == (f"{folder}: skipped 2 other files; first: {folder}/cat/a.heic.",)


def test_list_names_line_and_image(folder):
    (folder / "list.csv").write_text("file,label\ncat/0.png,a\ndog/9.png,b\n")
    with pytest.raises(UserError, match=r"list.csv, line 3.*: .*dog/9.png: no such file"):
        read_images(folder / "list.csv", ImagesConfig())
    images = read_images(folder / "list.csv", ImagesConfig(on_bad="skip"))
    assert (images.labels, len(images.notices)) == (("a",), 1)


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="contains no file that can be read"):
        read_images(tmp_path, ImagesConfig())
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="expected a folder of images for each class"):
        read_images(tmp_path, ImagesConfig())


def test_validation_split_is_random():
    digits = load_digits("train")
    train, val = split_data(digits, 0.1, "images", seed=5)
    assert sorted(train.locations + val.locations) == sorted(digits.locations)
    assert val.locations != digits.locations[-130:]
    assert (len(val), len(val.notices)) == (130, 1)


def test_embedded_digits_are_complete_and_bright():
    counts = [len(load_digits(split)) for split in ("train", "val", "test")]
    assert counts == [1300, 200, 297]
    digits = load_digits("train")
    assert digits.pixels.shape[1:] == (1, 8, 8)
    assert digits.pixels.max() == 255
    assert set(digits.labels) == set("0123456789")


@pytest.mark.parametrize(
    ("target", "names"), [("class", ("shift",)), ("labels", ("shift",)), ("number", ())]
)
def test_numbers_have_no_augmentation_by_default(target, names):
    data = ImagesConfig(target=target, train=("list.csv",))
    assert ImagesRunConfig(data=data).used_augment == names
    for given in (("crop", "flip"), ("none",)):
        expected = () if given == ("none",) else given
        assert ImagesRunConfig(data=data, augment=given).used_augment == expected
    with pytest.raises(UserError, match="augment must be none or other names, got flip none"):
        ImagesRunConfig(data=data, augment=("flip", "none"))


def test_numbers_are_not_mixed():
    data = ImagesConfig(target="number", train=("list.csv",))
    with pytest.raises(UserError, match=r"mixup must be 0 for data\.target number"):
        ImagesRunConfig(data=data, mixup=0.2)
