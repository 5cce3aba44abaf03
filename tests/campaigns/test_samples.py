"""Sample of each campaign but `files`; the full campaigns run with `make campaigns`.

Each runs in a separate program: a process that has computed with several threads must not fork, because the child would
wait for threads that it does not have.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = {"captures": 8, "engines": 24, "folders": 8, "kills": 4, "options": 12, "reads": 300}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_of_random_cases_has_no_unexpected_outcome(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.campaigns", name, "--cases", str(SAMPLES[name])]
    result = subprocess.run(
        [*command, "--processes", "1", "--seed", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{name}: {SAMPLES[name]} cases of seed 5, " in result.stdout
    assert ", 0 not as expected" in result.stdout
