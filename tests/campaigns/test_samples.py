"""Sample of each campaign; the full campaigns run with `make campaigns`.

They run in separate programs: a process that has computed with several threads must not fork,
because the child would wait for threads that it does not have.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {"reads": 100}, {"engines": 16, "kills": 2}
"""Number of cases of each campaign, in two programs: campaigns share trained runs."""

pytestmark = pytest.mark.timeout(600)  # the first test of a program waits for all its campaigns


@pytest.fixture(scope="module", params=PROGRAMS, ids=" ".join)
def program(
    request: pytest.FixtureRequest,
) -> tuple[dict[str, int], subprocess.CompletedProcess[str]]:
    """Return the number of cases of each campaign of a program, and its result."""
    samples: dict[str, int] = request.param
    options = ["--cases", *map(str, samples.values()), "--processes", "1", "--seed", "5"]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.campaigns", *samples, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return samples, result


def test_samples_of_random_cases_have_no_unexpected_outcome(program) -> None:
    samples, result = program
    assert result.returncode == 0, result.stdout + result.stderr
    for name, count in samples.items():
        lines = [
            line
            for line in result.stdout.splitlines()
            if line.startswith(f"{name}: {count} cases of seed 5, ")
        ]
        assert [line.rpartition(", ")[2] for line in lines] == ["0 not as expected"]
