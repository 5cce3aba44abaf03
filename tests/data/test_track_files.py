"""Files of trajectories: separators, headers and invalid lines."""

import pytest

from regard.data.track_files import format_number, read_frames
from regard.errors import UserError

EXPECTED = {780.0: {"1": (8.5, -3.0), "2": (0.0, 1.0)}, 790.0: {"1": (9.0, -2.5)}}


@pytest.mark.parametrize(
    "content",
    [
        "780\t1\t8.5\t-3\n790.0 1.0 9 -2.5\n\n780 2 0 1\n",
        "780,1,8.5,-3\r\n790,1,9,-2.5\r\n# a comment\r\n780, 2, 0, 1\r\n",
        "# frame id ...\nid frame y x\n1 780 -3 8.5\n1 790 -2.5 9\n2 780 1 0\n",
        ",frame,id,x,y,label\n0,780,1,8.5,-3,a b\n1,790,1,9,-2.5,\n2,780,2,0,1,c\n",
    ],
)
def test_columns_by_order_or_header(tmp_path, content):
    (tmp_path / "a.txt").write_text(content, encoding="utf-8", newline="")
    frames, skipped = read_frames(tmp_path / "a.txt")
    assert frames == EXPECTED
    assert not skipped


def test_numbers_are_formatted_for_users():
    assert [format_number(value) for value in (3.0, 2.0**53, 0.1)] == ["3", str(2**53), "0.1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", r"expected 4 columns \(frame, id, x, y\), got '1 2 3'"),
        ("1 2 3 4 5", "expected 4 columns"),
        ("1 2 nan 4", "expected a number, got 'nan'"),
        ("one 2 3 4", "expected a number, got 'one'"),
        ("0 1 5 5", "id 1 is in frame 0 twice"),
        ("1 \udce4 3 4", "not UTF-8"),
    ],
)
def test_bad_lines_are_an_error_or_skipped(tmp_path, line, message):
    (tmp_path / "a.txt").write_bytes(f"0 1 2 3\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"a.txt, line 2: .*{message}.* --data.on-bad skip"):
        read_frames(tmp_path / "a.txt")
    frames, skipped = read_frames(tmp_path / "a.txt", "skip")
    assert {number: frame for number, frame in frames.items() if frame} == {0.0: {"1": (2.0, 3.0)}}
    assert len(skipped) == 1
