"""Counts of tests/tour.py, by hand."""

import pytest

from tests.tour import report, stops


def test_stops_are_visits_in_a_row_and_returns_those_of_a_place_that_was_left() -> None:
    assert stops(["a", "a", "b", "a", "c", "c", "b"]) == (3, 5, 2)
    assert stops(["a", "b", "c"]) == (3, 3, 0)


def test_report_counts_files_and_folders_of_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    places = [("x/a.py", "f"), ("x/b.py", "g"), ("y/c.py", "h"), ("x/a.py", "k")]
    report("predict", {"phases": {"answer": places}, "opened": 1}, with_files=False)
    lines = capsys.readouterr().out.splitlines()
    expected = "predict answer 4 functions in 3 files, 4 stops, 1 returns; in 2 folders, 3 stops, 1 returns"
    assert " ".join(lines[0].split()) == expected
    assert lines[-1] == "predict run.json opened 1 times"
