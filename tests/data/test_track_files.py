"""Files of tracks: what separates columns, names of columns, and lines that are no positions."""

import pytest

from regard.data.track_files import in_order, read_frames
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
def test_columns_are_known_by_what_separates_them_and_by_their_names(tmp_path, content):
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    assert read_frames(tmp_path / "a.txt") == (EXPECTED, ())


def test_frames_may_be_milliseconds_and_ids_texts_or_longer_than_floating_numbers(tmp_path):
    lines = "1700000000000 9007199254740993 0 0\n1700000000001 9007199254740992 0 0\n1700000000001 anna-1 1 1\n"
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    frames, _ = read_frames(tmp_path / "a.txt")
    assert [[*one] for one in frames.values()] == [["9007199254740993"], ["9007199254740992", "anna-1"]]
    assert [*frames] == [1.7e12, 1.7e12 + 1]


def test_ids_are_ordered_as_numbers_before_texts():
    assert in_order({"b", "10", "9", "a"}) == ["9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", "expected frame, id, x, y, four columns, got '1 2 3'"),
        ("1 2 3 4 5", "four columns, got '1 2 3 4 5'; a first line of names chooses columns: frame id x z y"),
        ("1 2 nan 4", "expected frame, id, x, y, of which frame, x and y are numbers"),
        ("1 2 ? 4", "expected frame, id, x, y, of which"),
        ("1 nan 3 4", "expected frame, id, x, y, of which"),
        ("1 2 1e10 4", r"at most 2\^53 and 1e.09"),
        ("1e16 2 1 4", r"at most 2\^53"),
        ("1 2 1_0 4", "expected frame, id, x, y, of which"),
        ("1 2 " + "9" * 400 + " 4", "expected frame, id, x, y, of which"),
        ("0 1 5 5", "id 1 is in frame 0 twice"),
        ("1 \udce4 3 4", "not UTF-8"),
    ],
)
def test_bad_lines_are_named_or_skipped(tmp_path, line, message):
    (tmp_path / "a.txt").write_bytes(f"0 1 2 3\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"a.txt, line 2: .*{message}.* `on_bad` = skip"):
        read_frames(tmp_path / "a.txt")
    frames, skipped = read_frames(tmp_path / "a.txt", "skip")
    assert frames == {0.0: {"1": (2.0, 3.0)}}
    assert len(skipped) == 1


@pytest.mark.parametrize("names", ["time who x y", "frame id x x y", "a b c d"])
def test_names_that_lack_a_column_are_refused(tmp_path, names):
    (tmp_path / "a.txt").write_text(f"{names}\n0 1 2 3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.txt, line 1: expected frame, id, x, y, four columns, or their names"):
        read_frames(tmp_path / "a.txt", "skip")


def test_names_of_columns_hold_for_every_line(tmp_path):
    (tmp_path / "a.txt").write_text("frame id x y\n0 1 2\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2: expected 4 columns, as the first line names, got '0 1 2'"):
        read_frames(tmp_path / "a.txt")
