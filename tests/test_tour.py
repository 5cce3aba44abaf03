"""Counts of tests/tour.py, by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tour import report, stops

ROOT = Path(__file__).parents[1]


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


@pytest.mark.slow
def test_paths_of_a_sentence_and_of_a_batch_are_short() -> None:
    result = subprocess.run(
        [sys.executable, "tests/tour.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    counts = re.findall(
        r"(\w+) +\d+ functions in +(\d+) files, +(\d+) stops, +(\d+) returns", result.stdout
    )
    num_files, num_stops, num_returns = (
        {name: int(numbers[i]) for name, *numbers in counts} for i in range(3)
    )
    assert num_files["answer"] <= 16
    assert num_stops["step"] <= 26
    assert num_returns["step"] <= 19
    assert "run.json opened 1 times" in result.stdout
