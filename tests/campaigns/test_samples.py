"""Sample of each campaign; the full campaigns run with `make campaigns`.

They run in another program: a process that has computed with several threads must not fork,
because the child would wait for threads that it does not have.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = {"engines": 6, "kills": 1, "reads": 30}
"""Number of cases of each campaign, in one program."""


@pytest.mark.timeout(600)
def test_samples_of_random_cases_have_no_unexpected_outcome() -> None:
    options = ["--cases", *map(str, SAMPLES.values()), "--processes", "1", "--seed", "5"]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.campaigns", *SAMPLES, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name, count in SAMPLES.items():
        lines = [
            line
            for line in result.stdout.splitlines()
            if line.startswith(f"{name}: {count} cases of seed 5, ")
        ]
        assert [line.rpartition(", ")[2] for line in lines] == ["0 not as expected"]
