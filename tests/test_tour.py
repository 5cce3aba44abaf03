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
    expected = "predict answer 4 functions in 3 files, 4 stops, 1 returns; "
    expected += "in 2 folders, 3 stops, 1 returns"
    assert " ".join(lines[0].split()) == expected
    assert lines[-1] == "predict run.json opened 1 times"


def test_paths_in_the_tour_exist() -> None:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text))
    missing = [
        path for path in paths if not any((ROOT / top / path).exists() for top in ("regard", "."))
    ]
    assert paths
    assert sorted(missing) == []


def test_counts_of_the_tour_are_measured() -> None:
    """Files, stops and returns of each phase are at most those that the page states."""
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+ [\w-]+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    stated = {phase: [int(number) for number in numbers] for phase, *numbers in rows}
    result = subprocess.run(
        [sys.executable, "tests/tour.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    counts = re.findall(
        r"^(\w+ +[\w-]+) +\d+ functions in +(\d+) files, +(\d+) stops, +(\d+) returns",
        result.stdout,
        re.MULTILINE,
    )
    measured = {" ".join(phase.split()): numbers for phase, *numbers in counts}
    assert len(stated) == 7
    for phase, most in stated.items():
        for number, limit in zip(measured[phase], most, strict=True):
            assert int(number) <= limit, phase
