"""Files of trajectories: separators, headers and invalid lines."""

import pytest

from regard.data.track_files import parse_frames, read_frames, sort_ids
from regard.errors import UserError

EXPECTED = {780.0: {"1": (8.5, -3.0), "2": (0.0, 1.0)}, 790.0: {"1": (9.0, -2.5)}}


@pytest.mark.parametrize(
    "content",
    [
        "780\t1\t8.5\t-3\n790.0 1.0 9 -2.5\n\n780 2 0 1\n",
        "780,1,8.5,-3\n790,1,9,-2.5,\n# a comment\n780, 2, 0, 1\n",
        "Frame;ID;X;Y\r\n780;1;8.5;-3\r\n790;1;9;-2.5\r\n780;2;0;1\r\n",
        "# frame id ...\nid frame_id y x\n1 780 -3 8.5\n1 790 -2.5 9\n2 780 1 0\n",
        "frame id x z y vx vz vy\n780 1 8.5 0 -3 7 7 7\n790 1 9 0 -2.5 7 7 7\n780 2 0 0 1 7 7 7\n",
        ",frame,track_id,pos_x,pos_y,label\n0,780,1,8.5,-3,a b\n1,790,1,9,-2.5,\n2,780,2,0,1,c\n",
    ],
)
def test_columns_are_recognized_by_separators_and_header(tmp_path, content):
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    frames, skipped = read_frames(tmp_path / "a.txt")
    assert frames == EXPECTED
    assert not skipped


def test_frames_may_be_milliseconds_and_ids_strings_or_large_integers(tmp_path):
    lines = "1700000000000 9007199254740993 0 0\n1700000000001 9007199254740992 0 0\n1700000000001 anna-1 1 1\n"
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    frames, _ = read_frames(tmp_path / "a.txt")
    assert [[*positions] for positions in frames.values()] == [
        ["9007199254740993"],
        ["9007199254740992", "anna-1"],
    ]
    assert [*frames] == [1.7e12, 1.7e12 + 1]


def test_ids_are_sorted_as_numbers_before_strings():
    assert sort_ids({"b", "10", "9", "a"}) == ["9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", "expected four columns frame, id, x, y, got '1 2 3'"),
        (
            "1 2 3 4 5",
            "four columns frame, id, x, y, got '1 2 3 4 5'; a header selects columns, such as: "
            "frame id x z y",
        ),
        ("1 2 nan 4", "expected frame, id, x, y with numeric frame, x and y"),
        ("1 2 ? 4", "expected frame, id, x, y with numeric frame, x and y"),
        ("1 nan 3 4", "expected frame, id, x, y with numeric frame, x and y"),
        ("1 2 1e10 4", r"at most 2\^53 and 1e.09"),
        ("1e16 2 1 4", r"at most 2\^53"),
        ("1 2 1_0 4", "expected frame, id, x, y with numeric frame, x and y"),
        ("1 2 " + "9" * 400 + " 4", "expected frame, id, x, y with numeric frame, x and y"),
        ("0 1 5 5", "id 1 is in frame 0 twice"),
        ("1 \udce4 3 4", "not UTF-8"),
    ],
)
def test_bad_lines_are_an_error_or_skipped(tmp_path, line, message):
    (tmp_path / "a.txt").write_bytes(f"0 1 2 3\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"a.txt, line 2: .*{message}.* --data.on-bad skip"):
        read_frames(tmp_path / "a.txt")
    frames, skipped = read_frames(tmp_path / "a.txt", "skip")
    assert frames == {0.0: {"1": (2.0, 3.0)}}
    assert len(skipped) == 1


@pytest.mark.parametrize("names", ["time who x y", "frame id x x y", "a b c d"])
def test_header_that_lacks_a_column_is_refused(tmp_path, names):
    (tmp_path / "a.txt").write_text(f"{names}\n0 1 2 3\n", encoding="utf-8")
    with pytest.raises(
        UserError,
        match=r"a.txt, line 1: expected four columns frame, id, x, y, or a header with them",
    ):
        read_frames(tmp_path / "a.txt", "skip")


def test_header_applies_to_every_line(tmp_path):
    (tmp_path / "a.txt").write_text("frame id x y\n0 1 2\n", encoding="utf-8")
    with pytest.raises(
        UserError, match="line 2: expected 4 columns, as in the header, got '0 1 2'"
    ):
        read_frames(tmp_path / "a.txt")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_comma(separator):
    lines = [
        separator.join(row).encode()
        for row in (("frame", "id", "x", "y"), ("7", "a", "8,5", "-1,25"))
    ]
    assert parse_frames(lines, "a")[0] == {7.0: {"a": (8.5, -1.25)}}
