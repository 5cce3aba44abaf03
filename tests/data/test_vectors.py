"""Vectors of numbers: files of every format, synthetic curves, errors with file and row."""

import gzip

import numpy as np
import pytest

from regard.data.config import VectorsConfig
from regard.data.vectors import make_curve, parse_vector, read_vectors
from regard.errors import UserError

ROWS = np.array([[1.5, -2.0, 3.0], [0.25, 1e3, -4.5]])


def test_every_format_gives_the_same_vectors(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    np.savez(tmp_path / "a.npz", y=ROWS.astype(np.float32), other=np.zeros(3))
    (tmp_path / "a.csv").write_text("x,y,z\n1.5,-2,3\n\n0.25,1e3,-4.5\n")
    (tmp_path / "a.tsv").write_text("1.5\t-2\t3\n0.25\t1e3\t-4.5\n")
    (tmp_path / "a.txt").write_text("1.5 -2  3\n0.25 1e3 -4.5\n")
    (tmp_path / "b.txt").write_text("1.5, -2,3\n0.25 1e3 -4.5\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y,z\n1.5,-2,3\n0.25,1e3,-4.5\n"))
    for name in ("a.npy", "a.npz", "a.csv", "a.tsv", "a.txt", "b.txt", "a.csv.gz"):
        vectors = read_vectors(tmp_path / name, VectorsConfig(), size=3)
        assert vectors.values.dtype == np.float32
        assert np.array_equal(vectors.values, ROWS.astype(np.float32)), name
        assert len(vectors) == 2
        assert vectors.notices == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n1,2\n3,b\n", r"a.csv, line 3: expected a number, got 'b'"),
        ("x,y\n1,2\n3\n", r"a.csv, line 3: expected 2 numbers, got 1 \('3'\)"),
        ("x,y\n1,2,3\n", r"a.csv, line 2: expected 2 numbers, got 3 \('1, 2, 3'\)"),
        ("x,y\n,1,2\n", r"a.csv, line 2: expected 2 numbers, got 3 \(', 1, 2'\)"),
        ("x,y\n,2\n", r"a.csv, line 2: expected a number, got ''"),
        ("x,y\n1 2,3\n", r"a.csv, line 2: expected a number, got '1 2'"),
        ("x,y\n1_000,2\n", r"a.csv, line 2: expected a number, got '1_000'"),
        ("x,y\n1,-1e39\n", r"a.csv, line 2: expected numbers up to 3.403e\+38, got -1e\+39"),
        ("x,y,y\n1,2,3\n", r"a.csv, line 1: expected columns of different names, got x, y, y"),
        ("x,y\n1,nan\n", r"line 2: expected a number, got 'nan'"),
        ("x,y\n", "has no usable rows"),
    ],
)
def test_bad_text_is_named_by_line(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_vectors(path, VectorsConfig())
    assert str(path) in str(caught.value)


def test_bad_rows_are_left_out_on_request(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\nx,3\n4,5\n")
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [np.inf, 3.0], [4.0, 5.0]]))
    for name, where in (("a.csv", "line 3"), ("a.npy", "row 2")):
        vectors = read_vectors(tmp_path / name, VectorsConfig(on_bad="skip"))
        assert vectors.values.tolist() == [[1.0, 2.0], [4.0, 5.0]]
        assert len(vectors.notices) == 1
        assert where in vectors.notices[0]
    with pytest.raises(UserError, match="row 2: expected finite numbers"):
        read_vectors(tmp_path / "a.npy", VectorsConfig())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), r"expected numbers of shape \(rows, numbers\), got float64 of shape \(3,\)"),
        (np.zeros((3, 0)), r"got float64 of shape \(3, 0\)"),
        (np.array([["a", "b"]]), r"expected numbers of shape .* got <U1"),
        (np.zeros((0, 2)), "has no usable rows"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "a.npy", VectorsConfig())


def test_damaged_and_pickled_files_are_refused(tmp_path):
    np.save(tmp_path / "whole.npy", ROWS)
    whole = (tmp_path / "whole.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-5])
    (tmp_path / "text.npy").write_text("1,2\n")
    np.save(tmp_path / "objects.npy", np.array([[object()]]), allow_pickle=True)
    np.savez(tmp_path / "unnamed.npz", x=ROWS)
    for name, message in (
        ("cut.npy", "expected arrays of NumPy"),
        ("text.npy", "expected arrays of NumPy .*pickle"),
        ("objects.npy", "Object arrays cannot be loaded"),
        ("unnamed.npz", "expected arrays of NumPy .*y is not a file in the archive"),
        ("none.npy", "no such file"),
        ("a.png", r"expected a file of vectors, \.npy"),
    ):
        with pytest.raises(UserError, match=message):
            read_vectors(tmp_path / name, VectorsConfig())
    message = r"expected numbers of shape \(rows, 2\), got float64 of shape \(2, 3\)"
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "whole.npy", VectorsConfig(), size=2)


def test_curves_are_those_of_their_formulas():
    config = VectorsConfig(deviation=0.0, samples=50, val_share=0.2)
    ellipse = make_curve(config, "train").values
    assert ellipse.shape == (50, 2)
    assert np.hypot(*(ellipse / (2, 1.5)).T) == pytest.approx(np.ones(50), rel=1e-5)
    spiral = make_curve(VectorsConfig(deviation=0.0, curve="spiral"), "test").values
    angle = np.arctan2(spiral[:, 1], spiral[:, 0]) % (2 * np.pi)
    assert np.hypot(*spiral.T) == pytest.approx(angle / np.pi, abs=1e-5)
    val, test = make_curve(config, "val").values, make_curve(config, "test").values
    assert len(val) == len(test) == 10
    assert not np.isin(val, test).any()
    noisy = make_curve(VectorsConfig(deviation=0.05), "train").values
    assert 0.03 < np.abs(np.hypot(noisy[:, 0] / 2, noisy[:, 1] / 1.5) - 1).std() * 1.75 < 0.07


@pytest.mark.parametrize(
    "given", ["1, 2", "1,2\n", " 1\t2 ", [1, 2.0], (1.0, 2), np.array([1, 2]), np.float32([1, 2])]
)
def test_inputs_are_texts_or_sequences(given):
    assert parse_vector(given, 2) == [1.0, 2.0]


@pytest.mark.parametrize(
    "given",
    [
        "1",
        "1, 2, 3",
        "a, b",
        "1\xa02",
        "",
        [float("nan"), 1],
        "1;2",
        "1,,2",
        ",1,2",
        "1,2,",
        "1, 2 3",
    ],
)
def test_other_inputs_are_refused(given):
    with pytest.raises(UserError, match=r"expected (2 numbers|a number), got"):
        parse_vector(given, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,x,b\n1,2,3\n4,,5\n", r"a.csv, line 3: expected a number, got ''"),
        ("x,a,b\n,0.2,1,2\n", r"a.csv, line 2: expected 3 numbers, got 4"),
        ("x,a,x\n1,2,3\n", r"a.csv, line 1: expected columns of different names, got x, a, x"),
        ("a,x,b\n1,2,3\n4,nan,5\n", r"a.csv, line 3: expected a number, got 'nan'"),
        ("a,b\n1,2\n", r"a.csv, line 1: expected the column 'x' and others, got a, b"),
        ("x\n1\n", r"a.csv, line 1: expected the column 'x' and others, got x"),
    ],
)
def test_a_damaged_or_missing_condition_is_named_by_line(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    config = VectorsConfig(train=("a.csv",), condition="x")
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "a.csv", config)


def test_cells_of_each_format_are_separated_by_its_separator_alone(tmp_path):
    (tmp_path / "a.csv").write_text('"a","x","b"\n"1.5","-2"," 3"\n')
    (tmp_path / "a.tsv").write_text("a\tx\tb\n1.5\t-2\t 3\n")
    (tmp_path / "a.txt").write_text("a x\tb\n1.5  -2\t3\n")
    config = VectorsConfig(train=("a.csv",), condition="x", header="yes")
    for name in ("a.csv", "a.tsv", "a.txt"):
        vectors = read_vectors(tmp_path / name, config)
        assert vectors.values.tolist() == [[-2, 1.5, 3]], name
        assert vectors.names == ("x", "a", "b")
    for name, row in (("a.tsv", "1\t\t2"), ("a.tsv", "1 2\t3"), ("a.txt", "1,2 3")):
        (tmp_path / name).write_text(f"{row}\n")
        with pytest.raises(UserError, match=f"{name}, line 1: expected a number, got "):
            read_vectors(tmp_path / name, VectorsConfig())


def test_columns_are_matched_by_name(tmp_path):
    path, config = tmp_path / "a.csv", VectorsConfig()
    path.write_text("b,c,a\n1,2,3\n")
    vectors = read_vectors(path, config, size=3, names=("a", "b", "c"))
    assert vectors.values.tolist() == [[3, 1, 2]]
    assert vectors.names == vectors.take([0]).names == ("a", "b", "c")
    for names in (("a", "b"), ("a", "b", "d"), ("a", "b", "c", "d")):
        message = f"a.csv, line 1: expected the columns {', '.join(names)}, got b, c, a"
        with pytest.raises(UserError, match=message):
            read_vectors(path, config, size=len(names), names=names)
    # A run of files without headers has no names: by position.
    assert read_vectors(path, config, size=3).values.tolist() == [[1, 2, 3]]
    with pytest.raises(UserError, match="line 1: expected 2 columns of numbers, got b, c, a"):
        read_vectors(path, config, size=2)


def test_arrays_beyond_float32_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [1e39, 3.0]]))
    with pytest.raises(UserError, match="row 2: expected finite numbers"):
        read_vectors(tmp_path / "a.npy", VectorsConfig())


def test_arrays_of_a_condition_are_checked(tmp_path):
    config, x = VectorsConfig(train=("a.npz",), condition="x"), np.array([0.5, np.nan])
    np.save(tmp_path / "a.npy", ROWS)
    for arrays, message in (
        ({"x": x}, "a.npz, row 2: expected finite numbers"),
        ({"x": x[:1]}, r"a.npz: expected numbers x of shape \(2,\), got float64 of shape \(1,\)"),
        ({"other": x}, "x is not a file in the archive"),
    ):
        np.savez(tmp_path / "a.npz", y=ROWS, **arrays)
        with pytest.raises(UserError, match=message):
            read_vectors(tmp_path / "a.npz", config)
    with pytest.raises(UserError, match=r"a.npy: has no names, expected a header or .npz with 'x'"):
        read_vectors(tmp_path / "a.npy", config)


def test_a_horn_is_that_of_its_formula():
    config = VectorsConfig(deviation=0.0, curve="horn")
    x, first, second = make_curve(config, "train").values.T
    assert 0 <= x.min() < 0.05
    assert 0.95 < x.max() <= 1
    growth = np.exp(2 * x)
    radius = np.hypot(first / growth / (2 - x / 2), second / growth / (1.5 + x / 2))
    assert radius == pytest.approx(np.ones(1000), rel=1e-5)


def test_header_is_an_option(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1\n1.5,2\n")
    assert read_vectors(path, VectorsConfig()).values.tolist() == [[1.5, 2]]
    assert read_vectors(path, VectorsConfig(header="no")).values.tolist() == [[0, 1], [1.5, 2]]
