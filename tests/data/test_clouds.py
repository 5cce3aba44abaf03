"""Files of point clouds, data sets of clouds with boxes, thinning, scales and batches."""

import io
import struct
from dataclasses import replace

import numpy as np
import pytest

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.config import PointsConfig
from regard.data.embedded.rooms import make_room
from regard.data.held_out import split_data
from regard.data.points.batches import CloudBatches, to_boxes, to_regions
from regard.data.points.clouds import CloudScale, middle_of, read_clouds, thin_cloud
from regard.data.points.files import parse_cloud
from regard.data.text.labels import Labels
from regard.errors import UserError

POINTS = np.array([[0.5, 1.25, -2.0, 7.0], [3.0, -4.5, 5.0, 8.0], [6.0, 7.5, 8.0, 250.0]])


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def encode(points: np.ndarray, encoding: str) -> bytes:
    """Return rows of doubles x, y, z and a byte, in text or binary."""
    if encoding == "ascii":
        return "".join(f"{x!r} {y!r} {z!r} {int(f)}\n" for x, y, z, f in points.tolist()).encode()
    order = ">" if encoding == "binary_big_endian" else "<"
    return b"".join(struct.pack(f"{order}3dB", *row[:3], int(row[3])) for row in points.tolist())


def ply(encoding: str, points: np.ndarray = POINTS, *, count: int = 0, face: bytes = b"") -> bytes:
    """Return a PLY of doubles x, y, z and bytes named intensity, by the format's description."""
    header = (
        f"ply\nformat {encoding} 1.0\ncomment made by hand\nelement vertex {count or len(points)}\n"
    )
    header += "".join(f"property double {name}\n" for name in "xyz") + "property uchar intensity\n"
    header += "element face 1\nproperty list uchar int vertex_indices\n" if face else ""
    return f"{header}end_header\n".encode() + encode(points, encoding) + face


def pcd(encoding: str, points: np.ndarray = POINTS, *, count: int = 0) -> bytes:
    """Return a PCD of doubles x, y, z and bytes named intensity."""
    count = count or len(points)
    header = (
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z intensity\n"
        f"SIZE 8 8 8 1\nTYPE F F F U\nCOUNT 1 1 1 1\nWIDTH {count}\nHEIGHT 1\n"
        f"VIEWPOINT 0 0 0 1 0 0 0\nPOINTS {count}\nDATA {encoding}\n"
    ).encode()
    if encoding != "binary_compressed":
        return header + encode(points, encoding)
    columns = points[:, :3].T.astype("<f8").tobytes() + points[:, 3].astype(np.uint8).tobytes()
    literal = b""  # LZF with literal runs only
    for i in range(0, len(columns), 32):
        part = columns[i : i + 32]
        literal += bytes([len(part) - 1]) + part
    return header + struct.pack("<II", len(literal), len(columns)) + literal


TABLE = "".join(f"{y},{x},n,{z},{f}\n" for x, y, z, f in POINTS.tolist())
FILES = {
    "npz": npz(points=POINTS[:, :3], intensity=POINTS[:, 3].astype(np.uint8), other=np.zeros(2)),
    "csv": f"y,x,note,z,intensity\n{TABLE}".encode(),
    "ply ascii": ply("ascii"),
    "ply with faces": ply("ascii", face=b"3 0 1 2\n"),
    "ply little": ply("binary_little_endian"),
    "ply big": ply("binary_big_endian", face=struct.pack(">B3i", 3, 0, 1, 2)),
    "pcd ascii": pcd("ascii"),
    "pcd binary": pcd("binary"),
    "pcd compressed": pcd("binary_compressed"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_hold_the_same_points(kind):
    assert np.array_equal(parse_cloud(FILES[kind], "cloud", ("intensity",)), POINTS)
    assert np.array_equal(parse_cloud(FILES[kind], "cloud"), POINTS[:, :3])


NAN = np.where(POINTS == -4.5, np.nan, POINTS)
BAD = {
    "no header": (b"1,2,3\n4,5,6\n", r"cloud: no column 'x'; the columns are '1', '2', '3'"),
    "no text": (b"\xff\xd8\xff\xe0\x01", "cloud, line 1: not UTF-8"),
    "no number": (b"x,y,z\n1,2,3\n1,two,3\n", "cloud, line 3: expected a number, got 'two'"),
    "unequal dimension": (b"x,y,z\n1,2,3\n1,2\n", "cloud, line 3: expected 3 cells, got 2"),
    "flat": (npz(points=np.zeros((4, 2))), r"expected points \(points, 3\) .* got points \(4, 2\)"),
    "objects": (npz(points=np.array([[1, 2, None]])), "Object arrays cannot be loaded"),
    "infinite": (npz(points=np.array([[0, np.inf, 2.0]])), "point 1 needs numbers .* got 0, inf"),
    "no points": (npz(points=np.zeros((0, 3))), "cloud: contains no point"),
    "npz that is cut": (npz(points=np.zeros((99, 3)))[:500], "cloud: expected arrays of NumPy"),
    "ply text nan": (ply("ascii", NAN), "cloud: point 2 needs numbers .* got 3, nan, 5"),
    "ply no number": (ply("ascii").replace(b"-4.5", b"five"), "cloud: not a PLY of points, or dam"),
    "ply that is cut": (ply("binary_big_endian")[:-4], "not a PLY of points, or damaged"),
    "ply text that lies": (ply("ascii", count=99), "states 99 points, it holds 3"),
    "ply without z": (ply("ascii").replace(b"double z", b"double h"), "KeyError"),
    "pcd that lies": (pcd("binary", count=99), "states 99 points, it holds 3"),
    "pcd of wide points": (
        pcd("binary").replace(b"COUNT 1 1", b"COUNT 1000000 1"),
        "cloud: a point may have 10,000 numbers, its header states 1,000,003",
    ),
    "pcd that is cut": (pcd("binary_compressed")[:-20], "not a PCD of points, or damaged"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named_with_the_place(kind):
    content, message = BAD[kind]
    with pytest.raises(UserError, match=message):
        parse_cloud(content, "cloud")


def test_a_missing_feature_is_named():
    for kind in ("npz", "csv", "ply ascii", "pcd binary"):
        with pytest.raises(UserError, match=r"cloud.*reflectance"):
            parse_cloud(FILES[kind], "cloud", ("reflectance",))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "trimesh.exchange.ply", None)
    with pytest.raises(UserError, match=r'cloud needs trimesh: pip install -e "\.\[points\]"'):
        parse_cloud(FILES["ply ascii"], "cloud")


def write(folder, lines: str, **clouds: np.ndarray):
    (folder / "boxes.csv").write_text("file,x,y,z,dx,dy,dz,label\n" + lines, encoding="utf-8")
    for name, points in clouds.items():
        np.savez(folder / f"{name}.npz", points=points)
    return folder / "boxes.csv"


def test_a_table_names_clouds_and_boxes(tmp_path):
    a, b = np.random.default_rng(1).uniform(0, 2, (2, 30, 3))
    rows = "a.npz,1,1,1,0.5,0.6,0.7,chair\nb.npz,,,,,,,\na.npz,0,2,1,1,1,1,table\n"
    path = write(tmp_path, rows, a=a, b=b)
    data = read_clouds(path, PointsConfig(train=("boxes.csv",)))
    assert [item.file for item in data.items] == ["a.npz", "b.npz"]
    assert data.items[0].labels == ("chair", "table")
    assert data.items[0].boxes.tolist() == [[1, 1, 1, 0.5, 0.6, 0.7], [0, 2, 1, 1, 1, 1]]
    assert data.items[1].boxes.shape == (0, 6)
    assert data.labels.names == ("chair", "table")
    assert np.array_equal(data.load(1), thin_cloud(b, 99))


BAD_ROWS = {
    "a.npz,1,1,1,0,0.6,0.7,chair": "line 2: expected sizes of at least",
    "a.npz,1,one,1,1,0.6,0.7,chair": "line 2: expected a number, got 'one'",
    "a.npz,1,1,1,1,0.6,0.7,": "line 2: expected a label, got none",
    ",1,1,1,1,0.6,0.7,chair": "line 2: expected the name of a file",
    "c.npz,1,1,1,1,0.6,0.7,chair": r"line 2: .*c.npz: no such file",
    "a.npz,1,1,1,1,0.6,chair": "line 2: expected 8 cells",
}


@pytest.mark.parametrize("row", BAD_ROWS)
def test_bad_rows_are_named_or_left_out(row, tmp_path):
    cloud = np.random.default_rng(1).uniform(0, 2, (30, 3))
    path = write(tmp_path, f"{row}\nb.npz,1,1,1,1,1,1,chair\n", a=cloud, b=cloud)
    with pytest.raises(UserError, match=BAD_ROWS[row]):
        read_clouds(path, PointsConfig())
    data = read_clouds(path, PointsConfig(on_bad="skip"))
    assert len(data.notices) == 1
    assert data.items[-1].file == "b.npz"
    assert sum(len(item.labels) for item in data.items) == 1


def test_features_must_be_different_names():
    for features in (("x",), ("a", "a")):
        with pytest.raises(UserError, match="`features` must be different names"):
            PointsConfig(train=("a.csv",), features=features)
    with pytest.raises(UserError, match="`features` must be empty for synthetic rooms"):
        PointsConfig(features=("a",))


def test_thinning_keeps_means_of_cells_in_any_order():
    draw = np.random.default_rng(3)
    points = draw.uniform(-5, 5, (500, 4))
    thin = thin_cloud(points, 60)
    assert 30 < len(thin) <= 60
    assert np.array_equal(thin_cloud(points[draw.permutation(500)], 60), thin)  # to the last bit
    few = thin_cloud(points[:60], 60)
    assert np.array_equal(few, points[:60][np.lexsort(points[:60].T[::-1])])
    eight = np.array([[x, y, z] for x in (0.0, 9.0) for y in (0.0, 9.0) for z in (0.0, 9.0)])
    cells = thin_cloud(np.concatenate((eight, eight + 0.1, eight + np.array([0.2, 0, 0]))), 8)
    np.testing.assert_allclose(cells, eight + np.array([0.1, 0.1 / 3, 0.1 / 3]), atol=1e-12)
    assert len(thin_cloud(np.ones((100, 3)), 16)) == 1  # all points at one place


def dataset(count: int = 3) -> AnnotatedDataset:
    draw, clouds, items = np.random.default_rng(5), [], []
    for i in range(count):
        clouds.append(draw.uniform(0, (4, 3, 2, 9), (20 + i, 4)) + np.array([100, -50, 3, 0]))
        boxes = np.array([[102.0, -49, 4, 1, 0.5, 0.6], [101.0, -48, 3.5, 0.4, 0.8, 1.0]])[: i % 3]
        items.append(Annotated(f"{i}", boxes, ("chair", "bed")[: i % 3], f"cloud {i}"))
    return AnnotatedDataset(tuple(items), clouds.__getitem__, "clouds")


def test_scales_hold_all_points_and_boxes(tmp_path):
    data = dataset()
    scale = CloudScale.measure(data)
    features = np.concatenate([data.load(i)[:, 3] for i in range(3)])
    assert scale.means == pytest.approx([features.mean()])
    assert scale.deviations == pytest.approx([features.std()])
    assert scale.extent[0] == scale.extent[1]
    for i, item in enumerate(data.items):
        points, middle = data.load(i), middle_of(data.load(i))
        normalized = scale.normalize(points)[:, :3]
        assert (np.abs(normalized) < np.array(scale.extent) / 2).all()
        np.testing.assert_allclose(normalized, points[:, :3] - middle, atol=1e-6)
        boxes = item.boxes - np.array([*middle, 0, 0, 0])
        np.testing.assert_allclose(to_boxes(to_regions(boxes, scale), scale), boxes, atol=1e-12)
    scale.save(tmp_path / "points.json")
    assert CloudScale.load(tmp_path / "points.json") == scale


def test_augmentation_moves_boxes_with_their_points():
    """Points at the corners of a box stay at its corners, whatever is drawn."""
    corners = np.array([[x, y, z] for x in (1.0, 2.0) for y in (0.5, 0.9) for z in (0.2, 1.0)])
    cloud = np.concatenate((corners, [[-3.0, -3, -1], [3.0, 3, 2]]))
    boxes = np.array([[1.5, 0.7, 0.6, 1.0, 0.4, 0.8]])
    data = AnnotatedDataset((Annotated("a", boxes, ("chair",), "a"),), lambda _: cloud, "clouds")
    scale, seen = CloudScale((8.0, 8.0, 4.0)), set()
    batches = CloudBatches(data, Labels(("chair",)), scale, rows=1, seed=0, augment=True)
    for epoch in range(40):
        batch = batches.collate(epoch, (0,))
        points = batch.source.items[0].numpy()
        box = to_boxes(batch.target.regions[0].double().numpy(), scale)[0]
        first, last = box[:3] - box[3:] / 2, box[:3] + box[3:] / 2
        on = ((np.abs(points - first) < 1e-4) | (np.abs(points - last) < 1e-4)).all(1)
        assert on.sum() == 8
        assert box[5] == pytest.approx(0.8 * box[3:].prod() ** (1 / 3) / 0.32 ** (1 / 3), rel=1e-4)
        seen.add((tuple(np.sign(box[:2])), bool(box[3] > box[4])))
    assert len(seen) == 8  # four quadrants, two directions
    plain = CloudBatches(data, Labels(("chair",)), scale, rows=1, seed=0).collate(0, (0,))
    box = to_boxes(plain.target.regions[0].double().numpy(), scale)[0]
    assert np.allclose(box[3:], boxes[0, 3:], atol=1e-5)


def test_labels_that_are_not_known_are_named():
    message = "cloud 2: label 'bed' does not occur in the training clouds"
    with pytest.raises(UserError, match=message):
        CloudBatches(dataset(), Labels(("chair",)), CloudScale((9.0, 9, 9)), rows=1, seed=0)


def test_rooms_are_a_function_of_seed_and_number():
    (points, boxes, labels), again = make_room("train", 4, 7), make_room("train", 4, 7)
    assert np.array_equal(points, again[0])
    assert np.array_equal(boxes, again[1])
    assert labels == again[2]
    assert not np.array_equal(points[:5], make_room("train", 4, 8)[0][:5])
    assert not np.array_equal(points[:5], make_room("val", 4, 7)[0][:5])
    assert len(boxes) == len(labels) >= 1
    for box in boxes:  # every labeled piece is seen, and pieces do not overlap
        inside = (np.abs(points - box[:3]) < box[3:] / 2 + 0.05).all(1)
        assert inside.sum() >= 15
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert (np.abs(a[:2] - b[:2]) > (a[3:5] + b[3:5]) / 2).any()


def test_holding_out_keeps_clouds_and_boxes_together():
    data = replace(dataset(5), notices=("one",))
    train, validation = split_data(data, 0.4, "clouds", seed=3)
    names = [[item.file for item in part.items] for part in (train, validation)]
    assert (sorted(names[0] + names[1]), len(names[1])) == (["0", "1", "2", "3", "4"], 2)
    assert train.notices == ("one",)
    assert "are held out" in validation.notices[0]
    assert np.array_equal(train.load(2), data.load(int(names[0][2])))
    assert np.array_equal(validation.load(1), data.load(int(names[1][1])))
